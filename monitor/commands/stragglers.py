"""`lightkeeper stragglers`: from recorded timings to the slow rank."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.tables import print_json
from monitor.reports.stragglers import body, print_report
from monitor.reports.wording import clean
from monitor.stragglers.finding import Report
from monitor.stragglers.judge import judge
from monitor.stragglers.table import Table, TableError
from monitor.traces.load import load
from monitor.traces.sizes import Sizes, differences
from monitor.traces.sizes import read as read_sizes

BROKEN: Final = 70
"""A fault of ours (sysexits.h: EX_SOFTWARE): never 1, which says that the job has one."""
INTERRUPTED: Final = 130

EXAMPLES = """\
what to give it:
  A table of a job's operations, parquet or CSV with a line of names: one row an operation.
    rank, stage, step   global rank, its pipeline stage, the training step
    optype              forward-compute, backward-compute, forward-send, forward-recv,
                        backward-send, backward-recv, grads-reduce-scatter, params-all-gather ...
    duration            seconds
    dp_rank, mb_id, mc, seq_id, start_ts   data-parallel rank, microbatch, model chunk, place among
                        its type, start in seconds; without them it says what it cannot tell
  Rows may be in any order and some may be missing; clocks of ranks need not agree.

how it judges:
  A rank is compared with the other ranks of its own stage, never with other stages, by the median
  over its microbatches in a step. Long sequences, garbage collection and a heavy last stage pass;
  who is slow in far more steps than its peers is named. docs/stragglers.md tells how.

examples:
  lightkeeper stragglers trace.parquet                          who slows my job?
  lightkeeper stragglers trace.csv --meta meta.yaml             checked against dp_size, pp_size ...
  lightkeeper stragglers trace.parquet --format json | jq .culprits

exit status:
  0  no straggler found      2  no usable input
  1  a fault found           70 a fault of lightkeeper itself
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Path and options of `stragglers`."""
    parser.add_argument("trace", type=Path, metavar="TRACE", help="table: parquet or CSV")
    parser.add_argument(
        "--meta",
        type=Path,
        metavar="FILE",
        help="the job's sizes, YAML: dp_size, pp_size, tp_size, world_size",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text for people (default), json for programs",
    )


def run(args: argparse.Namespace) -> int:
    """Load, judge, report; 1 if there is a fault."""
    try:
        return _run(args)
    except (CommandError, BrokenPipeError):
        raise
    except KeyboardInterrupt:
        return INTERRUPTED
    except MemoryError as exc:
        raise CommandError(
            f"{_shown(args.trace)}: too large for this machine's memory", USAGE
        ) from exc
    except Exception:  # noqa: BLE001 - Python's own status for a crash is 1: "fault found"
        traceback.print_exc()
        sys.stderr.write("lightkeeper: a fault of lightkeeper itself, please report it\n")
        return BROKEN


def _run(args: argparse.Namespace) -> int:
    sizes = Sizes() if args.meta is None else _sizes(args.meta)
    with _progress() as (tell_read, tell_judge):
        try:
            table = load(args.trace, tell_read)
            report = judge(table, tell_judge)
        except TableError as exc:
            raise CommandError(f"{_shown(args.trace)}: {clean(str(exc), 500)}", USAGE) from exc
    _show(table, report, sizes, as_json=args.format == "json")
    return FAILED if report.verdicts else DONE


def _sizes(path: Path) -> Sizes:
    try:
        return read_sizes(path)
    except TableError as exc:
        raise CommandError(f"{_shown(path)}: {clean(str(exc), 500)}", USAGE) from exc


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    """A bar on stderr while it is a terminal; gone when done."""
    if not sys.stderr.isatty():
        yield (lambda _done, _total: None), (lambda _what: None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield (
            lambda done, total: bar.update(task, completed=done, total=total),
            lambda what: bar.update(task, description=what, total=None),
        )


def _show(table: Table, report: Report, sizes: Sizes, *, as_json: bool) -> None:
    """Print it. A closed pipe (`| head`) is no failure and does not change the exit status."""
    notes = (*report.notes, *differences(table, sizes))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # an ASCII terminal shows what it can
    try:
        if as_json:
            print_json(body(table, report, sizes, notes))
        else:
            terminal = sys.stdout.isatty()
            print_report(Console(width=None if terminal else 160), table, report, sizes, notes)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _shown(path: Path) -> str:
    return clean(str(path), 300)
