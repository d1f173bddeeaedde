"""The field suite as an experiment."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

from experiments import harness
from experiments.field import judge, page
from experiments.field.cases import CASES, Case
from experiments.field.runner import run


@dataclass(frozen=True)
class Run:
    """One of a case."""

    case: Case
    number: int

    @property
    def name(self) -> str:
        """What `--only` chooses it by."""
        return self.case.name

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"{self.name}#{self.number}"


class Runner(harness.Runner):
    """A job of its own for each run."""

    def run(self, case: Run) -> harness.Row:
        """A second try where the bug did not strike. Raises FleetError."""
        folder = self.base / f"{case.name}-{case.number}-{int(time.time())}"
        row = run(case.case, case.number, folder)
        if row["verdict"] == judge.Verdict.INVALID and not harness.ENDING.is_set():
            row = run(case.case, case.number, folder.with_name(f"{folder.name}b"))
        return row


class Field(harness.Experiment):
    name, what = "field", "Bugs as people write them, on real jobs."
    runs, lanes = 3, 2

    def cases(self, args: argparse.Namespace) -> list[Run]:
        return [Run(case, number) for number in range(args.runs) for case in CASES.values()]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder or Path("/tmp/field"))

    def described(self, case: Run) -> str:
        row = case.case
        return f"{case.key:28} {row.shape:8} {row.script:14} {row.what}"

    def verdict(self, row: harness.Row) -> str:
        return judge.judge(row)[0]

    def failed(self, row: harness.Row) -> bool:
        return bool(row["verdict"] == judge.Verdict.INVALID)

    def told(self, row: harness.Row) -> str:
        cause = {True: "", False: ", CAUSE NOT SAID", None: ""}[judge.said(row)]
        out = ", ".join(f"{group} {at_s} s" for group, at_s in row["evicted"].items())
        return (
            f"{row['key']}: {row['verdict'].upper()} {row['because']}{cause}; firing "
            f"{row['to_firing']}, evicted {out or '-'}, trains {row['to_commit']} "
            f"({row['took_s']} s)"
        )

    def page(self, out: Path) -> str:
        return page.made(out)
