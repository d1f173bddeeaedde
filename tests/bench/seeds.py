"""Figures of the seeds on this machine: staging, loading, reconfiguring, whole recoveries.

`python -m tests.bench.seeds` prints them; `--out evidence/figures.jsonl --page
evidence/figures.md` keeps them and writes the page and its plot.
`--recoveries N` also runs N faults of each kind on real
fleets (some two minutes each). One at a time: nothing here runs beside something else of ours.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final

SIZES_MB: Final = (10, 30, 100, 300, 1000)
GROUPS: Final = (2, 4, 8)
LARGE_BYTES: Final = 500_000_000
"""Tried less often."""
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="tests.bench.seeds", description=__doc__)
    add = top.add_argument
    add("--sizes", type=int, nargs="*", default=list(SIZES_MB), metavar="MB", help="of a state")
    add("--groups", type=int, nargs="*", default=list(GROUPS), metavar="N", help="replica groups")
    add("--tries", type=int, default=7, metavar="N", help="of each (7; of 500 MB and more 3)")
    add("--recoveries", type=int, default=0, metavar="N", help="faults of each kind (0)")
    add("--out", type=Path, metavar="FILE", help="keep the rows: those made again are replaced")
    add("--page", type=Path, metavar="FILE", help="write the page from the rows kept")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for."""
    args = parser().parse_args(arguments)
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    logging.disable(logging.CRITICAL)
    for row in _rows(args):
        print(told(row), flush=True)
        if args.out is not None:
            keep(args.out, row)
    if args.page is not None:
        from tests.bench import figures

        figures.write(args.page, args.out)
    return 0


def _rows(args: argparse.Namespace) -> Iterator[Row]:
    from tests.bench import healing, reconfiguring

    for size in args.sizes:
        whole = 4 * healing.TENSORS
        nbytes = size * 1_000_000 // whole * whole
        tries = min(3, args.tries) if nbytes >= LARGE_BYTES else args.tries
        for row in healing.measure(nbytes, tries):
            yield {**row, "size_mb": size, **conditions()}
    for groups in args.groups:
        yield {**reconfiguring.measure(groups, 3 * args.tries), **conditions()}
    if args.recoveries:
        from tests.bench import recovering

        for row in recovering.measure(args.recoveries):
            yield {**row, **conditions()}


def conditions() -> Row:
    """Under which a row was made."""
    code = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "kernel": platform.release(),
        "torch": version("torch"),
        "torchft": version("torchft"),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
        "code": code.stdout.strip(),
    }


def told(row: Row) -> str:
    """One line."""
    if row["what"] == "recovery":
        return json.dumps(row)
    size = f"{row['size_mb']} MB" if "size_mb" in row else f"{row['groups']} groups"
    took_s, yard_s = median(row["took_s"]), median(row["yard_s"])
    return (
        f"{row['what']:12} {size:>9}: median {took_s * 1e3:9.2f} ms "
        f"(worst {max(row['took_s']) * 1e3:9.2f}), {took_s / yard_s:5.2f} x {row['yard']}"
        f" ({yard_s * 1e3:.2f} ms), load {row['load']}, n={len(row['took_s'])}"
    )


def key(row: Row) -> tuple[Any, ...]:
    """What a row measures: made again, it replaces the former one."""
    return row["what"], row.get("size_mb"), row.get("groups"), row.get("fault"), row.get("number")


def read(path: Path) -> list[Row]:
    """All rows kept."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def keep(path: Path, row: Row) -> None:
    """Keep a row in its place."""
    rows = {key(kept): kept for kept in read(path)}
    rows[key(row)] = row
    path.write_text("".join(json.dumps(kept) + "\n" for kept in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
