"""From torch's own JSON record (`fr_trace_json`, schema 2.x). A first, honest form.

What gloo does not say (facts/torch_debug_plane.md section 2): its state is always
"scheduled", so `retired` stands for completion, also after a failure; `pg_config` has one
nameless group; TorchFT's groups are nameless and restart their sequence ids at every
quorum, which is why a nameless group bears its `pg_id`, a number that means nothing on
another rank. Roots, reduce operations, members and point-to-point are not recorded at all.
NCCL records real states, names and members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from monitor.flight_recorder.record import (
    POINT_TO_POINT,
    Entry,
    EntryState,
    FlightRecordError,
    RankRecord,
    Source,
    op_name,
    signature,
)
from monitor.names import RankName


def from_torch_json(data: Any, rank: RankName, incarnation: str = "") -> RankRecord:
    """Torch's record of one rank in normal form.

    Raises:
        FlightRecordError: not a Flight Recorder dump of schema 2.x.
    """
    if not isinstance(data, Mapping):
        raise FlightRecordError(f"{rank}: a record is an object, got {type(data).__name__}")
    version = data.get("version")
    if not isinstance(version, str) or not version.startswith("2."):
        raise FlightRecordError(f"{rank}: schema {version!r} is not 2.x")
    rows = data.get("entries", ())  # the key is absent when nothing was recorded
    if not isinstance(rows, list | tuple):
        raise FlightRecordError(f"{rank}: entries are a list, got {type(rows).__name__}")
    entries = [_entry(row, rank) for row in rows]
    return RankRecord(
        rank=rank,
        incarnation=incarnation,
        source=Source.TORCH,
        entries=tuple(entry for entry in entries if entry is not None),
        members=_members(data.get("pg_config")),
        dropped=_dropped(rows),
    )


def _entry(row: Any, rank: RankName) -> Entry | None:
    if not isinstance(row, Mapping):
        raise FlightRecordError(f"{rank}: an entry is an object, got {type(row).__name__}")
    name = _field(row, "profiling_name", str, rank)
    if row.get("is_p2p") is True or op_name(name) in POINT_TO_POINT:
        return None
    dtypes = row.get("input_dtypes") or row.get("output_dtypes") or ()
    return Entry(
        process_group=_process_group(row, rank),
        seq=_field(row, "collective_seq_id", int, rank),
        signature=signature(
            name,
            _sizes(row, "input_sizes", rank),
            _sizes(row, "output_sizes", rank),
            dtype=str(dtypes[0]) if isinstance(dtypes, Sequence) and dtypes else None,
        ),
        state=_state(row, rank),
    )


def _state(row: Mapping[str, Any], rank: RankName) -> EntryState:
    if row.get("retired") is True:
        return EntryState.COMPLETED
    state = _field(row, "state", str, rank)
    try:
        return EntryState(state)
    except ValueError as exc:
        raise FlightRecordError(f"{rank}: unknown state {state!r}") from exc


def _process_group(row: Mapping[str, Any], rank: RankName) -> str:
    named = row.get("process_group")
    if isinstance(named, list | tuple) and len(named) == 2 and isinstance(named[0], str):
        name, desc = named
        label = desc if isinstance(desc, str) and desc not in ("", "undefined") else name
        if label:
            return f"{name}:{label}" if label != name and name else label
    return f"unnamed {_field(row, 'pg_id', int, rank)}"


def _members(config: Any) -> dict[str, tuple[int, ...]]:
    """`pg_config` in normal form; what cannot be read is unknown, not an error."""
    members: dict[str, tuple[int, ...]] = {}
    if not isinstance(config, Mapping):
        return members
    for name, group in config.items():
        ranks = group.get("ranks") if isinstance(group, Mapping) else None
        if not isinstance(ranks, str):
            continue
        try:
            listed = json.loads(ranks)
        except ValueError:
            continue
        desc = group.get("desc")
        known = isinstance(desc, str) and desc not in ("", "undefined", name)
        if name and isinstance(listed, list) and all(type(rank) is int for rank in listed):
            members[f"{name}:{desc}" if known else str(name)] = tuple(listed)
    return members


def _dropped(rows: Sequence[Any]) -> int:
    first = rows[0].get("record_id") if rows and isinstance(rows[0], Mapping) else None
    return first if type(first) is int else 0


def _sizes(row: Mapping[str, Any], key: str, rank: RankName) -> tuple[tuple[int, ...], ...]:
    sizes = row.get(key) or ()
    try:
        shapes = tuple(tuple(size) for size in sizes)
    except TypeError as exc:
        raise FlightRecordError(f"{rank}: {key} is not a list of lists") from exc
    if not all(type(number) is int for shape in shapes for number in shape):
        raise FlightRecordError(f"{rank}: {key} holds something else than numbers")
    return shapes


def _field(row: Mapping[str, Any], key: str, kind: type, rank: RankName) -> Any:
    value = row.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FlightRecordError(f"{rank}: {key} is {value!r}, expected {kind.__name__}")
    return value
