"""The matrix as an experiment."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.fleet import JOIN_TIMEOUT_MS
from experiments.matrix import page
from experiments.matrix.cases import Case, plan
from experiments.matrix.runner import Runner


class Matrix(harness.Experiment):
    name, what = "eviction-matrix", "Fleets with and without lightkeeper."

    def options(self, add: Callable[..., Any]) -> None:
        add("--timeouts", action="append", choices=list(JOIN_TIMEOUT_MS), help="only these")
        add("--keeper", choices=("yes", "no", "both"), default="both", help="lightkeeper (both)")
        add("--gate", choices=("yes", "no", "both"), default="both", help="a gate in front (both)")
        add("--lighthouse", choices=("up", "down", "both"), default="both", help="it meanwhile")

    def cases(self, args: argparse.Namespace) -> list[Case]:
        ways = {"yes": [True], "no": [False], "both": [False, True]}
        downs = {"up": {False}, "down": {True}, "both": {False, True}}[args.lighthouse]
        cases = plan(args.timeouts or JOIN_TIMEOUT_MS, ways[args.keeper], ways[args.gate])
        return [case for case in cases if case.lighthouse_down in downs]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder)

    def verdict(self, row: harness.Row) -> str:
        return "problems" if row["problems"] else "good"

    def told(self, row: harness.Row) -> str:
        problems = f"; PROBLEMS: {'; '.join(row['problems'])}" if row["problems"] else ""
        return json.dumps({k: v for k, v in row.items() if k.startswith("to_")}) + problems

    def page(self, out: Path) -> str:
        return page.made(out)
