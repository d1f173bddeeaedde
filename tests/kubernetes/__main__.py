"""`python -m tests.kubernetes`: the examples on a real Kubernetes, and what is done to them."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from experiments import harness
from experiments.harness import say
from tests.kubernetes import lab, page, runner
from tests.kubernetes.job import Job
from tests.kubernetes.lab import LabError
from tests.kubernetes.scenarios import SCENARIOS, Scenario


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.kubernetes", description=__doc__)
    add = top.add_argument
    add("command", choices=("all", "list", "up", "job", "run", "down"), nargs="?", default="all",
        help="all: up, run, down (default); job: a job to look at")  # fmt: skip
    add("scenarios", nargs="*", metavar="NAME", help="names, or patterns of names (default: all)")
    add("--label", default="now", help="what this code is called on the page (now)")
    add("--resume", action="store_true", help="leave out those of which there are results")
    add("--folder", type=Path, default=Path("/tmp/kubernetes"), help="evidence of each run")
    add("--out", type=Path, default=Path("evidence/kubernetes.jsonl"), metavar="FILE")
    add("--page", type=Path, default=Path("evidence/kubernetes.md"), metavar="FILE")
    add("--page-only", action="store_true", help="write the page from the results, run nothing")
    return top


def chosen(words: Sequence[str]) -> list[Scenario]:
    """Scenarios by exact name, else by a pattern of the whole name."""
    return [
        scenario for name, scenario in SCENARIOS.items()
        if not words or name in words
        or any(word not in SCENARIOS and re.fullmatch(word, name) for word in words)
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 when every run was made, whatever came of it; 3: no lab here."""
    harness.begin("tests.kubernetes", arguments)
    args = parser().parse_args(arguments)
    if args.page_only:
        page.write(args.page, args.out)
        return 0
    if args.command == "list":
        for scenario in SCENARIOS.values():
            print(f"{scenario.name:24} {scenario.what}")
        return 0
    if missing := lab.why_not():
        print("\n".join(["no lab here; missing:", *(f"  {what}" for what in missing)]),
              file=sys.stderr)  # fmt: skip
        return 3
    if args.command == "down":
        lab.down()
        return 0
    try:
        lab.up()
        if args.command == "job":
            Job(0.1).start()
        return 0 if args.command in ("up", "job") else _run(args)
    finally:
        if args.command == "all":
            lab.down()


def _run(args: argparse.Namespace) -> int:
    done = {row["key"] for row in harness.read(args.out)} if args.resume else set()
    made = True
    for scenario in chosen(args.scenarios):
        if f"{scenario.name}@{args.label}" in done:
            continue
        say(f"{scenario.name}: {scenario.what}")
        folder = args.folder / f"{scenario.name}-{args.label}-{int(time.time())}"
        try:
            row = runner.run(scenario, args.label, folder)
        except LabError as exc:
            say(f"   NOT MADE: {exc}")
            made = False
            continue
        versions = {"torch": importlib.metadata.version("torch")}
        harness.append(args.out, {**row, **versions})
        say(f"   {'; '.join(row['missed']) or 'good'}")
        page.write(args.page, args.out)
    return 0 if made else 1


if __name__ == "__main__":
    os.environ.setdefault("LIGHTKEEPER_COMMAND", "make kubernetes")
    sys.exit(main())
