"""From the types to plain JSON: short where it is polled every second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from worker_server.wire.messages import (
    SCHEMA,
    SOURCE_REPORTER,
    FlightRecord,
    GroupHead,
    HostEntry,
    HostReport,
    LastWords,
    Registration,
    StateReport,
    StepLog,
    StepRow,
)

Answer = StateReport | StepLog | FlightRecord | LastWords | HostReport | Registration


def to_json(value: Answer) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; what is None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB: group heads travel as rows
    `[name, size, enqueued, unfinished, op, age_s]` (and `inside`, where it is neither the last one
    entered nor, with nothing unfinished, none), durations are cut to milliseconds (in
    heads to ten of them), and flags that have their usual value are left out, as is
    `committed_step` where it is the one before `step`. Other answers carry microseconds.
    """
    match value:
        case StateReport():
            return {"schema": SCHEMA, **_state_json(value)}
        case StepLog():
            return {"schema": SCHEMA, **_plain(asdict(value), 6),
                    "rows": [_step_row(row) for row in value.rows]}  # fmt: skip
        case HostReport():
            entries = [_host_entry(entry) for entry in value.entries]
            return {"schema": SCHEMA, "host": value.host, "entries": entries}
        case _:
            return {"schema": SCHEMA, **_plain(asdict(value), 6)}


def _host_entry(entry: HostEntry) -> dict[str, Any]:
    row = {"rank": entry.rank, "url": entry.url, "error": entry.error}
    plain = {key: value for key, value in row.items() if value is not None}
    return plain if entry.report is None else {**plain, "report": _state_json(entry.report)}


def _step_row(row: StepRow) -> list[Any]:
    """Rows of a thousand steps are read every second: no keys but the phases'."""
    return [row.attempt, row.step, int(row.committed), round(row.end_age_s, 6),
            round(row.duration_s, 6), _plain(row.seconds, 6)]  # fmt: skip


def _state_json(value: StateReport) -> dict[str, Any]:
    plain: dict[str, Any] = _plain(asdict(value), 3)
    plain["heads"] = [_head_row(head) for head in value.heads]
    if value.step is not None:
        step = plain["step"]
        for key, usual in _USUAL.items():
            if step[key] == usual:
                del step[key]
        if value.step.commits and value.step.committed_step in (None, value.step.step - 1):
            _leave_out_committed_step(step)
        if value.step.loss is not None:  # a small loss keeps its digits
            step["loss"] = float(f"{value.step.loss:.6g}")
    return plain


def _leave_out_committed_step(step: dict[str, Any]) -> None:
    """The step before the one worked on needs no telling; that there is none then does."""
    if step.pop("committed_step", None) is None:
        step["committed_step"] = None


_USUAL: Final = {
    "healing": False,
    "errored": False,
    "loss_finite": True,
    "commit_failures": 0,
    "tags": [],
    "counters": {},
    "source": SOURCE_REPORTER,
}


def _plain(value: Any, digits: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item, digits) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) else value


def _head_row(head: GroupHead) -> list[Any]:
    unfinished = head.enqueued - head.completed
    row = [head.name, head.size, head.enqueued, unfinished, head.op, round(head.age_s, 2)]
    usual = head.enqueued if unfinished else 0
    return row if head.inside == usual else [*row, head.inside]
