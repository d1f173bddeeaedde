"""One rank's dump, as torch writes it, in columns of that rank alone.

Reads NCCL's pickle and JSON and gloo's, schema 2.0 to 2.10 and newer ones as far as they keep the
keys. Nothing of another rank is known here: groups and payloads are numbered within the dump, and
peers are ranks of their group. `assemble` makes a job of several.

What the writers mean: torch `FlightRecorder.hpp`, `FlightRecorderDetail.hpp` (2.10).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder import alike, entries, groups, safe_pickle
from monitor.flight_recorder.job import NONE, Backend, Payload, State, Status
from monitor.flight_recorder.record import FlightRecordError
from monitor.flight_recorder.rows import Rows

MAX_JSON: Final = 128 << 20
ODD: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""What Python raises when a value is not what it was taken for."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's record."""

    backend: Backend
    version: str
    only_active: bool
    dropped: int
    groups: tuple[groups.LocalGroup, ...]
    status: Mapping[int, Status]
    """By index into `groups`."""
    unplaced: int
    """Statuses of which nobody can say what group they belong to."""
    payloads: tuple[Payload, ...]
    sites: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]]
    """Those of `job.COLUMNS` but `rank`; `peer` is a rank of the group."""
    one_count: bool = False
    """Whether `seq` counts the calls of all groups together, see `one_count`."""
    global_peers: bool = False
    """Whether `peer` is a rank of the job already."""

    @property
    def newest_ns(self) -> int:
        """The latest moment that it speaks of."""
        names = ("created_ns", "started_ns", "completed_ns")
        return max((int(self.columns[name].max(initial=NONE)) for name in names), default=NONE)


def decode(data: bytes) -> Mapping[str, Any]:
    """The object in a file: pickle or JSON, told apart by its first byte.

    Raises:
        FlightRecordError: neither, or broken.
    """
    start = data[:64].lstrip()[:1]
    if start == b"\x80":
        value = safe_pickle.loads(data)
    elif start in (b"{", b"["):
        value = _json(data)
    else:
        raise FlightRecordError("neither a pickle nor JSON" if data else "empty")
    if not isinstance(value, dict):
        raise FlightRecordError(f"a record is an object, this is a {type(value).__name__}")
    return value


def read_alike(data: bytes, fewest: int = alike.FEWEST) -> Dump | None:
    """The dump of a pickle whose entries are written alike, as `read(decode(data))` has it.

    None where it has to be read in that way: it is another one, or it cannot be read at all.
    """
    try:
        value = alike.document(data, fewest)
        return None if value is None or "identity" in value else read(value)
    except FlightRecordError:
        return None


def _json(data: bytes) -> Any:
    if len(data) > MAX_JSON:
        raise FlightRecordError(f"JSON of {len(data)} bytes; at most {MAX_JSON} are read")
    try:
        return json.loads(data)
    except json.JSONDecodeError as exc:
        raise FlightRecordError(f"broken JSON: {exc}") from exc
    except (ValueError, RecursionError, MemoryError) as exc:
        raise FlightRecordError(f"broken JSON: {type(exc).__name__}") from exc


def read(data: Mapping[str, Any]) -> Dump:
    """The columns of one decoded dump.

    Raises:
        FlightRecordError: not a Flight Recorder dump, or a value in it is not what it should be.
    """
    version = data.get("version")
    if not isinstance(version, str):
        raise FlightRecordError("not a flight record: it has no version")
    if version.partition(".")[0] != "2" and "pg_config" not in data and "entries" not in data:
        raise FlightRecordError(f"not a flight record that can be read: schema {version[:20]!r}")
    try:
        return _read(data, version)
    except FlightRecordError:
        raise
    except ODD as exc:
        raise FlightRecordError(f"not a flight record: {type(exc).__name__}: {exc}"[:200]) from exc


def _read(data: Mapping[str, Any], version: str) -> Dump:
    rows = data.get("entries")  # the key is absent when nothing was recorded
    if rows is not None and not isinstance(rows, list | tuple | Rows):
        raise FlightRecordError(f"entries are a list, not a {type(rows).__name__}")
    table = entries.read(() if rows is None else rows)
    backend = _backend(data, table.payloads)
    seen = groups.from_entries(table.groups, data.get("pg_config"))
    # gloo counts sends, receives and barriers' parts too: nothing that a peer could be held against
    raw = {} if backend is Backend.GLOO else groups.statuses(data.get("pg_status"))
    seen, status, unplaced = groups.place(seen, raw)
    columns = dict(table.columns)
    one_count = _one_count(data, table)
    if one_count:  # its communicators have names, and all the same description
        seen = tuple(replace(group, desc="") for group in seen)
    no_events = backend is Backend.GLOO or (one_count and (columns["started_ns"] == NONE).all())
    columns["state"] = _states(columns, table.retired, no_events, one_count)
    active = _only_active(columns, raw)
    entries.spread_coalesced(columns, table.payloads)
    if active:
        entries.close_finished_batches(columns, table.payloads, status)
    first = columns["record"][:1]
    return Dump(
        backend=backend,
        version=version,
        only_active=active,
        dropped=0 if active or not len(first) else max(0, int(first[0])),
        groups=seen,
        status=status,
        unplaced=unplaced,
        payloads=table.payloads,
        sites=table.sites,
        columns=columns,
        one_count=one_count,
    )


def _one_count(data: Mapping[str, Any], table: entries.Table) -> bool:
    """Whether torchcomms wrote it: no status, and groups described by their backend's name."""
    writers = {payload.recorded.partition(":")[0] for payload in table.payloads}
    described = {desc for _, desc, _ in table.groups}
    return bool(described) and described == writers and not data.get("pg_status")


def _backend(data: Mapping[str, Any], payloads: tuple[Payload, ...]) -> Backend:
    writers = {payload.recorded.partition(":")[0] for payload in payloads}
    if "gloo" in writers:
        return Backend.GLOO
    if (
        any(name.startswith("nccl") for name in writers)
        or data.get("nccl_version")
        or data.get("comm_lib_version")
    ):
        return Backend.NCCL
    config = data.get("pg_config")
    named = isinstance(config, Mapping) and any(name for name in config)
    return Backend.NCCL if named else Backend.UNKNOWN


def _states(
    columns: Mapping[str, NDArray[Any]],
    retired: NDArray[np.bool_],
    no_events: bool,
    one_count: bool,
) -> NDArray[np.int8]:
    """What a writer's state means.

    NCCL: an entry that is retired and not completed has timed out (FlightRecorder.hpp, `retired_`).
    Gloo: without events the state stays "scheduled" for ever; retired is over, in whatever way.
    torchcomms retires an entry when its work is over, whether its events were seen to be or not.
    """
    states = columns["state"].copy()
    open_ = states < State.COMPLETED
    if no_events:
        states[open_] = State.UNKNOWN
    states[open_ & retired] = State.COMPLETED if no_events or one_count else State.FAILED
    return states


def _only_active(columns: Mapping[str, NDArray[Any]], status: Mapping[int, Status]) -> bool:
    """Whether completed entries were left out: evident, no dump says so.

    Entries were recorded before the first that is there, or it is known that some were, and not
    one of those that are there has completed.
    """
    if (columns["state"] == State.COMPLETED).any():
        return False
    if len(columns["record"]):
        record = columns["record"]
        return bool(record[0] > 0 or record[-1] - record[0] >= len(record))
    return any(one.enqueued > 0 for one in status.values())


def with_generation(dump: Dump, generation: int) -> Dump:
    """The dump as one of TorchFT's quorum `generation` (told by the file's name)."""
    changed = tuple(groups.of_generation(group, generation) for group in dump.groups)
    return replace(dump, groups=changed)
