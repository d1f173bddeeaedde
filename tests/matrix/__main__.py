"""`python -m tests.matrix`: fleets with and without lightkeeper; evidence/eviction-matrix.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.campaign import results
from tests.campaign.fleet import FleetError
from tests.matrix import page
from tests.matrix.cases import FAULTS, JOIN_TIMEOUT_MS, Case, plan
from tests.matrix.runner import Runner, interrupt_ends_it, say


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.matrix", description=__doc__)
    add = top.add_argument
    add("--fault", action="append", dest="faults", choices=list(FAULTS), help="only this one")
    add("--timeouts", action="append", choices=list(JOIN_TIMEOUT_MS), help="only these")
    add("--without-keeper", action="store_true", help="only TorchFT alone")
    add("--with-keeper", action="store_true", help="only with lightkeeper")
    add("--gate", choices=("yes", "no", "both"), default="both", help="a gate in front (both)")
    add("--lighthouse", choices=("up", "down", "both"), default="both", help="it during a fault")
    add("--out", type=Path, default=Path("evidence/eviction-matrix.jsonl"), metavar="FILE")
    add("--page", type=Path, default=Path("evidence/eviction-matrix.md"), metavar="FILE")
    add("--list", action="store_true", help="print the plan, and run nothing")
    add("--page-only", action="store_true", help="write the page from the results, run nothing")
    add("--folder", type=Path, help="where fleets keep logs and stores (default: under /tmp)")
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
    done = {line["key"] for line in results.read(args.out)}
    left = [case for case in cases if case.key not in done]
    say(f"{len(cases)} runs, {len(cases) - len(left)} done already")
    interrupt_ends_it()
    os.environ.setdefault(
        "LIGHTKEEPER_COMMAND", " ".join(["python -m tests.matrix", *sys.argv[1:]])
    )
    made = True
    for _, mine in groupby(left, key=lambda case: case.setting):
        made &= _setting(list(mine), args)
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


def _setting(cases: list[Case], args: argparse.Namespace) -> bool:
    runner, made = Runner(cases[0].setting, args.folder), True
    try:
        for case in cases:
            say(case.key)
            try:
                row = runner.run(case)
            except FleetError as exc:
                say(f"   {exc}")
                runner.close()
                made = False
                continue
            results.append(args.out, row)
            say("   " + json.dumps({k: v for k, v in row.items() if k.startswith("to_")}))
            if row["problems"]:
                say(f"   PROBLEMS: {'; '.join(row['problems'])}")
    finally:
        runner.close()
    return made


if __name__ == "__main__":
    sys.exit(main())
