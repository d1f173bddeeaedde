"""`lightkeeper stragglers`: the slow rank from recorded timings."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from lightkeeper.monitor.commands.command import DONE, FAILED, FILE, CommandError, as_json, command
from lightkeeper.monitor.commands.offline import (
    Judging,
    Progress,
    composed,
    deadline,
    print_judgement,
    print_verdicts,
    shown_path,
)
from lightkeeper.monitor.model.units import clean, counted, sentence
from lightkeeper.monitor.offline.slow import SlowKind, SlowReport, SlowVerdict, judge, named_ranks
from lightkeeper.monitor.offline.timings import TableError, TimingTable, load_table
from lightkeeper.monitor.show.report import FindingWords, ReportRow, ReportTable, Role, found_line


@command(cls=Judging)
@click.argument("trace", type=FILE)
@as_json
@deadline("ten million operations take 10")
def stragglers(*, trace: Path, as_json: bool, deadline: float) -> int:
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
      lightkeeper stragglers trace.parquet --format json | jq .culprits

    exit status:
      0  no straggler found      3  cannot tell: a limit was reached
      1  a fault found           70 a fault of lightkeeper itself
      2  no usable input
    """
    work = partial(_judge, trace, as_json=as_json)
    return print_judgement(work, deadline_s=deadline, as_json=as_json)


def _judge(trace: Path, progress: Progress, *, as_json: bool) -> tuple[int, str]:
    try:
        table = load_table(trace)
        progress(1, 1)
        report = judge(table)
    except TableError as exc:
        raise CommandError(f"{shown_path(trace)}: {clean(str(exc), 500)}") from exc
    said = composed(
        as_json=as_json,
        body=lambda: body(table, report),
        text=lambda console: print_stragglers(console, table, report),
    )
    return FAILED if report.verdicts else DONE, said


# -- report ------------------------------------------------------------------------------------


SCHEMA: Final = 1
_ROWS: Final = 10
_OPS: Final = 4

KINDS: Final = {
    SlowKind.STRAGGLER: ("S1", "slower than its peers, who wait for it"),
    SlowKind.SLOW_TRANSFER: ("S2", "slow transfers"),
    SlowKind.MIXED: ("S3", "slow at work and in transfers"),
}
"""The class in ALGORITHMS.md section 0, and what the culprits are."""


def body(table: TimingTable, report: SlowReport) -> dict[str, Any]:
    """What `--format json` prints; keys may be added, not removed."""
    return {
        "schema": SCHEMA,
        "culprits": _ranks(table, report.culprits),
        "verdicts": [_verdict(table, verdict) for verdict in report.verdicts],
        "table": {
            "rows": table.rows_read,
            "rows_used": len(table),
            "ranks": len(table.ranks),
            "stages": table.stages.tolist(),
            "steps": len(table.steps),
            "first_step": int(table.steps[0]),
            "last_step": int(table.steps[-1]),
            "step_s": report.step_s,
        },
        "ranks": report.paces,
        "notes": list(report.notes),
    }


def _verdict(table: TimingTable, verdict: SlowVerdict) -> dict[str, Any]:
    return {
        "kind": verdict.kind,
        "class": KINDS[verdict.kind][0],
        "culprits": _ranks(table, verdict.culprits),
        "cannot_tell_between": [_ranks(table, side) for side in verdict.between],
        "group": None if verdict.stage is None else f"stage {verdict.stage}",
        "stage": verdict.stage,
        "dp_rank": verdict.replica,
        "confidence": verdict.confidence,
        "reason": sentence(verdict.reason),
        "evidence": verdict.evidence,
        "since_step": int(table.steps[verdict.stretch.first]),
        "until_step": int(table.steps[verdict.stretch.last]),
        "steps": {
            "slow": verdict.stretch.slow,
            "seen": verdict.stretch.seen,
            "of": len(table.steps),
        },
        "ratio": verdict.ratio,
        "ratios": verdict.by_op,
        "lost_s": verdict.lost_s,
    }


def _ranks(table: TimingTable, codes: tuple[int, ...]) -> list[int]:
    return sorted(int(rank) for rank in table.ranks[list(codes)])


def print_stragglers(console: Console, table: TimingTable, report: SlowReport) -> None:
    """The answer, the verdicts, the slowest ranks, and what limits them."""
    culprits = named_ranks(table, report.culprits) if report.culprits else ""
    unnamed = sum(not verdict.culprits for verdict in report.verdicts)
    answer = found_line("straggler", len(report.verdicts), unnamed, culprits, "the table does")
    findings = [_words(table, slow) for slow in report.verdicts]
    notes = [clean(note) for note in report.notes]
    said = answer, _read(table, report)
    print_verdicts(console, said, findings, _slowest(table, report), notes)


def _read(table: TimingTable, report: SlowReport) -> str:
    span = f"steps {table.steps[0]} to {table.steps[-1]}" if len(table.steps) > 1 else "one step"
    return (
        f"{counted(len(table), 'row')} of {counted(len(table.ranks), 'rank')} in "
        f"{counted(len(table.stages), 'stage')}, {counted(len(table.steps), 'step')} ({span}), "
        f"{report.step_s:.3g} s each"
    )


def _words(table: TimingTable, slow: SlowVerdict) -> FindingWords:
    facts = (
        ("lost", f"{slow.lost_s:.3g} s of its own beyond its peers'" if slow.culprits else ""),
        *((clean(name, 40), clean(seen)) for name, seen in slow.evidence.items()),
    )
    who = named_ranks(table, slow.culprits) if slow.culprits else "no rank accused"
    class_, what = KINDS[slow.kind]
    kind = f"{slow.kind}, {class_}"
    return FindingWords(who, what, kind, slow.confidence, slow.reason, facts)


def _slowest(table: TimingTable, report: SlowReport) -> ReportTable:
    ops = sorted({name for pace in report.paces for name in pace.ratios})[:_OPS]
    culprits = _ranks(table, report.culprits)
    rows = [
        ReportRow(
            Role.CULPRIT if pace.rank in culprits else "",
            (
                str(pace.rank),
                str(pace.stage),
                "-" if pace.dp_rank is None else str(pace.dp_rank),
                *map(_ratio, (pace.ratio, *(pace.ratios.get(name, math.nan) for name in ops))),
                f"{pace.slow_steps} of {pace.steps}",
            ),
        )
        for pace in report.paces[:_ROWS]
    ]
    title = "slowest ranks, own work against the median of the peers on their stage"
    names = (clean(name, 40) for name in ops)
    heads = ("rank", "stage", "dp rank", "ratio", *names, "slow steps")
    return ReportTable(title, heads, tuple(rows), len(report.paces[_ROWS:]))


def _ratio(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"
