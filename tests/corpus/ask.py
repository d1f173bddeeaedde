"""Asks every analyser about every case, on the same files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lightkeeper.monitor.records.analyse import analyse
from lightkeeper.monitor.records.files import load_job
from tests.corpus.cases import Case, Labelled
from tests.corpus.rivals import Answer, Rival, has_nvrx, missed, readings

OURS = "lightkeeper"
FIRST = "torchfrtrace, first complaint"
EVERY = "torchfrtrace, all complaints"
NVRX = "CollectiveAnalyzer"


@dataclass(frozen=True)
class Result:
    """One case, and what each tool said."""

    case: Case
    labelled: Labelled
    answers: dict[str, Answer]


def ours(
    folder: Path, world: int | None = None, members: Mapping[str, Sequence[int]] | None = None
) -> Answer:
    """As `lightkeeper analyze` would answer; a crash is an answer too, and counted."""
    try:
        analysis = analyse(load_job([folder], world_size=world, members=members, workers=1))
    except Exception as problem:  # noqa: BLE001 a crash is a score of nothing, not the end
        return Answer(frozenset(), error=f"{type(problem).__name__}: {problem}")
    kinds = frozenset(str(finding.kind) for finding in analysis.findings)
    return Answer(frozenset(analysis.culprits), kinds, alarms=len(analysis.findings))


def known(labelled: Labelled) -> tuple[int | None, dict[str, tuple[int, ...]] | None]:
    """`--world-size` and `--members`: gloo's records do not tell the members, people can."""
    if labelled.case.backend != "gloo":
        return None, None
    return labelled.world, {team.name: team.members for team in labelled.run.programs.teams}


def ask(cases: Iterator[Case], *, rivals: bool, keep: Path | None = None) -> Iterator[Result]:
    """Each case that has dumps, in order."""
    with ExitStack() as stack:
        place = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tool = stack.enter_context(Rival("torchfrtrace")) if rivals else None
        nvidia = stack.enter_context(Rival("nvrx")) if rivals and has_nvrx() else None
        for case in cases:
            labelled = case.build()
            if labelled is None:
                continue
            folder = place / case.name
            labelled.write(folder)
            answers = {OURS: ours(folder, *known(labelled))}
            if tool is not None:
                answers[FIRST], answers[EVERY] = readings(tool.ask(folder))
            if nvidia is not None:
                answers[NVRX] = missed(nvidia.ask(folder))
            if keep is None:
                shutil.rmtree(folder)
            yield Result(case, labelled, answers)
