"""`python -m tests.campaign`: every fault class on real fleets; evidence/campaign.md."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import groupby

from tests import harness
from tests.campaign import page
from tests.campaign.classes import CLASSES, SHAPES, Run, plan
from tests.campaign.fleet import SMALL
from tests.campaign.forks import PLAIN
from tests.campaign.judge import summary
from tests.campaign.runner import Runner
from tests.harness import say


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = harness.options("tests.campaign", __doc__, "campaign")
    add = top.add_argument
    add(
        "--class",
        action="append",
        dest="names",
        choices=sorted(CLASSES),
        metavar="NAME",
        help=f"only this class, repeatable (all: {', '.join(CLASSES)})",
    )
    add("--runs", type=int, default=20, metavar="N", help="runs of each class (default 20)")
    add("--seed", type=int, default=5, metavar="N", help="of ranks, steps and phases (default 5)")
    add(
        "--shape",
        action="append",
        dest="shapes",
        choices=sorted(SHAPES),
        help="only those of the runs that are in fleets of this shape, repeatable (default: all)",
    )
    add(
        "--plain",
        action="store_true",
        help="the trainer attaches and reports nothing: no phases, no losses (results go to "
        "campaign-plain.jsonl beside FILE)",
    )
    add("--small", action="store_true", help="a model that costs little CPU (for CI)")
    add("--resume", action="store_true", help="go on with FILE: do only what is not in it")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every run was made (whatever the monitor said), 1 when not."""
    top = parser()
    args = top.parse_args(arguments)
    if args.page_only:
        page.write(args.page, args.out)
        return 0
    page_out, args.out = args.out, page.beside(args.out) if args.plain else args.out
    if args.plain:
        os.environ[PLAIN] = "1"
    runs = plan(args.names or list(CLASSES), args.runs, args.seed, args.shapes or list(SHAPES))
    if args.list:
        for run in runs:
            print(describe(run))
        return 0
    if args.out.exists() and not args.resume:
        top.error(f"{args.out} exists: --resume to go on with it, or name another --out")
    say(f"seed {args.seed}")
    left = harness.left(runs, args.out, lambda run: run.key)
    harness.begin("tests.campaign")
    made = True
    for shape, mine in groupby(left, key=lambda run: run.shape):
        runner = Runner(shape, args.folder)
        runner.trainer_options = SMALL if args.small else ()
        made &= harness.run_all(list(mine), args.out, runner, describe, summary)
    page.write(args.page, page_out)
    return 0 if made else 1


def describe(run: Run) -> str:
    """A run as its seed has it."""
    more = {key: value for key, value in run.fault.items() if key not in {"kind", "phase"}}
    return (
        f"{run.key} in {run.shape}: {', '.join(run.hit)}, {run.in_steps} steps on, "
        f"{run.fault.get('phase', 'data')} {json.dumps(more) if more else ''}".rstrip()
    )


if __name__ == "__main__":
    sys.exit(main())
