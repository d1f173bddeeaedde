"""Kill-each as an experiment."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments import harness
from experiments.fleet import Setting
from experiments.killing import page
from experiments.killing.roles import expected
from experiments.killing.runner import Kill, Runner


class KillEach(harness.Experiment):
    name, what = "kill-each", "Every process of a fleet is killed in turn."
    runs = 3

    def options(self, add: Callable[..., Any]) -> None:
        add("--gate", choices=("yes", "no", "both"), default="both", help="one in front (both)")

    def cases(self, args: argparse.Namespace) -> list[Kill]:
        gates = {"yes": [True], "no": [False], "both": [True, False]}[args.gate]
        return [
            Kill(name, number, setting)
            for setting in (Setting("2x2", gate=gate) for gate in gates)
            for number in range(1, args.runs + 1)
            for name in expected(setting)
        ]

    def runner(self, args: argparse.Namespace) -> Runner:
        return Runner(args.folder)

    def verdict(self, row: harness.Row) -> str:
        return "problem" if row["problem"] else "whole"

    def failed(self, row: harness.Row) -> bool:
        return bool(row["problem"])

    def told(self, row: harness.Row) -> str:
        told = (
            f"whole after {row['whole_s']} s, longest pause {row['pause_s']} s, "
            f"back after {row['back_s']} s, steps lost {row['steps_lost']}"
        )
        wrong = ("problem", "accused_wrongly", "evicted")
        return "; ".join([told, *(f"{what}: {row[what]}" for what in wrong if row[what])])

    def page(self, out: Path) -> str:
        return page.made(out)
