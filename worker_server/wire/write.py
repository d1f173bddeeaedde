"""From the types to plain JSON: short where it is polled every second."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, Final

from msgspec import to_builtins

from worker_server.wire.messages import (
    SCHEMA,
    BackendRecord,
    FlightRecord,
    GroupHead,
    HostEntry,
    HostReport,
    Identity,
    LastWords,
    Registration,
    RingEntry,
    StateReport,
    StepLog,
    StepRow,
    StepState,
    Took,
    expected_committed_step,
)

Answer = StateReport | StepLog | FlightRecord | LastWords | HostReport | Registration

_ENTRY_KEYS: Final = tuple(one.name for one in fields(RingEntry))
_EXACT: Final = frozenset({str, int, bool})
_BARE: Final = StepState(0, 0, 0, "", 0.0, 0)
LEFT_OUT: Final[dict[type, tuple[str, ...]]] = {
    Identity: ("place",),
    StateReport: ("unhooked",),
    StepState: ("healing", "errored", "loss_finite", "commit_failures", "tags", "counters",
                "source", "times", "gradients_watched"),
}  # fmt: skip
"""What is left out where it is as usual, beside all that is None."""


def to_json(value: Answer) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; what is None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB: group heads travel as `HeadCells`,
    durations are cut to milliseconds (in heads to ten of them, in `times` to microseconds), and
    flags that have their usual value are left out, as is `committed_step` where it is the one to
    be expected. Other answers carry microseconds, and torch's records as they are.
    """
    match value:
        case StateReport():
            plain = _state(value)
        case StepLog():
            plain = _plain(replace(value, rows=()))
            plain["rows"] = [_step_row(row) for row in value.rows]
        case HostReport():
            plain = {"host": value.host, "entries": [_host_entry(one) for one in value.entries]}
        case FlightRecord():
            plain = _plain(replace(value, ring=(), torch=None, recorders={}))
            plain["ring"] = [_entry(entry) for entry in value.ring]
            if value.torch is not None:
                plain["torch"] = value.torch
            plain["recorders"] = {name: _recorder(one) for name, one in value.recorders.items()}
        case _:
            plain = _plain(value)
    return {"schema": SCHEMA, **plain}


def _plain(value: Any, digits: int = 6) -> dict[str, Any]:
    plain: dict[str, Any] = _rounded(to_builtins(value), digits)
    if "identity" in plain and not plain["identity"]["place"]:
        del plain["identity"]["place"]
    return plain


def _rounded(value: Any, digits: int) -> Any:
    if isinstance(value, dict):
        return {
            key: item if item.__class__ in _EXACT else _rounded(item, digits)
            for key, item in value.items()
            if item is not None
        }
    if isinstance(value, list | tuple):
        return [item if item.__class__ in _EXACT else _rounded(item, digits) for item in value]
    return round(value, digits) if isinstance(value, float) else value


def _host_entry(entry: HostEntry) -> dict[str, Any]:
    plain = _plain(replace(entry, report=None))
    return plain if entry.report is None else {**plain, "report": _state(entry.report)}


def _entry(entry: RingEntry) -> dict[str, Any]:
    """A thousand of them come at once: nothing in it is looked into but its floats."""
    return {
        key: round(item, 6) if item.__class__ is float else item
        for key in _ENTRY_KEYS
        if (item := getattr(entry, key)) is not None
    }


def _recorder(record: BackendRecord) -> dict[str, Any]:
    plain = _plain(replace(record, record=None))
    return plain if record.record is None else {**plain, "record": record.record}


def _state(value: StateReport) -> dict[str, Any]:
    plain = _plain(value, 3)
    plain["heads"] = [_head_row(head) for head in value.heads]
    if not value.unhooked:
        del plain["unhooked"]
    if value.step is not None:
        _shorten(plain["step"], value.step)
    return plain


def _shorten(plain: dict[str, Any], step: StepState) -> None:
    """What is as usual is left out of it, and what is small keeps its digits."""
    for name in LEFT_OUT[StepState]:
        if getattr(step, name) == getattr(_BARE, name):
            del plain[name]
    if step.committed_step == expected_committed_step(step):
        plain.pop("committed_step", None)
    elif step.committed_step is None:  # said, else the expected one would be taken for it
        plain["committed_step"] = None
    if step.times:
        plain["times"] = {name: _took_row(took) for name, took in step.times.items()}
    if step.loss is not None:
        plain["loss"] = float(f"{step.loss:.6g}")


def _took_row(took: Took) -> list[Any]:
    """In microseconds: a toy's state is staged within some; without bytes where there are none."""
    return list(_rounded(took if took.sum_bytes else took[:3], 6))


def _step_row(row: StepRow) -> list[Any]:
    return [row.attempt, row.step, int(row.committed), round(row.end_age_s, 6),
            round(row.duration_s, 6), _rounded(row.seconds, 6)]  # fmt: skip


def _head_row(head: GroupHead) -> list[Any]:
    unfinished = head.enqueued - head.completed
    row = [head.name, head.size, head.enqueued, unfinished, head.op, round(head.age_s, 2)]
    if head.read_age_s is not None:
        return [*row, head.inside, head.started, round(head.read_age_s, 2)]
    usual = head.enqueued if unfinished else 0
    return row if head.inside == usual else [*row, head.inside]
