"""`lightkeeper stragglers`: from recorded timings to the slow rank."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.offline import add_format, judging, reading_bar, show, shown
from monitor.reports.stragglers import body, print_report
from monitor.reports.wording import clean
from monitor.stragglers.judge import judge
from monitor.stragglers.table import TableError
from monitor.traces.load import load
from monitor.traces.sizes import Sizes, differences
from monitor.traces.sizes import read as read_sizes

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
    add_format(parser)


@judging
def run(args: argparse.Namespace) -> int:
    """Load, judge, report; 1 if there is a fault."""
    try:
        return _run(args)
    except MemoryError as exc:
        raise CommandError(
            f"{shown(args.trace)}: too large for this machine's memory", USAGE
        ) from exc


def _run(args: argparse.Namespace) -> int:
    sizes = Sizes() if args.meta is None else _sizes(args.meta)
    with _progress() as (tell_read, tell_judge):
        try:
            table = load(args.trace, tell_read)
            report = judge(table, tell_judge)
        except TableError as exc:
            raise CommandError(f"{shown(args.trace)}: {clean(str(exc), 500)}", USAGE) from exc
    notes = (*report.notes, *differences(table, sizes))
    show(
        as_json=args.format == "json",
        body=lambda: body(table, report, sizes, notes),
        text=lambda console: print_report(console, table, report, sizes, notes),
    )
    return FAILED if report.verdicts else DONE


def _sizes(path: Path) -> Sizes:
    try:
        return read_sizes(path)
    except TableError as exc:
        raise CommandError(f"{shown(path)}: {clean(str(exc), 500)}", USAGE) from exc


@contextlib.contextmanager
def _progress() -> Iterator[tuple[Callable[[int, int], None], Callable[[str], None]]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with reading_bar(*columns) as update:
        if update is None:
            yield (lambda _done, _total: None), (lambda _what: None)
        else:
            yield (
                lambda done, total: update(completed=done, total=total),
                lambda what: update(description=what, total=None),
            )
