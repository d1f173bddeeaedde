"""`lightkeeper stragglers`: from recorded timings to the slow rank."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from monitor.commands.confined import Progress, confined
from monitor.commands.errors import DONE, FAILED, USAGE, CannotTellError, CommandError
from monitor.commands.offline import (
    add_deadline,
    add_format,
    composed,
    judging,
    reading_bar,
    say,
    shown,
)
from monitor.records.slow import judge
from monitor.records.timings import Sizes, TableError, differences, load, read_sizes
from monitor.show.report import no_answer
from monitor.show.straggler_report import body, print_report
from monitor.show.wording import clean

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
  0  no straggler found      3  cannot tell: a limit was reached
  1  a fault found           70 a fault of lightkeeper itself
  2  no usable input
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
    add_deadline(parser, "ten million operations as CSV take 90")


@judging
def run(args: argparse.Namespace) -> int:
    """Load, judge, report; 1 if there is a fault."""
    try:
        with _progress() as progress:
            status, told = confined(
                lambda tell: _judge(args, tell), deadline_s=args.deadline, progress=progress
            )
    except CannotTellError as exc:
        if args.format != "json":
            why = f"cannot tell: {exc.reason}; nobody is judged on a part of a table"
            raise CommandError(why, exc.status) from exc
        say(json.dumps(no_answer(exc.reason, 0, 1), indent=2) + "\n")
        return exc.status
    say(told)
    return status


def _judge(args: argparse.Namespace, progress: Progress) -> tuple[int, str]:
    """The exit status and the report."""
    sizes = Sizes() if args.meta is None else _sizes(args.meta)
    try:
        table = load(args.trace, progress)
        found = judge(table)
    except TableError as exc:
        raise CommandError(f"{shown(args.trace)}: {clean(str(exc), 500)}", USAGE) from exc
    notes = (*found.notes, *differences(table, sizes))
    said = composed(
        as_json=args.format == "json",
        body=lambda: body(table, found, sizes, notes),
        text=lambda console: print_report(console, table, found, sizes, notes),
    )
    return FAILED if found.verdicts else DONE, said


def _sizes(path: Path) -> Sizes:
    try:
        return read_sizes(path)
    except TableError as exc:
        raise CommandError(f"{shown(path)}: {clean(str(exc), 500)}", USAGE) from exc


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    columns = (TextColumn("reading"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with reading_bar(*columns) as update:
        yield update and (lambda done, total: update(completed=done, total=total))
