"""`make fuzz`: explorations of whatever comes over a wire or in a file, one after the other.

    python -m tests.fuzz [wire|registration|gate|dumps|kernel_log ...] [--minutes M] [--seed S]

Each is a module of this folder with `play(dice)`, one game; `tests.fuzz.games` plays them. The same
seed explores the same. Exit status 1: something was found. `tests.fuzz.guided` is another way, for
bytes of flight records alone.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from typing import Final

from tests.fuzz.games import explore

EVERY: Final = ("wire", "registration", "gate", "dumps", "kernel_log")
SLICE_S: Final = 60.0
"""Then the next one's turn, with another seed, round and round."""


def main(arguments: list[str] | None = None) -> int:
    """Explore until the time is over."""
    top = argparse.ArgumentParser(prog="tests.fuzz", description=(__doc__ or "").split("\n")[0])
    top.add_argument("what", nargs="*", metavar="|".join(EVERY), help="all, unless told")
    top.add_argument("--minutes", type=float, default=10.0, help="in all")
    top.add_argument("--seed", type=int, default=None)
    args = top.parse_args(arguments)
    if unknown := set(args.what) - set(EVERY):
        top.error(f"no such exploration: {', '.join(sorted(unknown))}")
    what = args.what or EVERY
    seed = random.randrange(1 << 31) if args.seed is None else args.seed
    print(f"seed {seed}: {', '.join(what)}, {args.minutes:g} minutes in all", flush=True)
    slice_s = min(SLICE_S, 60 * args.minutes / len(what))
    end_s, turn, total = time.monotonic() + 60 * args.minutes, 0, 0
    while (left_s := end_s - time.monotonic()) > 1.0:
        name = what[turn % len(what)]
        number = seed + turn // len(what)
        play = importlib.import_module(f"tests.fuzz.{name}").play
        findings = explore(play, number, min(slice_s, left_s))
        counted = f"{len(findings)} findings" if findings else "nothing"
        left_s = max(0.0, end_s - time.monotonic())
        print(f"{name} --seed {number}: {counted}, {left_s / 60:.1f} minutes left", flush=True)
        for sentence in findings:
            print(f"  {sentence}", flush=True)
        total += len(findings)
        turn += 1
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
