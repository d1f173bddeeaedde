"""`python -m tests.campaign`: every fault class on real fleets; evidence/campaign.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.campaign import page, results
from tests.campaign.classes import CLASSES, SHAPES, Run, plan
from tests.campaign.fleet import FleetError
from tests.campaign.forks import PLAIN
from tests.campaign.runner import Runner, say


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.campaign", description=__doc__)
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
        help="only those of the runs that are in fleets of this shape, repeatable (default: both)",
    )
    add(
        "--out",
        type=Path,
        default=Path("evidence/campaign.jsonl"),
        metavar="FILE",
        help="results, one JSON object a line (default evidence/campaign.jsonl)",
    )
    add(
        "--page",
        type=Path,
        default=Path("evidence/campaign.md"),
        metavar="FILE",
        help="the page made of them (default evidence/campaign.md)",
    )
    add(
        "--plain",
        action="store_true",
        help="the trainer attaches and reports nothing: no phases, no losses (results go to "
        "campaign-plain.jsonl beside FILE)",
    )
    add("--resume", action="store_true", help="go on with FILE: do only what is not in it")
    add("--list", action="store_true", help="print the plan with its seeds, and run nothing")
    add("--page-only", action="store_true", help="write the page from the results, run nothing")
    add("--folder", type=Path, help="where fleets keep logs and stores (default: under /tmp)")
    return top  # fmt: skip


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
    done = {line["key"] for line in results.read(args.out)}
    left = [run for run in runs if run.key not in done]
    say(f"{len(runs)} runs, {len(runs) - len(left)} done already; seed {args.seed}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.environ.setdefault(
        "LIGHTKEEPER_COMMAND", " ".join(["python -m tests.campaign", *sys.argv[1:]])
    )
    made = True
    for shape, mine in groupby(left, key=lambda run: run.shape):
        made &= _shape(shape, list(mine), args)
    page.write(args.page, page_out)
    return 0 if made else 1


def _shape(shape: str, runs: list[Run], args: argparse.Namespace) -> bool:
    runner, made = Runner(shape, args.folder), True
    try:
        for number, run in enumerate(runs):
            say(f"{number + 1}/{len(runs)} {describe(run)}")
            try:
                result = runner.run(run)
            except FleetError as exc:
                say(f"   {exc}")
                runner.close()
                made = False
                continue
            results.append(args.out, result)
            say(f"   {results.line(result)}")
    finally:
        runner.close()
    return made


def describe(run: Run) -> str:
    """A run as its seed has it."""
    more = {key: value for key, value in run.fault.items() if key not in {"kind", "phase"}}
    return (
        f"{run.key} in {run.shape}: {', '.join(run.hit)}, {run.in_steps} steps on, "
        f"{run.fault.get('phase', 'data')} {json.dumps(more) if more else ''}".rstrip()
    )


if __name__ == "__main__":
    sys.exit(main())
