"""The lab of networks as an experiment."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.netlab import page
from experiments.netlab.cases import CASES, Case
from experiments.netlab.judge import judge
from experiments.netlab.lab import why_not
from experiments.netlab.runner import run


@dataclass(frozen=True)
class Run:
    """One of a case, with lightkeeper or with TorchFT alone."""

    case: Case
    number: int
    alone: bool

    @property
    def name(self) -> str:
        """What `--only` chooses it by."""
        return self.case.name

    @property
    def key(self) -> str:
        """Names it in the results."""
        return f"{self.name}{'-alone' * self.alone}#{self.number}"


class Runner(harness.Runner):
    """A lab of its own for each run."""

    def run(self, case: Run) -> harness.Row:
        """Raises FleetError."""
        folder = self.base / f"{case.key.replace('#', '-')}-{int(time.time())}"
        return run(case.case, case.number, folder, alone=case.alone)


class Netlab(harness.Experiment):
    name, what = "netlab", "Networks that break under a job, with lightkeeper and without."

    def options(self, add: Callable[..., Any]) -> None:
        add("--alone", choices=("yes", "no", "both"), default="both", help="TorchFT alone (both)")

    def why_not(self) -> str:
        return why_not() or ""

    def cases(self, args: argparse.Namespace) -> list[Run]:
        ways = {"yes": [True], "no": [False], "both": [False, True]}[args.alone]
        return [
            Run(case, number, alone)
            for number in range(args.runs) for case in CASES.values() for alone in ways
        ]  # fmt: skip

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder or Path("/tmp/netlab"))

    def described(self, case: Run) -> str:
        row = case.case
        return f"{case.key:24} {row.shape:10} {row.watch_s:5.0f} s  {row.what}"

    def verdict(self, row: harness.Row) -> str:
        return judge(row, CASES[row["case"]].truth())[0] if row["case"] in CASES else ""

    def told(self, row: harness.Row) -> str:
        _, because = judge(row, CASES[row["case"]].truth())
        pauses = ", ".join(f"{rank} {pause['pause']}" for rank, pause in row["pauses"].items())
        return f"{self.verdict(row).upper()} {because}; pauses {pauses}; told {row['told']}"

    def page(self, out: Path) -> str:
        return page.made(out)
