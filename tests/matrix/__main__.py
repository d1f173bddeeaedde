"""`python -m tests.matrix`: fleets with and without lightkeeper; evidence/eviction-matrix.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import groupby

from tests import harness
from tests.matrix import page
from tests.matrix.cases import FAULTS, JOIN_TIMEOUT_MS, Case, plan
from tests.matrix.runner import Runner


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = harness.options("tests.matrix", __doc__, "eviction-matrix")
    add = top.add_argument
    add("--fault", action="append", dest="faults", choices=list(FAULTS), help="only this one")
    add("--timeouts", action="append", choices=list(JOIN_TIMEOUT_MS), help="only these")
    add("--without-keeper", action="store_true", help="only TorchFT alone")
    add("--with-keeper", action="store_true", help="only with lightkeeper")
    add("--gate", choices=("yes", "no", "both"), default="both", help="a gate in front (both)")
    add("--lighthouse", choices=("up", "down", "both"), default="both", help="it during a fault")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every run was made, 1 when not."""
    args = parser().parse_args(arguments)
    if args.page_only:
        page.write(args.page, args.out)
        return 0
    cases = _cases(args)
    if args.list:
        print("\n".join(case.key for case in cases))
        return 0
    left = harness.left(cases, args.out, lambda case: case.key)
    harness.begin("tests.matrix")
    made = True
    for setting, mine in groupby(left, key=lambda case: case.setting):
        runner = Runner(setting, args.folder)
        made &= harness.run_all(list(mine), args.out, runner, lambda case: case.key, told)
    page.write(args.page, args.out)
    return 0 if made else 1


def _cases(args: argparse.Namespace) -> list[Case]:
    keepers = [False] if args.without_keeper else [True] if args.with_keeper else [False, True]
    gates = {"yes": [True], "no": [False], "both": [False, True]}[args.gate]
    downs = {"up": {False}, "down": {True}, "both": {False, True}}[args.lighthouse]
    cases = plan(
        args.faults or list(FAULTS), args.timeouts or list(JOIN_TIMEOUT_MS), keepers, gates
    )
    return [case for case in cases if case.lighthouse_down in downs]


def told(row: harness.Row) -> str:
    """A row for people."""
    problems = f"; PROBLEMS: {'; '.join(row['problems'])}" if row["problems"] else ""
    return json.dumps({k: v for k, v in row.items() if k.startswith("to_")}) + problems


if __name__ == "__main__":
    sys.exit(main())
