"""`python -m tests.field`: bugs as people write them, on real jobs; evidence/field.md."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import harness
from tests.field import judge, page
from tests.field.cases import CASES, Case
from tests.field.runner import ENDING, CaseError, run
from tests.harness import say


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = harness.options("tests.field", __doc__, "field")
    add = top.add_argument
    add(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="this case, or all whose name or family matches; repeatable",
    )
    add("--runs", type=int, default=3, metavar="N", help="runs of each case (3)")
    add("--lanes", type=int, default=2, metavar="N", help="jobs at once (2, for two cores)")
    add("--resume", action="store_true", help="go on with FILE: do only what is not in it")
    add(
        "--again",
        action="append",
        default=[],
        metavar="VERDICT",
        help="with --resume: run again what got this verdict; repeatable",
    )
    top.set_defaults(folder=Path("/tmp/field"))
    return top


def chosen(only: Sequence[str]) -> list[Case]:
    """Cases by exact name, else by pattern of name or family; in the order of the words."""
    cases = {
        case.name: case
        for word in only or [""]
        for case in CASES.values()
        if case.name == word
        or (word not in CASES and re.search(word, f"{case.name} {case.family}"))
    }
    return list(cases.values())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every run was made (whatever the monitor said), 1 when not."""
    top = parser()
    args = top.parse_args(arguments)
    cases = chosen(args.only)
    if args.list:
        for case in cases:
            print(f"{case.name:28} {case.shape:8} {case.script:14} {case.what}")
        return 0
    if args.page_only:
        page.write(args.page, args.out)
        return 0
    if args.out.exists() and not args.resume:
        top.error(f"{args.out} exists: --resume to go on with it, or name another --out")
    done = {
        line["key"]
        for line in harness.read(args.out)
        if judge.judge(line)[0] not in (*args.again, "invalid")
    }  # fmt: skip
    left = [
        (case, number) for number in range(args.runs) for case in cases
        if f"{case.name}#{number}" not in done
    ]  # fmt: skip
    say(f"{len(left)} runs to make, {args.lanes} at once")
    for asked in (signal.SIGTERM, signal.SIGINT):  # a shell that starts us with & has it ignored
        signal.signal(asked, signal.default_int_handler)
    made = True
    with ThreadPoolExecutor(args.lanes) as lanes:
        try:
            for ok in lanes.map(lambda case_and_number: _one(*case_and_number, args=args), left):
                made &= ok
        except KeyboardInterrupt:
            ENDING.set()
            lanes.shutdown(cancel_futures=True)
            made = False
    page.write(args.page, args.out)
    return 0 if made else 1


def _one(case: Case, number: int, *, args: argparse.Namespace) -> bool:
    if ENDING.is_set():
        return False
    folder = args.folder / f"{case.name}-{number}-{int(time.time())}"
    for attempt in range(2):
        if ENDING.is_set():
            break
        try:
            record = run(case, number, folder.with_name(f"{folder.name}{'b' * attempt}"))
        except CaseError as exc:
            say(f"{case.name}#{number}: NOT MADE: {exc}")
            continue
        harness.append(args.out, record)
        say(line(record))
        if record["verdict"] != judge.Verdict.INVALID:
            return True
    return False


def line(record: dict[str, Any]) -> str:
    """A record for the terminal."""
    cause = {True: "", False: ", CAUSE NOT SAID", None: ""}[judge.said(record)]
    out = ", ".join(f"{group} {at_s} s" for group, at_s in record["evicted"].items())
    return (
        f"{record['key']}: {record['verdict'].upper()} {record['because']}{cause}; firing "
        f"{record['to_firing']}, evicted {out or '-'}, trains {record['to_commit']} "
        f"({record['took_s']} s)"
    )


if __name__ == "__main__":
    os.environ.setdefault("LIGHTKEEPER_COMMAND", "make field")
    sys.exit(main())
