"""The campaign as an experiment."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.campaign import page
from experiments.campaign.classes import Run, plan
from experiments.campaign.judge import summary
from experiments.campaign.runner import Runner
from experiments.fleet import SHAPES
from experiments.forks import PLAIN


class Campaign(harness.Experiment):
    name, what = "campaign", "Every fault class on real fleets."
    runs = 20

    def options(self, add: Callable[..., Any]) -> None:
        add(
            "--seed", type=int, default=5, metavar="N", help="of ranks, steps, phases (%(default)s)"
        )
        add("--shape", action="append", dest="shapes", choices=sorted(SHAPES),
            help="only those of the runs that are in fleets of this shape; repeatable")  # fmt: skip
        add("--plain", action="store_true", help="the trainer attaches and reports nothing: no "
            "phases, no losses (results go to campaign-plain.jsonl beside FILE)")  # fmt: skip
        add("--small", action="store_true", help="a model that costs little CPU (for CI)")

    def cases(self, args: argparse.Namespace) -> list[Run]:
        return plan(args.runs, args.seed, args.shapes or SHAPES)

    def runner(self, args: argparse.Namespace) -> Runner:
        if args.plain:
            os.environ[PLAIN] = "1"
        return Runner(args.folder, small=args.small)

    def verdict(self, row: harness.Row) -> str:
        return "exact" if row["exact"] else "not exact"

    def told(self, row: harness.Row) -> str:
        return summary(row)

    def described(self, case: Run) -> str:
        more = {key: value for key, value in case.fault.items() if key not in {"kind", "phase"}}
        return (
            f"{case.key} in {case.shape}: {', '.join(case.hit)}, {case.in_steps} steps on, "
            f"{case.fault.get('phase', 'data')} {json.dumps(more) if more else ''}".rstrip()
        )

    def out(self, args: argparse.Namespace) -> Path:
        return page.beside(args.out) if args.plain else Path(args.out)

    def page(self, out: Path) -> str:
        return page.made(out)
