"""From the types to plain JSON: short where it is polled every second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
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
    RingEntry,
    StateReport,
    StepLog,
    StepRow,
    Took,
    expected_committed_step,
)

Answer = StateReport | StepLog | FlightRecord | LastWords | HostReport | Registration


def to_json(value: Answer) -> dict[str, Any]:
    """Plain JSON types with `"schema"`; what is None is left out.

    The state of a rank with 8 groups has to fit into 1 KiB: group heads travel as rows
    `[name, size, enqueued, unfinished, op, age_s]` (and `inside`, where it is neither the last one
    entered nor, with nothing unfinished, none; by a recorder of torch's always, with `started` and
    `read_age_s`), durations are cut to milliseconds (in
    heads to ten of them, in `times` to microseconds), and flags that have their usual value are
    left out, as is `committed_step` where it is the one to be expected. Other answers carry
    microseconds.
    """
    match value:
        case StateReport():
            return {"schema": SCHEMA, **_state_json(value)}
        case StepLog():
            return {"schema": SCHEMA, **_object(value, 6, but=("rows",)),
                    "rows": [_step_row(row) for row in value.rows]}  # fmt: skip
        case HostReport():
            entries = [_host_entry(entry) for entry in value.entries]
            return {"schema": SCHEMA, "host": value.host, "entries": entries}
        case FlightRecord():
            plain = {"schema": SCHEMA, **_object(value, 6, but=("ring", "torch", "recorders"))}
            plain["ring"] = [_entry(entry) for entry in value.ring]
            if value.torch is not None:
                plain["torch"] = value.torch
            plain["recorders"] = {
                name: {**_object(one, 6, but=("record",)), "record": one.record}
                for name, one in value.recorders.items()
            }
            return plain
        case _:
            return {"schema": SCHEMA, **_object(value, 6)}


def _host_entry(entry: HostEntry) -> dict[str, Any]:
    row = {"rank": entry.rank, "url": entry.url, "error": entry.error}
    plain = {key: value for key, value in row.items() if value is not None}
    return plain if entry.report is None else {**plain, "report": _state_json(entry.report)}


def _step_row(row: StepRow) -> list[Any]:
    """Rows of a thousand steps are read every second: no keys but the phases'."""
    return [row.attempt, row.step, int(row.committed), round(row.end_age_s, 6),
            round(row.duration_s, 6), _plain(row.seconds, 6)]  # fmt: skip


def _state_json(value: StateReport) -> dict[str, Any]:
    plain = _object(value, 3, but=("heads",))
    plain["heads"] = [_head_row(head) for head in value.heads]
    if not value.unhooked:
        del plain["unhooked"]
    if value.step is not None:
        step = plain["step"]
        for key, usual in _USUAL.items():
            if step[key] == usual:
                del step[key]
        if value.step.committed_step == expected_committed_step(value.step):
            step.pop("committed_step", None)
        elif value.step.committed_step is None:  # said, else the expected one would be taken for it
            step["committed_step"] = None
        if value.step.times:
            step["times"] = {name: _took_row(took) for name, took in value.step.times.items()}
        if value.step.loss is not None:  # a small loss keeps its digits
            step["loss"] = float(f"{value.step.loss:.6g}")
    return plain


def _took_row(took: Took) -> list[Any]:
    """In microseconds: a toy's state is staged within some; without bytes where there are none."""
    row = [took.done, round(took.sum_s, 6), round(took.last_s, 6)]
    return [*row, took.sum_bytes, took.last_bytes] if took.sum_bytes else row


_SCALARS: Final = frozenset({str, int, bool, type(None)})
_ENTRY_NAMES: Final = tuple(one.name for one in fields(RingEntry))
_USUAL: Final = {
    "healing": False,
    "errored": False,
    "loss_finite": True,
    "commit_failures": 0,
    "tags": [],
    "counters": {},
    "source": SOURCE_REPORTER,
    "times": {},
    "gradients_watched": False,
}


def _object(value: Any, digits: int, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a dataclass holds, without `but`. (`asdict` takes ten times as long: it copies deeply
    whatever it meets.)
    """
    names = (one.name for one in fields(value) if one.name not in but)
    pairs = ((name, getattr(value, name)) for name in names)
    return {
        name: _plain(item, digits)
        for name, item in pairs
        if item is not None and (item or name != "place")
    }


def _plain(value: Any, digits: int) -> Any:
    if value.__class__ in _SCALARS:
        return value
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, Mapping):
        return {key: _plain(item, digits) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item, digits) for item in value]
    return _object(value, digits) if is_dataclass(value) else value


def _entry(entry: RingEntry) -> dict[str, Any]:
    """A thousand of them come at once: nothing in it is looked into but its floats."""
    plain = {}
    for name in _ENTRY_NAMES:
        value = getattr(entry, name)
        if value is not None:
            plain[name] = round(value, 6) if value.__class__ is float else value
    return plain


def _head_row(head: GroupHead) -> list[Any]:
    unfinished = head.enqueued - head.completed
    row = [head.name, head.size, head.enqueued, unfinished, head.op, round(head.age_s, 2)]
    usual = head.enqueued if unfinished else 0
    if head.read_age_s is not None:
        return [*row, head.inside, head.started, round(head.read_age_s, 2)]
    return row if head.inside == usual else [*row, head.inside]
