"""`python -m tests.corpus.scoreboard`: who names the culprit and who names the victims.

Builds the corpus, asks ours and torchfrtrace about the same files, writes evidence/scoreboard.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from experiments.pages import table
from tests.corpus.ask import EVERY, FIRST, NVRX, OURS, Result, ask, ours
from tests.corpus.cases import Case, coordinates
from tests.corpus.rivals import PREFIX, Answer, Rival, missed, readings
from tests.corpus.truth import Truth

# -- right, silent or wrong -------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """One answer, judged."""

    tellable: bool
    """Whether the records show at least one culprit."""
    right: bool
    """All culprits that the records show, and nobody innocent."""
    innocents: int
    """Innocent ranks that were accused."""
    accused: int
    abstained: bool
    """The records show a culprit and it named nobody."""
    unusable: bool
    kind_right: bool


def mark(truth: Truth, answer: Answer) -> Mark:
    innocent = answer.accused - truth.must - truth.may
    return Mark(
        tellable=bool(truth.must),
        right=truth.must <= answer.accused and not innocent,
        innocents=len(innocent),
        accused=len(answer.accused),
        abstained=bool(truth.must) and not answer.accused,
        unusable=bool(answer.error),
        kind_right=bool(answer.kinds & truth.kinds) or not truth.must,
    )


@dataclass
class Tally:
    """Sums over cases."""

    marks: list[Mark] = field(default_factory=list)

    @property
    def tellable(self) -> list[Mark]:
        return [mark for mark in self.marks if mark.tellable]

    @property
    def untellable(self) -> list[Mark]:
        return [mark for mark in self.marks if not mark.tellable]

    @property
    def exact(self) -> float:
        """Share of the cases with a culprit to tell in which exactly the culprits were named."""
        return share(sum(m.right for m in self.tellable), len(self.tellable))

    @property
    def abstained(self) -> float:
        return share(sum(m.abstained for m in self.tellable), len(self.tellable))

    @property
    def wrong(self) -> float:
        """Share of all cases in which somebody innocent was accused."""
        return share(sum(m.innocents > 0 for m in self.marks), len(self.marks))

    @property
    def wrong_untold(self) -> int:
        """Cases without a culprit to tell in which somebody innocent was accused."""
        return sum(m.innocents > 0 for m in self.untellable)

    @property
    def innocents(self) -> float:
        """Share of innocents among all ranks accused."""
        return share(sum(m.innocents for m in self.marks), sum(m.accused for m in self.marks))

    @property
    def kinds(self) -> float:
        """Of the exact answers, those that also say what happened."""
        exact = [m for m in self.tellable if m.right]
        return share(sum(m.kind_right for m in exact), len(exact))

    @property
    def unusable(self) -> int:
        return sum(m.unusable for m in self.marks)


def share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


TEXT = """\
# Scoreboard

Simulated jobs with known faults; each tool sees the same dump files and nothing else. Made by

    {command}

on {date} with Python {python}, lightkeeper {ours}, and torch {torch}, whose torchfrtrace is asked
again with --allow-incomplete-ranks where it wants every rank. {nvrx}

(`ARGS="--salt N"` makes another corpus of the same cases.)

The generator is `tests/corpus/`: a small model of ranks with CPUs that launch ahead, GPU streams,
and members that must meet, so that waiting, cascades and completion out of order follow from the
programs. {cases} cases, each built from its name alone: the same command gives the same dumps.

What counts:

- **tellable**: cases in which the records show at least one culprit. What they show is decided from
  the simulated records by the rules in `tests/corpus/truth.py`, which know no analyser.
- **exact**: of the tellable, those in which all shown culprits were named and nobody else.
- **abstained**: of the tellable, those in which nobody was named.
- **accuses innocents**: of all cases, also healthy ones and ties, those in which at least one rank
  was named that did nothing wrong. **Innocents among the accused**: the same by ranks.
- **kind**: of the exact, those that also say what happened.

Of some faults no record tells the culprit: a failed link, a wrong root (NCCL records none), half
against half, a GPU that hangs without timing events. There, and in healthy jobs whose dumps were
taken a few operations apart, the right answer is to accuse nobody. Where two members disagree and
only history could decide, naming the right one is neither asked for nor wrong.

## In all

{total}

## By class

{kinds}

## By parallelism, dump, pace, number of faults, and backend

{axes}

## Real records

{real}

## Cases in which lightkeeper is wrong or silent

{misses}
"""

WITH_NVRX = (
    "CollectiveAnalyzer is that of\nNVIDIA's nvidia-resiliency-ext, as its command runs "
    "(`tests/corpus/rivals.py` says how to get it)."
)
NO_NVRX = "NVIDIA's nvidia-resiliency-ext\nwas not installed and is not scored."


def percent(value: float) -> str:
    return "-" if value != value else f"{100 * value:.1f} %"


Axis = Callable[[Case], str]
AXES: Mapping[str, Axis] = {
    "parallelism": lambda case: case.layout,
    "dump": lambda case: case.dumps,
    "pace": lambda case: "blocking" if case.blocking else "CPU runs ahead",
    "faults": lambda case: f"{case.faults} fault{'s' * (case.faults > 1)}",
    "backend": lambda case: case.backend,
}


class Board:
    """All marks, by tool and by slice."""

    def __init__(self) -> None:
        self.tallies: dict[tuple[str, str, str], Tally] = defaultdict(Tally)
        self.misses: list[str] = []
        self.cases = 0
        self.alarms = [0, 0]
        """Healthy cases in which ours reported anything at all, and healthy cases."""

    def add(self, result: Result) -> None:
        self.cases += 1
        case, truth = result.case, result.labelled.truth
        for tool, answer in result.answers.items():
            judged = mark(truth, answer)
            slices = [("all", ""), ("kind", case.kind)]
            slices += [(axis, of(case)) for axis, of in AXES.items()]
            for axis, value in slices:
                self.tallies[tool, axis, value].marks.append(judged)
            if tool == OURS and (not judged.right or judged.unusable):
                what = answer.error or f"named {sorted(answer.accused) or 'nobody'}"
                wanted = sorted(truth.must) or "nobody"
                self.misses.append(f"- `{case.name}`: {what}, to be named {wanted}")
        if not result.labelled.faults:
            self.alarms[0] += result.answers[OURS].alarms > 0
            self.alarms[1] += 1

    def tools(self) -> list[str]:
        return [tool for tool, axis, _ in self.tallies if axis == "all"]

    def total(self) -> str:
        head = ["", "cases", "tellable", "exact", "abstained", "accuses innocents",
                "innocents among the accused", "accuses where nobody can tell", "kind",
                "no answer (error)"]  # fmt: skip
        rows = []
        for tool in self.tools():
            tally = self.tallies[tool, "all", ""]
            rows.append([
                tool, str(len(tally.marks)), str(len(tally.tellable)), percent(tally.exact),
                percent(tally.abstained), percent(tally.wrong), percent(tally.innocents),
                f"{tally.wrong_untold} of {len(tally.untellable)}",
                percent(tally.kinds) if tool == OURS else "-", str(tally.unusable),
            ])  # fmt: skip
        quiet = f"\n\nIn {self.alarms[0]} of {self.alarms[1]} healthy cases lightkeeper reports "
        return table(head, rows).rstrip() + quiet + "something (accusing somebody or not)."

    def sliced(self, axes: list[str]) -> str:
        tools = self.tools()
        head = ["", "cases", "tellable"]
        for tool in tools:
            short = tool.replace("torchfrtrace, ", "frtrace ").replace(" complaints", "")
            short = short.replace(" complaint", "")
            head += [f"{short}: exact", "accuses innocents"]
        rows = []
        for axis in axes:
            values = dict.fromkeys(v for _, a, v in self.tallies if a == axis)
            for value in values:
                first = self.tallies[tools[0], axis, value]
                row = [value, str(len(first.marks)), str(len(first.tellable))]
                for tool in tools:
                    t = self.tallies[tool, axis, value]
                    row += [percent(t.exact), percent(t.wrong)]
                rows.append(row)
        return table(head, rows).rstrip()


# -- real records, with known culprits -------------------------------------------------------------

SHARED = (Path(__file__).parents[2] / "../shared/data", Path("/work/shared/data"))


def real_nccl() -> list[tuple[Path, set[int]]]:
    """Folders of real NCCL dumps, and the ranks into which a fault was injected."""
    root = next((folder for folder in SHARED if folder.exists()), None)
    logs = [] if root is None else sorted(root.glob("flight_recorder_nccl/*/fault_injection.log"))
    first_lines = ((log.parent, log.read_text().splitlines()[0]) for log in logs)
    return [(folder, set(map(int, re.findall(r"\d+", line)))) for folder, line in first_lines]


def real_rows(tools: list[str]) -> list[list[str]]:
    """A row for each real record: what it is, the truth, and what each tool names."""
    rows = []
    for folder, truth in real_nccl():
        answers = {OURS: ours(folder)}
        if FIRST in tools:
            with Rival("torchfrtrace") as tool:
                answers[FIRST], answers[EVERY] = readings(_asked(tool, folder))
        if NVRX in tools:
            with Rival("nvrx") as tool:
                answers[NVRX] = missed(_asked(tool, folder))
        cells = [_cell(answers[tool]) for tool in tools]
        rows.append([f"NCCL, 16 ranks, {folder.name}", str(sorted(truth)), *cells])
    return rows


def _cell(answer: Answer) -> str:
    return f"error: {answer.error}" if answer.error else str(sorted(answer.accused) or "nobody")


def _asked(tool: Rival, folder: Path) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "dumps"
        copy.mkdir()
        for path in folder.glob("_dump_*"):
            shutil.copy(path, copy / path.name.replace("_dump_", PREFIX))
        return tool.ask(copy)


def write(board: Board, out: Path, command: str) -> None:
    text = TEXT.format(
        command=command,
        date=time.strftime("%Y-%m-%d"),
        python=platform.python_version(),
        ours=importlib.metadata.version("lightkeeper"),
        torch=importlib.metadata.version("torch"),
        nvrx=WITH_NVRX if NVRX in board.tools() else NO_NVRX,
        cases=board.cases,
        total=board.total(),
        kinds=board.sliced(["kind"]),
        axes=board.sliced(list(AXES)),
        real=table(["record", "truth", *board.tools()], real_rows(board.tools())).rstrip(),
        misses="\n".join(board.misses) or "None.",
    )
    out.write_text(text)


def chosen(only: str, every: int, salt: int) -> Iterator[Case]:
    salted = (replace(case, salt=case.salt + salt) for case in coordinates())
    cases = (case for case in salted if only in case.name)
    return itertools.islice(cases, 0, None, every)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("evidence/scoreboard.md"))
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    parser.add_argument("--every", type=int, default=1, help="every n-th case only")
    parser.add_argument("--salt", type=int, default=0, help="another corpus of the same cases")
    parser.add_argument("--ours-only", action="store_true", help="do not ask torchfrtrace")
    parser.add_argument("--keep", type=Path, help="write the dumps here and leave them")
    options = parser.parse_args()
    board = Board()
    for result in ask(
        chosen(options.only, options.every, options.salt),
        rivals=not options.ours_only,
        keep=options.keep,
    ):
        board.add(result)
        if board.cases % 50 == 0 and sys.stderr.isatty():
            print(f"\r{board.cases} cases", end="", file=sys.stderr)
    command = os.environ.get("LIGHTKEEPER_COMMAND") or " ".join(
        ["python -m tests.corpus.scoreboard", *sys.argv[1:]]
    )
    write(board, options.out, command)
    print(board.total())
    print(f"{len(board.misses)} misses; {options.out}")
    assert {OURS} <= set(board.tools()) <= {OURS, FIRST, EVERY, NVRX}
    return 0


if __name__ == "__main__":
    sys.exit(main())
