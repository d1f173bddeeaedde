"""`python -m tests.netlab`: networks that break under a job, with lightkeeper and without."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import harness
from tests.harness import say
from tests.netlab import page, runner
from tests.netlab.cases import CASES, Case
from tests.netlab.judge import judge
from tests.netlab.lab import LabError, why_not


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.netlab", description=__doc__)
    add = top.add_argument
    add("command", choices=("list", "run", "page"))
    add("cases", nargs="*", metavar="CASE", help="names, or patterns of names (default: all)")
    add("--alone", action="store_true", help="TorchFT alone beside it, in the same run")
    add("--only-alone", action="store_true", help="TorchFT alone, and nothing else")
    add("--runs", type=int, default=1, metavar="N", help="runs of each case (1)")
    add("--lanes", type=int, default=1, metavar="N", help="labs at once (1)")
    add("--out", type=Path, default=Path("/tmp/netlab"), metavar="DIR",
        help="a folder of evidence for each run (/tmp/netlab)")  # fmt: skip
    add("--results", type=Path, metavar="FILE", help="one JSON object a run (DIR/results.jsonl)")
    add("--page", type=Path, metavar="FILE", help="the page made of them (DIR/page.md)")
    return top


def chosen(words: Sequence[str]) -> list[Case]:
    """Cases by exact name, else by a pattern of the whole name."""
    cases = {
        name: case for word in words or [".*"] for name, case in CASES.items()
        if name == word or (word not in CASES and re.fullmatch(word, name))
    }  # fmt: skip
    return list(cases.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every run was made, whatever came of it."""
    harness.begin("tests.netlab", arguments)
    args = parser().parse_args(arguments)
    args.results = args.results or args.out / "results.jsonl"
    args.page = args.page or args.out / "page.md"
    cases = chosen(args.cases)
    if args.command == "list":
        for case in cases:
            print(f"{case.name:24} {case.shape:10} {case.watch_s:5.0f} s  {case.what}")
        return 0
    if args.command == "page":
        print(page.write(args.page, args.results))
        return 0
    if why := why_not():
        print(f"no lab here: {why}", file=sys.stderr)
        return 3
    ways = [True] if args.only_alone else [False, True] if args.alone else [False]
    runs = [
        (case, number, alone) for number in range(args.runs) for case in cases for alone in ways
    ]
    with ThreadPoolExecutor(args.lanes) as lanes:
        # one at a time in this thread, which a signal unwinds with the lab
        each = map if args.lanes == 1 else lanes.map
        try:
            made = list(each(lambda case_and_way: _made(*case_and_way, args=args), runs))
        except BaseException:
            lanes.shutdown(cancel_futures=True)
            raise
    print(page.write(args.page, args.results))
    return 0 if all(made) else 1


def _made(case: Case, number: int, alone: bool, *, args: argparse.Namespace) -> bool:
    name = f"{case.name}{'-alone' * alone}-{number}-{int(time.time())}"
    say(f"{name}: {case.what}")
    try:
        record = runner.run(case, number, args.out / name, alone=alone)
    except LabError as exc:
        say(f"{name}: NOT MADE: {exc}")
        return False
    harness.append(args.results, record)
    say(f"{name}: {line(record)}")
    return True


def line(record: dict[str, Any]) -> str:
    """A record for the terminal."""
    verdict, because = judge(record, CASES[record["case"]].truth())
    pauses = ", ".join(f"{rank} {row['pause']}" for rank, row in record["pauses"].items())
    return f"{verdict.upper()} {because}; pauses {pauses}; told {record['told']}"


if __name__ == "__main__":
    os.environ.setdefault("LIGHTKEEPER_COMMAND", "make netlab")
    sys.exit(main())
