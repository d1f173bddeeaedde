"""`lightkeeper stragglers`: from recorded timings to the slow rank."""

from __future__ import annotations

import json
from pathlib import Path

import click

from monitor.commands.command import DONE, FAILED, FILE, CommandError, as_json, command, option
from monitor.commands.offline import (
    CannotTellError,
    Judging,
    Progress,
    composed,
    confined,
    deadline,
    reading,
    say,
    shown,
)
from monitor.records.slow import judge
from monitor.records.timings import Sizes, TableError, differences, load, read_sizes
from monitor.show.report import no_answer
from monitor.show.straggler_report import body, print_report
from monitor.show.wording import clean


@command(cls=Judging)
@click.argument("trace", type=FILE)
@option("--meta", type=FILE, metavar="FILE",
        help="the job's sizes, YAML: dp_size, pp_size, tp_size, world_size")  # fmt: skip
@as_json
@deadline("ten million operations as CSV take 90")
def stragglers(*, trace: Path, meta: Path | None, as_json: bool, deadline: float) -> int:
    """Who slows a job, from a table of its operations' timings.

    what to give it:
      A table of a job's operations, parquet or CSV with a line of names: one row an operation.
        rank, stage, step   global rank, its pipeline stage, the training step
        optype              forward-compute, backward-compute, forward-send, forward-recv,
                            backward-send, backward-recv, grads-reduce-scatter,
                            params-all-gather ...
        duration            seconds
        dp_rank, mb_id, mc, seq_id, start_ts   data-parallel rank, microbatch, model chunk, place
                            among its type, start in seconds; without them it says what is
                            missing
      Rows may be in any order and some may be missing; clocks of ranks need not agree.

    how it judges:
      A rank is compared with the other ranks of its own stage, never with other stages, by the
      median over its microbatches in a step. Long sequences, garbage collection and a heavy last
      stage are no faults; a rank that is slow in far more steps than its peers is named.
      docs/offline.md has more.

    examples:
      lightkeeper stragglers trace.parquet                     who slows my job?
      lightkeeper stragglers trace.csv --meta meta.yaml        checked against dp_size, pp_size ...
      lightkeeper stragglers trace.parquet --format json | jq .culprits

    exit status:
      0  no straggler found      3  cannot tell: a limit was reached
      1  a fault found           70 a fault of lightkeeper itself
      2  no usable input
    """
    try:
        with reading() as progress:
            status, told = confined(
                lambda tell: _judge(trace, meta, tell, as_json=as_json),
                deadline_s=deadline, progress=progress,
            )  # fmt: skip
    except CannotTellError as exc:
        if not as_json:
            why = f"cannot tell: {exc.reason}; nobody is judged on a part of a table"
            raise CommandError(why, exc.exit_code) from exc
        say(json.dumps(no_answer(exc.reason, 0, 1), indent=2) + "\n")
        return exc.exit_code
    say(told)
    return status


def _judge(trace: Path, meta: Path | None, progress: Progress, *, as_json: bool) -> tuple[int, str]:
    """The exit status and the report."""
    sizes = Sizes() if meta is None else _sizes(meta)
    try:
        table = load(trace, progress)
        found = judge(table)
    except TableError as exc:
        raise CommandError(f"{shown(trace)}: {clean(str(exc), 500)}") from exc
    notes = (*found.notes, *differences(table, sizes))
    said = composed(
        as_json=as_json,
        body=lambda: body(table, found, sizes, notes),
        text=lambda console: print_report(console, table, found, sizes, notes),
    )
    return FAILED if found.verdicts else DONE, said


def _sizes(path: Path) -> Sizes:
    try:
        return read_sizes(path)
    except TableError as exc:
        raise CommandError(f"{shown(path)}: {clean(str(exc), 500)}") from exc
