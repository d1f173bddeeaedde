"""Entries of one dump, from a list of objects to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.job import NONE, Payload, State, Status
from monitor.flight_recorder.ops import (
    POINT_TO_POINT,
    closes_coalesced,
    dtype_name,
    op_name,
    peers_of,
)
from monitor.flight_recorder.record import FlightRecordError
from monitor.flight_recorder.rows import PayloadKey, Rows, payload_numbers
from monitor.flight_recorder.sites import Sites

_STATES: Final = {
    "scheduled": State.SCHEDULED,
    "started": State.STARTED,
    "completed": State.COMPLETED,
}
_LONGEST_NAME: Final = 200
_LAST_TIME: Final = 1 << 62
GroupKey = tuple[str, str, int]
"""Name, description, pg_id."""


@dataclass(frozen=True, slots=True)
class Table:
    """Entries of one dump in the order of their record ids."""

    columns: Mapping[str, NDArray[Any]]
    retired: NDArray[np.bool_]
    groups: tuple[GroupKey, ...]
    payloads: tuple[Payload, ...]
    sites: tuple[str, ...]


def read(rows: Sequence[Any] | Rows) -> Table:
    """Columns of the entries; keys that a schema does not have are filled in.

    Raises:
        FlightRecordError: a value is not what it should be.
        TypeError, ValueError, LookupError ...: likewise, found by Python first.
    """
    table = rows if isinstance(rows, Rows) else Rows(rows)
    group, groups = _number(_group_keys(table))
    payload, keys = payload_numbers(table)
    payloads = tuple(_payload(key) for key in keys)
    payload = table.spread(payload)
    of_kind = _of(payload, [_is_p2p(one) for one in payloads], np.bool_)
    p2p = table.spread(_flags(table, "is_p2p")) | of_kind
    seq = _integers(table, ("collective_seq_id", "seq_id"))
    sites = Sites()
    columns: dict[str, NDArray[Any]] = {
        "group": table.spread(group),
        "seq": np.where(p2p, _integers(table, ("p2p_seq_id", "seq_id")), seq),
        "op_id": _integers(table, ("op_id",)),
        "record": _integers(table, ("record_id", "id"), counted=True),
        "payload": payload,
        "site": table.spread(
            np.array([sites.of(frames) for frames in table.column("frames")], np.int32)
        ),
        "state": table.spread(_states(table)),
        "p2p": p2p,
        "peer": np.where(p2p, _of(payload, [_peer(one) for one in payloads], np.int32), NONE),
        "created_ns": _times(table, "time_created_ns"),
        "started_ns": _times(table, "time_discovered_started_ns"),
        "completed_ns": _times(table, "time_discovered_completed_ns"),
    }
    retired = table.spread(_flags(table, "retired"))
    record = columns["record"]
    if (record[1:] < record[:-1]).any():
        order = np.argsort(record, kind="stable")
        columns = {name: column[order] for name, column in columns.items()}
        retired = retired[order]
    return Table(columns, retired, groups, payloads, sites.texts)


def spread_coalesced(columns: Mapping[str, NDArray[Any]], payloads: Sequence[Payload]) -> None:
    """Give the parts of a coalesced operation the state and times of the whole, in place.

    NCCL records each part without events, so that it stays "scheduled", and then the whole, which
    has the state and no sizes; they share the sequence id, each part has an op_id of its own
    (FlightRecorder.hpp; torch's test_batched_send_recv). All get the op_id of the whole. Another
    whole ends the search for parts: they stand between the two.
    """
    whole = _of(columns["payload"], [closes_coalesced(p.recorded) for p in payloads], np.bool_)
    rows = np.flatnonzero(whole)
    group, seq, p2p, state = (columns[name] for name in ("group", "seq", "p2p", "state"))
    for row in rows.tolist():
        at = row - 1
        while (
            at >= 0
            and not whole[at]
            and (group[at], seq[at], p2p[at]) == (group[row], seq[row], p2p[row])
            and state[at] <= State.SCHEDULED
        ):
            for name in ("state", "started_ns", "completed_ns", "op_id"):
                columns[name][at] = columns[name][row]
            at -= 1


def close_finished_batches(
    columns: Mapping[str, NDArray[Any]],
    payloads: Sequence[Payload],
    status: Mapping[int, Status],
) -> None:
    """Mark parts of batches that are over and whose whole was left out as completed, in place.

    A dump of unfinished entries only leaves out the whole of a finished batch and keeps its parts,
    which never finish. Where sends and receives are batched (a whole or two parts of one sequence
    id are there) and the group's last completed sequence id is one of a batch (it lies beyond all
    of its collectives), the parts up to it are over.
    """
    p2p = columns["p2p"]
    if not p2p.any():
        return
    whole = _of(columns["payload"], [closes_coalesced(p.recorded) for p in payloads], np.bool_)
    for index, known in status.items():
        mine = columns["group"] == index
        sends = np.flatnonzero(mine & p2p & ~whole)
        seqs = columns["seq"][sends]
        batched = (whole & mine & p2p).any() or len(np.unique(seqs)) < len(seqs)
        if batched and known.completed > columns["seq"][mine & ~p2p].max(initial=0):
            over = sends[seqs <= known.completed]
            columns["state"][over] = State.COMPLETED


def _number(keys: Sequence[Any]) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
    """Keys as numbers in order of appearance, and the keys by number."""
    table: dict[Any, int] = {}
    numbers = [table.setdefault(key, len(table)) for key in keys]
    return np.array(numbers, np.int32), tuple(table)


def _of(index: NDArray[np.int32], values: Sequence[Any], dtype: Any) -> NDArray[Any]:
    return np.array(values, dtype)[index] if len(index) else np.zeros(0, dtype)


def _group_keys(rows: Rows) -> list[GroupKey]:
    ids = _given(rows, "pg_id").tolist()
    known: dict[Any, tuple[str, str]] = {}
    keys = []
    for name, pg_id in zip(rows.column("process_group", ""), ids, strict=True):
        # no more of a list than tells that it is too long: a pickle may name one a million times
        plain = tuple(name[:3]) if type(name) is list else name
        named = known.get(plain)
        if named is None:
            named = known[plain] = _named(plain)
        keys.append((*named, pg_id))
    return keys


def _named(value: Any) -> tuple[str, str]:
    """Name and description: a pair since schema 2.2, before it the name alone."""
    if isinstance(value, str):
        return value, ""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(p, str) for p in value):
        return value[0], "" if value[1] == "undefined" else value[1]
    raise FlightRecordError("process_group is a name and a description")


def _payload(key: PayloadKey) -> Payload:
    recorded, sizes_in, sizes_out, dtypes_in, dtypes_out = key
    return Payload(
        op=op_name(recorded),
        recorded=recorded,
        sizes_in=sizes_in,
        sizes_out=sizes_out,
        dtypes_in=tuple(dtype_name(dtype) or "" for dtype in dtypes_in),
        dtypes_out=tuple(dtype_name(dtype) or "" for dtype in dtypes_out),
    )


def _is_p2p(payload: Payload) -> bool:
    return payload.op in POINT_TO_POINT


def _peer(payload: Payload) -> int:
    """Rank in the group of the other side, from `nccl:send 0->1` and `nccl:recv 0<-1`."""
    ends = peers_of(payload.recorded[:_LONGEST_NAME])
    if ends is None:
        return NONE
    peer = ends[1] if payload.op == "send" else ends[0]
    return peer if peer < 1 << 31 else NONE


def _states(rows: Rows) -> NDArray[np.int8]:
    return np.array([_STATES.get(one, State.UNKNOWN) for one in rows.column("state")], np.int8)


def _flags(rows: Rows, key: str) -> NDArray[np.bool_]:
    return np.array([one is True for one in rows.column(key)], np.bool_)


def _times(rows: Rows, key: str) -> NDArray[np.int64]:
    """Nanoseconds; pickles write None for an unset one and JSON writes 0."""
    times = rows.numbers(key, _int64([one or NONE for one in rows.column(key)], key))
    return np.where((times > 0) & (times < _LAST_TIME), times, NONE)


def _given(rows: Rows, key: str) -> NDArray[np.int64]:
    """Numbers under a key of the rows that are given out."""
    if not rows.has(key):
        return np.full(len(rows.column(key)), NONE, np.int64)
    return _int64(rows.column(key), key)


def _integers(rows: Rows, keys: tuple[str, ...], *, counted: bool = False) -> NDArray[np.int64]:
    """Numbers under the first of `keys` that the rows have; of none, NONE or the rows counted."""
    for key in keys:
        if rows.has(key):
            return rows.numbers(key, _int64(rows.column(key), key))
    if counted:
        return np.arange(len(rows), dtype=np.int64)
    return rows.spread(np.full(len(rows), NONE, np.int64))


def _int64(values: Sequence[Any], key: str) -> NDArray[np.int64]:
    if not set(map(type, values)) <= {int}:
        raise FlightRecordError(f"{key} is a number")
    return np.array(values, np.int64)
