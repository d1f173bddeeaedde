"""Reports of ranks as what changed since the tick before. Pure.

What is written has the names of the wire (`worker_server.wire`) and is read back by the wire's own
parser, so that a journal is checked as strictly as a WorkerServer's answer. It is not written by
the wire's writer: that one rounds, and a replay has to see the very same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final

from msgspec import to_builtins

from worker_server.wire import (
    SCHEMA,
    FlightRecord,
    GroupHead,
    Process,
    StateReport,
    StepState,
    parse_flight_record,
    parse_state,
)

_ATOMS: Final = frozenset({type(None), bool, int, float, str})


class Row:
    """The fields of one class of the wire, in order."""

    def __init__(self, kind: type, but: Sequence[str] = ()) -> None:
        self.names = tuple(one.name for one in fields(kind) if one.name not in but)
        self.of = attrgetter(*self.names)


PROCESS: Final = Row(Process)
STEP: Final = Row(StepState)
_HEAD: Final = attrgetter("name", "size", "enqueued", "completed", "op", "age_s", "inside")
_RECORDED: Final = attrgetter("started", "read_age_s")
_MORE: Final = tuple(
    one.name
    for one in fields(StateReport)
    if one.name not in ("identity", "process", "step", "heads")
)
"""Parts of a report that a newer wire has."""


def by_name(value: Any) -> Any:
    """Plain JSON types, nothing rounded and nothing left out."""
    return value if value.__class__ in _ATOMS else to_builtins(value)


def head_row(head: GroupHead) -> tuple[Any, ...]:
    """A head as a row; one of a recorder of torch's has two more places."""
    row: tuple[Any, ...] = _HEAD(head)
    return row if head.read_age_s is None else (*row, *_RECORDED(head))


def record_to_json(record: FlightRecord) -> dict[str, Any]:
    """A flight record, whole."""
    return {"schema": SCHEMA, **by_name(record)}


def record_from_json(data: Any) -> FlightRecord:
    """Inverse of `record_to_json`.

    Raises:
        WireError: it is none.
    """
    return parse_flight_record(data)


class ReportDelta:
    """One rank's reports, each as what it changed; the writer's side."""

    __slots__ = ("_heads", "_more", "_process", "_step")

    def __init__(self) -> None:
        self._process: tuple[Any, ...] | None = None
        self._step: tuple[Any, ...] | None = None
        self._heads: tuple[tuple[Any, ...], ...] = ()
        self._more: dict[str, Any] = {}

    def write(self, report: StateReport) -> dict[str, Any]:
        """What this report changes."""
        changed: dict[str, Any] = {}
        process = PROCESS.of(report.process)
        if process != self._process:
            changed["process"] = _changes(PROCESS, self._process, process)
            self._process = process
        self._write_step(report.step, changed)
        heads = tuple(map(head_row, report.heads))
        if heads != self._heads:
            changed["heads"] = _head_changes(self._heads, heads)
            self._heads = heads
        for name in _MORE:
            value = by_name(getattr(report, name))
            if name not in self._more or self._more[name] != value:
                self._more[name] = value
                changed.setdefault("more", {})[name] = value
        return changed

    def _write_step(self, state: StepState | None, changed: dict[str, Any]) -> None:
        if state is None:
            if self._step is not None:
                changed["step"] = None
                self._step = None
            return
        step = STEP.of(state)
        if self._step is None:
            changed["step"] = {n: by_name(v) for n, v in zip(STEP.names, step, strict=True)}
        elif step != self._step:
            changed["step"] = _changes(STEP, self._step, step)
        self._step = step


def _changes(row: Row, old: tuple[Any, ...] | None, new: tuple[Any, ...]) -> dict[str, Any]:
    if old is None:
        return {name: by_name(value) for name, value in zip(row.names, new, strict=True)}
    changed: dict[str, Any] = {}
    within: dict[str, Any] = {}
    for name, before, value in zip(row.names, old, new, strict=True):
        if before == value:
            continue
        if value.__class__ in _ATOMS:
            changed[name] = value
        elif isinstance(value, Mapping) and (part := map_changes(before, value)) is not None:
            within[name] = part
        else:
            changed[name] = by_name(value)
    if within:
        changed["in"] = within
    return changed


def map_changes(old: Any, new: Mapping[Any, Any]) -> dict[str, Any] | None:
    """What to put into `old` to get `new`, in the same order; None where that cannot be done.

    The order counts: sums of floats depend on it.
    """
    if not isinstance(old, Mapping) or list(old) != list(new)[: len(old)]:
        return None
    return {k: by_name(v) for k, v in new.items() if k not in old or old[k] != v}


def _head_changes(old: tuple[tuple[Any, ...], ...], new: tuple[tuple[Any, ...], ...]) -> Any:
    """All heads as rows, or place -> new row of those that changed."""
    if len(old) != len(new):
        return [list(row) for row in new]
    return {
        str(place): list(row[2:]) if row[:2] == before[:2] else list(row)
        for place, (before, row) in enumerate(zip(old, new, strict=True))
        if row != before
    }


class ReportImage:
    """One rank's reports put together again; the reader's side."""

    __slots__ = ("_heads", "_more", "_process", "_step")

    def __init__(self) -> None:
        self._process: dict[str, Any] = {}
        self._step: dict[str, Any] | None = None
        self._heads: list[list[Any]] = []
        self._more: dict[str, Any] = {}

    def read(self, changed: Any, identity: Mapping[str, Any]) -> StateReport:
        """The report that `ReportDelta.write` was given.

        Raises:
            WireError: what comes out is no report.
            LookupError, TypeError, ValueError, AttributeError: not written by `ReportDelta`.
        """
        if "process" in changed:
            _apply(self._process, changed["process"])
        if "step" in changed:
            step = changed["step"]
            if step is None:
                self._step = None
            else:
                self._step = {} if self._step is None else self._step
                _apply(self._step, step)
        if "heads" in changed:
            self._read_heads(changed["heads"])
        self._more.update(changed.get("more", {}))
        plain: dict[str, Any] = {
            "schema": SCHEMA,
            "identity": identity,
            "process": self._process,
            "step": self._step,
            "heads": [_wire_head(row) for row in self._heads],
            **self._more,
        }
        return parse_state(plain)

    def _read_heads(self, told: Any) -> None:
        if isinstance(told, list):
            self._heads = [list(row) for row in told]
            return
        for place, row in told.items():
            held = self._heads[int(place)]
            held[0 if isinstance(row[0], str) else 2 :] = row


def _apply(image: dict[str, Any], changed: Mapping[str, Any]) -> None:
    for name, value in changed.items():
        if name == "in":
            for inner, part in value.items():
                image[inner].update(part)
        else:
            image[name] = value


def _wire_head(row: list[Any]) -> list[Any]:
    """From this module's row to the wire's, which tells what is unfinished."""
    name, size, enqueued, completed, *rest = row
    return [name, size, enqueued, enqueued - completed, *rest]
