"""Flight records as torch writes them: a rank's dump in columns, and the dumps of a job assembled.

Theory of operation. A dump is read without knowing any other rank: groups and payloads are numbered
within it, and peers are ranks of their group. NCCL's pickle and JSON and gloo's are read, schema
2.4 (torch 2.5) to 2.10, and newer ones as far as they keep the keys. What the values mean is
defined in torch's `FlightRecorder.hpp` and `FlightRecorderDetail.hpp` (2.10). `assemble` makes a
job of many dumps.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.records import safe_pickle
from lightkeeper.monitor.records.job import (
    COLUMNS,
    MAIN_THREAD,
    NONE,
    Backend,
    CollectiveState,
    Group,
    GroupStatus,
    Job,
    Payload,
    Problem,
    RankInfo,
    Sites,
)
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.monitor.records.signature import (
    POINT_TO_POINT,
    closes_coalesced,
    payload_of,
    peers_of,
)

# -- an entry's keys, before their types are checked -------------------------------------------

_RECENT: Final = 8
"""Recent payloads of one name that a row is compared with before its key is built."""
MOST_WORK: Final = 1 << 22
"""Sizes and dtypes read from a pickle, which may refer to one list a million times: 0.5 s."""
_PAYLOAD: Final = ("profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

PayloadKey = tuple[Any, ...]
"""The values of `_PAYLOAD`; hashable."""
Rows = Sequence[Mapping[str, Any]]


def _column(rows: Rows, key: str, default: Any = None) -> list[Any]:
    """The entries' values of a key; `default` for those that lack it."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:  # a writer normally gives all entries the same keys
        return [row.get(key, default) for row in rows]


class _Payloads:
    """Numbers the payloads of one dump in order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[PayloadKey, int] = {}
        self._recent: dict[Any, list[tuple[Any, int]]] = {}
        self._work = 0

    def of(self, row: tuple[Any, ...]) -> int:
        """The number of the payload in an entry.

        Comparing lists is faster than making tuples of them. A row is compared only with rows
        found to be flat, so a hostile row's nesting is never followed.
        """
        recent = self._recent.setdefault(row[0], [])
        for earlier, number in recent:
            if earlier == row:
                return number
        key = self._key(row)
        number = self.numbers.setdefault(key, len(self.numbers))
        recent.insert(0, (row, number))
        del recent[_RECENT:]
        return number

    def _key(self, row: tuple[Any, ...]) -> PayloadKey:
        name, (sizes_in, sizes_out, *dtypes) = row[0], [value or () for value in row[1:]]
        self._work += sum(map(len, (sizes_in, sizes_out, *dtypes)))
        if self._work <= MOST_WORK:
            self._work += sum(map(len, (*sizes_in, *sizes_out)))
        if self._work > MOST_WORK:
            raise FlightRecordError(f"more than {MOST_WORK} sizes and dtypes")
        sizes = [tuple(map(tuple, sizes_in)), tuple(map(tuple, sizes_out))]
        if not isinstance(name, str):
            raise FlightRecordError("profiling_name is a text")
        if not all(type(n) is int for each in sizes for size in each for n in size):
            raise FlightRecordError("sizes are lists of numbers")
        if not all(isinstance(dtype, str) for each in dtypes for dtype in each):
            raise FlightRecordError("dtypes are texts")
        return (name, *sizes, *map(tuple, dtypes))


def _read_payloads(rows: Rows) -> tuple[NDArray[np.int32], tuple[Payload, ...]]:
    """For each entry the number of its payload, and the payloads by number."""
    numbering = _Payloads()
    columns = (_column(rows, key) for key in _PAYLOAD)
    numbers = [numbering.of(row) for row in zip(*columns, strict=True)]
    payloads = tuple(
        payload_of(recorded, sizes_in, sizes_out, dtypes_in=dtypes_in, dtypes_out=dtypes_out)
        for recorded, sizes_in, sizes_out, dtypes_in, dtypes_out in numbering.numbers
    )
    return np.array(numbers, np.int32), payloads


# -- entries -----------------------------------------------------------------------------------

_STATES: Final = {
    "scheduled": CollectiveState.SCHEDULED,
    "started": CollectiveState.STARTED,
    "completed": CollectiveState.COMPLETED,
}
_LONGEST_NAME: Final = 200
_LAST_TIME: Final = 1 << 62
GroupKey = tuple[str, str, int]
"""Name, description, pg_id."""


Entries = tuple[dict[str, NDArray[Any]], tuple[GroupKey, ...], tuple[Payload, ...], tuple[str, ...]]
"""Columns in the order of record ids, and what they index: groups, payloads, sites."""


def read_entries(rows: Sequence[Any]) -> Entries:
    """Columns of the entries, and `retired`; keys that a schema lacks are filled in.

    Raises:
        FlightRecordError: a value is malformed.
        TypeError, ValueError, LookupError ...: the same, but raised by Python itself.
    """
    odd = next((row for row in rows if type(row) is not dict), None)
    if odd is not None:
        raise FlightRecordError(f"an entry is an object, not a {type(odd).__name__}")
    group, groups = number_keys(_group_keys(rows))
    payload, payloads = _read_payloads(rows)
    of_kind = _by_payload(payload, [item.op in POINT_TO_POINT for item in payloads], np.bool_)
    p2p = _flags(rows, "is_p2p") | of_kind
    sites = Sites()
    state = [_STATES.get(item, CollectiveState.UNKNOWN) for item in _column(rows, "state")]
    columns: dict[str, NDArray[Any]] = {
        "group": group,
        "seq": np.where(p2p, _given(rows, "p2p_seq_id"), _given(rows, "collective_seq_id")),
        "op_id": _given(rows, "op_id"),
        "record": _given(rows, "record_id"),
        "payload": payload,
        "site": np.array([sites.of(frames) for frames in _column(rows, "frames")], np.int32),
        "state": np.array(state, np.int8),
        "p2p": p2p,
        "peer": np.where(
            p2p, _by_payload(payload, [_peer(item) for item in payloads], np.int32), NONE
        ),
        "thread": np.array(threads_of(rows), np.int64),
        "blocking": np.zeros(len(p2p), np.bool_),
        "created_ns": _times(rows, "time_created_ns"),
        "started_ns": _times(rows, "time_discovered_started_ns"),
        "completed_ns": _times(rows, "time_discovered_completed_ns"),
        "retired": _flags(rows, "retired"),
    }
    record = columns["record"]
    if (record[1:] < record[:-1]).any():
        order = np.argsort(record, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    return columns, groups, payloads, sites.texts


_HELPERS: Final = ("pt_autograd",)
"""Threads of autograd: they run FSDP's and DDP's hooks while the training thread waits for them."""


def threads_of(rows: Rows) -> list[int]:
    """A number for each entry's thread; NONE if it is not recorded.

    `MAIN_THREAD` is the one that calls most; a helper's entries count as its own.
    """
    called = list(zip(_column(rows, "thread_name"), _column(rows, "thread_id"), strict=True))
    callers: Counter[str] = Counter()
    helpers = set()
    for row, calls in Counter(called).items():
        name, thread = row
        if not isinstance(thread, str):
            continue
        if isinstance(name, str) and name.startswith(_HELPERS):
            helpers.add(row)
        else:
            callers[thread] += calls
    if not callers:
        return [NONE] * len(called)
    numbers = {thread: number for number, (thread, _) in enumerate(callers.most_common())}
    return [MAIN_THREAD if row in helpers else numbers.get(row[1], NONE) for row in called]


def spread_coalesced(columns: Mapping[str, NDArray[Any]], payloads: Sequence[Payload]) -> None:
    """Give the parts of a coalesced operation the state and times of the whole, in place.

    NCCL records each part without events, so it stays "scheduled", and then the whole, which has
    the state and no sizes. They share the sequence id, but each part has its own op_id
    (FlightRecorder.hpp; torch's test_batched_send_recv). All get the op_id of the whole. The
    search for parts ends at the previous whole: the parts are between the two.
    """
    whole = _wholes(columns["payload"], payloads)
    rows = np.flatnonzero(whole)
    group, seq, p2p, state = (columns[name] for name in ("group", "seq", "p2p", "state"))
    for row in rows.tolist():
        at = row - 1
        while (
            at >= 0
            and not whole[at]
            and (group[at], seq[at], p2p[at]) == (group[row], seq[row], p2p[row])
            and state[at] <= CollectiveState.SCHEDULED
        ):
            for name in ("state", "started_ns", "completed_ns", "op_id"):
                columns[name][at] = columns[name][row]
            at -= 1


def close_finished_batches(
    columns: Mapping[str, NDArray[Any]],
    payloads: Sequence[Payload],
    groups: Sequence[LocalGroup],
    status: Mapping[int, GroupStatus],
) -> None:
    """Mark the parts of finished batches whose whole was left out as completed, in place.

    A dump of only unfinished entries leaves out the whole of a finished batch and keeps its parts,
    which never finish. If sends and receives are batched (a whole, or two parts with one sequence
    id, are there) and the group's last completed sequence id is a batch's (it lies beyond all of
    the group's collectives), the parts up to it have completed. So have all transfers up to it in a
    group of two: they are one stream, which works in order.
    """
    p2p = columns["p2p"]
    if not p2p.any():
        return
    whole = _wholes(columns["payload"], payloads)
    order = np.argsort(columns["group"], kind="stable")
    cuts = np.searchsorted(columns["group"][order], np.arange(max(status, default=-1) + 2))
    for index, head in status.items():
        own = order[cuts[index] : cuts[index + 1]]
        moved = p2p[own]
        sends = own[moved & ~whole[own]]
        seqs = columns["seq"][sends]
        batched = (whole[own] & moved).any() or len(np.unique(seqs)) < len(seqs)
        batched |= head.completed in seqs  # it is complete, and is here as unfinished: a part
        # a lower id than a send's: the last call is a collective, and is complete; so are batches
        # before it. Batches of one show by their wholes, which are left out after each
        number = columns["record"]
        left_out = ~np.isin(number[sends] + 1, number) & (number[sends] != number.max(initial=0))
        passed = 0 < head.completed == head.enqueued < seqs.max(initial=0)
        passed &= bool(batched or left_out.all())
        batched &= head.completed > columns["seq"][own[~moved]].max(initial=0)
        if passed or batched or len(groups[index].members) == 2:
            over = sends[(seqs <= head.completed) | passed]
            columns["state"][over] = CollectiveState.COMPLETED


def number_keys(keys: Iterable[Any]) -> tuple[NDArray[np.int32], tuple[Any, ...]]:
    """Keys as numbers in order of appearance, and the keys by number."""
    table: dict[Any, int] = {}
    numbers = [table.setdefault(key, len(table)) for key in keys]
    return np.array(numbers, np.int32), tuple(table)


def _wholes(payload: NDArray[np.int32], payloads: Sequence[Payload]) -> NDArray[np.bool_]:
    """Rows that end a coalesced operation."""
    return _by_payload(payload, [closes_coalesced(p.recorded) for p in payloads], np.bool_)


def _by_payload(index: NDArray[np.int32], values: Sequence[Any], dtype: Any) -> NDArray[Any]:
    return np.array(values, dtype)[index] if len(index) else np.zeros(0, dtype)


def _group_keys(rows: Rows) -> list[GroupKey]:
    ids = _given(rows, "pg_id").tolist()
    names: dict[Any, tuple[str, str]] = {}
    keys = []
    for name, pg_id in zip(_column(rows, "process_group", ""), ids, strict=True):
        # only enough of a list to see that it is too long: a pickle may name one a million times
        plain = tuple(name[:3]) if type(name) is list else name
        named = names.get(plain)
        if named is None:
            named = names[plain] = _named(plain)
        keys.append((*named, pg_id))
    return keys


def _named(value: Any) -> tuple[str, str]:
    """Name and description."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(p, str) for p in value):
        return value[0], "" if value[1] == "undefined" else value[1]
    raise FlightRecordError("process_group is a name and a description")


def _peer(payload: Payload) -> int:
    """Group rank of the other side, from `nccl:send 0->1` and `nccl:recv 0<-1`."""
    ends = peers_of(payload.recorded[:_LONGEST_NAME])
    if ends is None:
        return NONE
    peer = ends[1] if payload.op == "send" else ends[0]
    return peer if peer < 1 << 31 else NONE


def _flags(rows: Rows, key: str) -> NDArray[np.bool_]:
    return np.array([flag is True for flag in _column(rows, key)], np.bool_)


def _times(rows: Rows, key: str) -> NDArray[np.int64]:
    """Nanoseconds; for an unset time, pickles have None and JSON has 0."""
    times = _int64([time_ns or NONE for time_ns in _column(rows, key)], key)
    return np.where((times > 0) & (times < _LAST_TIME), times, NONE)


def _given(rows: Rows, key: str) -> NDArray[np.int64]:
    """The numbers of a key; NONE where the schema lacks it."""
    if rows and key not in rows[0]:
        return np.full(len(rows), NONE, np.int64)
    return _int64(_column(rows, key), key)


def _int64(values: Sequence[Any], key: str) -> NDArray[np.int64]:
    if not set(map(type, values)) <= {int}:
        raise FlightRecordError(f"{key} is a number")
    return np.array(values, np.int64)


# -- groups ------------------------------------------------------------------------------------

_LONGEST_LIST: Final = 16 << 20
_QUORUM: Final = re.compile(r"torchft_quorum_(\d{1,18})_rank_\d+$")
"""TorchFT's name for the group of one quorum (torchft/process_group.py)."""
_STATUS: Final = (
    "last_enqueued_collective", "last_started_collective", "last_completed_collective",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LocalGroup:
    """One process group in one dump."""

    name: str
    """Empty where torch has none."""
    desc: str = ""
    members: tuple[int, ...] = ()
    """As recorded, in order of group ranks; empty if not recorded."""
    pg_id: int = NONE
    """Counts the groups of that process; NONE if no entry has it."""
    age: int = 0
    """How many newer groups of the same name the dump has."""
    generation: int | None = None
    """TorchFT's quorum id, if known."""
    inferred: bool = False
    """True if there may be more members than these."""
    owner: int = NONE
    """The only rank that knows it, if it cannot be matched with a group of its peers."""


def groups_in_dump(keys: Sequence[GroupKey], config: Any) -> tuple[LocalGroup, ...]:
    """The groups of the entries, in their order, then the groups without entries."""
    configured = _config(config)
    active = []
    for name, desc, pg_id in keys:
        local = configured.get(name) or _group(name)
        active.append(replace(local, desc=desc or local.desc, pg_id=pg_id))
    named = {name for name, _, _ in keys}
    idle = [
        group for name, group in configured.items() if name not in named and (name or group.members)
    ]
    return _with_ages([*active, *idle])


def _group(name: str, desc: str = "", members: tuple[int, ...] = ()) -> LocalGroup:
    quorum = _QUORUM.match(name)
    return LocalGroup(name, desc, members, generation=None if quorum is None else int(quorum[1]))


def _with_ages(groups: Sequence[LocalGroup]) -> tuple[LocalGroup, ...]:
    """A process may reuse a name (group destroyed, then made again): the newest has age 0."""
    ids = grouped((group.name, group.pg_id) for group in groups)
    age: dict[tuple[str, int], int] = {}
    for name, listed in ids.items():
        for at, pg_id in enumerate(sorted(listed, reverse=True)):
            age.setdefault((name, pg_id), at)
    return tuple(replace(group, age=age[group.name, group.pg_id]) for group in groups)


def _config(config: Any) -> dict[str, LocalGroup]:
    """`pg_config`: groups by name."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise FlightRecordError(f"pg_config is an object, not a {type(config).__name__}")
    groups = {}
    for name, described in config.items():
        if not isinstance(name, str) or not isinstance(described, Mapping):
            raise FlightRecordError("pg_config names groups and describes them")
        desc = described.get("desc")
        desc = desc if isinstance(desc, str) and desc != "undefined" else ""
        groups[name] = _group(name, desc, _ranks(described.get("ranks")))
    return groups


def _ranks(ranks: Any) -> tuple[int, ...]:
    if isinstance(ranks, str):
        return _listed(ranks)
    if isinstance(ranks, list | tuple) and all(type(rank) is int for rank in ranks):
        return tuple(ranks)
    return ()


@lru_cache(1024)
def _listed(text: str) -> tuple[int, ...]:
    """Ranks in a text such as `[0, 1]`; any other text means unknown, not an error."""
    if len(text) > _LONGEST_LIST or not text.startswith("["):
        return ()
    try:
        ranks = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not all(type(rank) is int and 0 <= rank < 1 << 31 for rank in ranks):
        return ()
    return tuple(dict.fromkeys(ranks))


def statuses(status: Any) -> dict[int, GroupStatus]:
    """`pg_status`: pg_id -> the group's status; JSON writes its numbers as texts."""
    if status is None:
        return {}
    if not isinstance(status, Mapping):
        raise FlightRecordError(f"pg_status is an object, not a {type(status).__name__}")
    return {
        int(pg_id): GroupStatus(*(_group_number(head.get(key, NONE)) for key in _STATUS))
        for pg_id, head in status.items()
    }


def _group_number(value: Any) -> int:
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63:
        raise FlightRecordError("a sequence id of more than 64 bits")
    return number


def place_statuses(
    seen: tuple[LocalGroup, ...], status: Mapping[int, GroupStatus]
) -> tuple[tuple[LocalGroup, ...], dict[int, GroupStatus]]:
    """Groups with `pg_id` where known, and statuses by group, as far as they have one.

    `pg_status` identifies groups by pg_id and `pg_config` by name; entries have both. Both count up
    in the order in which the process made its groups, if torch numbered the names. So between two
    groups known from entries, if there are as many names as pg_ids, they are matched in order; if
    the numbers differ, none is matched.
    """
    by_id = {group.pg_id: index for index, group in enumerate(seen) if group.pg_id != NONE}
    waiting = sorted(pg_id for pg_id in status if pg_id not in by_id)
    idle = [index for index, group in enumerate(seen) if group.pg_id == NONE]
    guessed = _in_order(seen, by_id, waiting, idle)
    changed = list(seen)
    for pg_id, index in guessed.items():
        changed[index] = replace(changed[index], pg_id=pg_id)
    by_id |= guessed
    placed = {by_id[pg_id]: head for pg_id, head in status.items() if pg_id in by_id}
    return tuple(changed), placed


def _in_order(
    seen: Sequence[LocalGroup], by_id: Mapping[int, int], waiting: list[int], idle: list[int]
) -> dict[int, int]:
    if len(waiting) == len(idle) == 1:
        return {waiting[0]: idle[0]}
    if len(waiting) > len(idle):  # a group has a status and is not configured
        return {}
    names = [group.name for group in seen]
    if len(set(names)) < len(names) or not all(name.isdecimal() for name in names):
        return {}
    ids = sorted(by_id)
    between = [int(names[by_id[pg_id]]) for pg_id in ids]
    if between != sorted(set(between)):
        return {}
    unplaced = grouped((bisect_left(ids, pg_id), pg_id) for pg_id in waiting)
    idle = sorted(idle, key=lambda index: int(names[index]))
    fitting = grouped((bisect_left(between, int(names[index])), index) for index in idle)
    return {
        pg_id: index
        for at, some in unplaced.items()
        if len(some) == len(fitting.get(at, ()))
        for pg_id, index in zip(some, fitting[at], strict=True)
    }


# -- one dump ----------------------------------------------------------------------------------

MAX_CONTAINERS: Final = 4_000_000
"""An empty one takes 2 bytes there, and 70 in memory; 20,000 entries with call stacks of 30 have
700,000."""
ODD: Final = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip
"""What Python raises when a value is malformed."""


@dataclass(frozen=True, slots=True)
class Dump:
    """One rank's record."""

    backend: Backend
    only_active: bool
    dropped: int
    groups: tuple[LocalGroup, ...]
    status: Mapping[int, GroupStatus]
    """By index into `groups`."""
    payloads: tuple[Payload, ...]
    sites: tuple[str, ...]
    columns: Mapping[str, NDArray[Any]]
    """Those of `job.COLUMNS` except `rank`; `peer` is a rank of the group."""
    shared_count: bool = False
    """True if `seq` counts the calls of all groups together, see `count_by_group`."""
    global_peers: bool = False
    """True if `peer` is already a rank of the job."""


def decode(data: bytes) -> Mapping[str, Any]:
    """The object in a file: pickle or JSON, as its first byte shows.

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


def _json(data: bytes) -> Any:
    if data.count(b"{") + data.count(b"[") > MAX_CONTAINERS:
        raise FlightRecordError(f"JSON of more than {MAX_CONTAINERS:,} objects and lists")
    try:
        return json.loads(data)
    except (ValueError, RecursionError, MemoryError) as exc:
        raise FlightRecordError(f"broken JSON: {exc}") from exc


def read_dump(data: Mapping[str, Any]) -> Dump:
    """The columns of one decoded dump.

    Raises:
        FlightRecordError: not a Flight Recorder dump, or a value in it is malformed.
    """
    version = data.get("version")
    if not isinstance(version, str):
        raise FlightRecordError("not a flight record: it has no version")
    if version.partition(".")[0] != "2" and "pg_config" not in data and "entries" not in data:
        raise FlightRecordError(f"not a flight record that can be read: schema {version[:20]!r}")
    try:
        return _read(data)
    except FlightRecordError:
        raise
    except ODD as exc:
        raise FlightRecordError(f"not a flight record: {type(exc).__name__}: {exc}"[:200]) from exc


def _read(data: Mapping[str, Any]) -> Dump:
    rows = data.get("entries")  # the key is absent when nothing was recorded
    if rows is not None and not isinstance(rows, list | tuple):
        raise FlightRecordError(f"entries are a list, not a {type(rows).__name__}")
    columns, keys, payloads, sites = read_entries(() if rows is None else rows)
    retired = columns.pop("retired")
    writers = {payload.recorded.partition(":")[0] for payload in payloads}
    backend = _backend(data, writers)
    seen = groups_in_dump(keys, data.get("pg_config"))
    # gloo counts sends, receives and barriers' parts too: not comparable between peers
    raw = {} if backend is Backend.GLOO else statuses(data.get("pg_status"))
    seen, status = place_statuses(seen, raw)
    # torchcomms: no status, and groups described by backend name
    shared_count = {desc for _, desc, _ in keys} == writers != set() and not data.get("pg_status")
    if shared_count:  # its communicators have names, but all the same description
        seen = tuple(replace(group, desc="") for group in seen)
    no_events = backend is Backend.GLOO or (shared_count and (columns["started_ns"] == NONE).all())
    columns["state"] = _states_known(columns, retired, no_events, shared_count)
    active = _only_active(columns, raw)
    spread_coalesced(columns, payloads)
    if active:
        close_finished_batches(columns, payloads, seen, status)
    first = columns["record"][:1]
    return Dump(
        backend=backend,
        only_active=active,
        dropped=0 if active or not len(first) else max(0, int(first[0])),
        groups=seen,
        status=status,
        payloads=payloads,
        sites=sites,
        columns=columns,
        shared_count=shared_count,
    )


def _backend(data: Mapping[str, Any], writers: Collection[str]) -> Backend:
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


def _states_known(
    columns: Mapping[str, NDArray[Any]],
    retired: NDArray[np.bool_],
    no_events: bool,
    shared_count: bool,
) -> NDArray[np.int8]:
    """What a writer's state means.

    NCCL: an entry that is retired and not completed has timed out (FlightRecorder.hpp, `retired_`).
    Gloo: without events the state stays "scheduled" forever; retired means over, however it ended.
    torchcomms retires an entry when its work is over, whether or not it saw the events complete.
    """
    states = columns["state"].copy()
    open_ = states < CollectiveState.COMPLETED
    if no_events:
        states[open_] = CollectiveState.UNKNOWN
    states[open_ & retired] = (
        CollectiveState.COMPLETED if no_events or shared_count else CollectiveState.FAILED
    )
    return states


def _only_active(columns: Mapping[str, NDArray[Any]], status: Mapping[int, GroupStatus]) -> bool:
    """True if completed entries were left out; this is inferred, as no dump says so.

    It holds if entries are known to be missing, or to have existed at all if there are none,
    and none of those present has completed.
    """
    if (columns["state"] == CollectiveState.COMPLETED).any():
        return False
    if len(columns["record"]):
        record = columns["record"]
        return bool(record[0] > 0 or record[-1] - record[0] >= len(record))
    return any(head.enqueued > 0 for head in status.values())


def with_generation(dump: Dump, generation: int) -> Dump:
    """The dump as one of TorchFT's quorum `generation` (taken from the file's path).

    This applies to its groups with no quorum and no name: TorchFT makes them for each quorum.
    """
    groups = list(dump.groups)
    for at, group in enumerate(groups):
        if group.generation is None and not group.name:
            groups[at] = replace(group, generation=generation)
    return replace(dump, groups=tuple(groups))


# -- torchcomms' one count of all calls --------------------------------------------------------

_COMMON: Final = 0.5
"""Share of a group's numbers that all records must have where they overlap."""
UNCOUNTED: Final = (
    "torchcomms counts the calls of all its communicators together, its oldest entries are "
    "overwritten, and ranks make different calls: they cannot be compared; a larger "
    "TORCHCOMM_FR_BUFFER_SIZE keeps them all"
)


def count_by_group(dumps: Sequence[Dump]) -> tuple[list[Dump], str | None]:
    """The same dumps, numbered within each group, and the reason if something was left out.

    If all recorders still have their rank's first call, calls are counted again, group by group.
    Otherwise the common numbers stay if ranks agree in them: those of a pipeline do not, and their
    records are left out. (Format: torchcomms 2026-08, hooks/fr/FlightRecorder.cpp.)
    """
    torchcomms = [dump for dump in dumps if dump.shared_count]
    if all(dump.dropped == 0 for dump in torchcomms):
        return [_counted(dump) if dump.shared_count else dump for dump in dumps], None
    if _agree(torchcomms):
        return list(dumps), None
    without = []
    for dump in dumps:
        nothing = {name: column[:0] for name, column in dump.columns.items()}
        without.append(replace(dump, columns=nothing, status={}) if dump.shared_count else dump)
    return without, UNCOUNTED


def _counted(dump: Dump) -> Dump:
    """The collectives and the point-to-point calls of each group counted from 1, separately."""
    columns = dump.columns
    seq = columns["seq"].copy()
    kinds = columns["group"].astype(np.int64) * 2 + columns["p2p"]
    for kind in np.unique(kinds).tolist():
        rows = kinds == kind
        seq[rows] = np.arange(1, rows.sum() + 1)
    return replace(dump, columns={**columns, "seq": seq})


def _agree(dumps: Iterable[Dump]) -> bool:
    """True if all records have most of each group's numbers in common, where they overlap."""
    for same in grouped(pair for dump in dumps for pair in _numbers(dump).items()).values():
        first, last = max(seq[0] for seq in same), min(seq[-1] for seq in same)
        sides = [seq[(seq >= first) & (seq <= last)] for seq in same]
        most = max(map(len, sides))
        if not most or len(reduce(np.intersect1d, sides)) < _COMMON * most:
            return False
    return True


def _numbers(dump: Dump) -> Mapping[str, NDArray[Any]]:
    columns = dump.columns
    own = ~columns["p2p"]
    return {
        group.name: columns["seq"][own & (columns["group"] == at)]
        for at, group in enumerate(dump.groups)
        if (own & (columns["group"] == at)).any()
    }


# -- the job of many dumps ---------------------------------------------------------------------

_WORLD: Final = "default_pg"
"""Torch's description of the group of all ranks of a job."""


@dataclass(frozen=True, slots=True)
class Record:
    """One rank's dump and where it comes from."""

    rank: int
    dump: Dump
    path: str = ""


_RUNS_APART_NS: Final = 300_000_000_000
"""Lower: a host whose clock is off loses its records. Higher: a dump of the run before a quick
restart counts as one of this run."""


def of_one_run(records: Iterable[Record]) -> tuple[list[Record], list[Problem]]:
    """The records of the newest run, and a complaint for each that an earlier run left beside them.

    A rank that dies writes no record, so the last one under its name stays. Its calls end long
    before the first that any of its peers still has. Records without common groups are left alone,
    and so are all if fewer than half of the newest run's members are in it: a clock is wrong.
    """
    placed = {record.rank: _in_the_job(record) for record in records}
    older = _long_before(placed.values())
    ranks = placed.keys() - older
    teams = {r: frozenset[int]().union(*(g.members for g in placed[r].dump.groups)) for r in placed}
    run = ranks.union(*(teams[rank] for rank in ranks))
    left = {r for r in older if (r in run or teams[r] & ranks) and 2 * len(ranks) >= len(run)}
    why = "left out: its calls ended long before those of the others, so it is of an earlier run"
    complaints = [Problem(placed[rank].path, why) for rank in sorted(left)]
    return [record for rank, record in placed.items() if rank not in left], complaints


def _long_before(records: Iterable[Record]) -> set[int]:
    """Ranks whose calls end long before the first that is in the records of the newest run."""
    times = ((r.rank, r.dump.columns["created_ns"]) for r in records)
    dated = [(rank, ns[ns != NONE]) for rank, ns in times if (ns != NONE).any()]
    begin_ns, older = NONE, set[int]()
    for rank, ns in sorted(dated, key=lambda pair: -int(pair[1].max())):
        if ns.max() < begin_ns - _RUNS_APART_NS:
            older.add(rank)
        else:
            begin_ns = int(ns.min()) if begin_ns == NONE else min(begin_ns, int(ns.min()))
    return older


def assemble(
    records: Iterable[Record],
    *,
    world_size: int | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    problems: Iterable[Problem] = (),
    gaps: Iterable[int] = (),
) -> Job:
    """The job of these records, at most one per rank.

    `members` gives the global ranks of groups, by name or description, where the records do not;
    `gaps` are ranks missing from the records' numbers.

    A rank's groups are matched with its peers' by name and members: pg_ids count within a process,
    and each replica group of TorchFT has its own group "0". A rank that does not know the members
    takes the one group of that name that includes it; if there is none, the group is inferred from
    the ranks that have entries in it.
    """
    ordered = sorted(records, key=lambda record: record.rank)
    dumps, uncounted = count_by_group([record.dump for record in ordered])
    ordered = [_in_the_job(replace(r, dump=dump)) for r, dump in zip(ordered, dumps, strict=True)]
    complaints = [*problems]
    complaints += [] if uncounted is None else [Problem(ordered[0].path, uncounted)]
    ranks = {problem.rank for problem in complaints if problem.rank is not None}
    ranks.update(*{g.members for r in ordered for g in r.dump.groups}, range(world_size or 0))
    ranks.update(record.rank for record in ordered)
    expected = tuple(sorted(ranks.union(gaps)))
    keys = _keys(ordered, members or {}, expected if world_size else ())
    places, groups = _groups(ordered, keys, expected)
    columns, payloads, sites = _columns(ordered, places, groups)
    return Job(
        expected=expected,
        ranks={r.rank: _info(r, index) for r, index in zip(ordered, places, strict=True)},
        groups=groups,
        payloads=payloads,
        sites=sites,
        columns=columns,
        problems=tuple(sorted(complaints, key=lambda problem: (problem.path, problem.reason))),
        gaps=tuple(sorted(set(gaps) - ranks)),
    )


def _in_the_job(record: Record) -> Record:
    """The record with the members of its groups as global ranks.

    Under TorchFT each replica group is its own world with ranks counted from 0, while the file's
    name has the rank in the whole job: except in the first replica group, that rank is not in its
    world. (Torch's `transform_ft` needs the size of a replica group as an option.)
    """
    here, groups = record.rank, record.dump.groups
    worlds = (g.members for g in groups if g.desc == _WORLD and 0 < len(g.members) <= here)
    shift = next((here - here % len(w) for w in worlds if w == tuple(range(len(w)))), 0)
    if not shift:
        return record
    groups = tuple(
        g if here in g.members else replace(g, members=tuple(r + shift for r in g.members))
        for g in groups
    )
    return replace(record, dump=replace(record.dump, groups=groups))


def _keys(
    records: Sequence[Record], supplied: Mapping[str, Sequence[int]], world: tuple[int, ...]
) -> list[list[LocalGroup]]:
    first = [[_key(g, r.rank, supplied, world) for g in r.dump.groups] for r in records]
    distinct = dict.fromkeys(key for keys in first for key in keys if key.members)
    named = grouped(((key.name, key.age), key) for key in distinct)
    return [
        [_adopt(key, record.rank, named) for key in keys]
        for record, keys in zip(records, first, strict=True)
    ]


def _key(
    group: LocalGroup, rank: int, supplied: Mapping[str, Sequence[int]], world: tuple[int, ...]
) -> LocalGroup:
    """What identifies a group in the job: all but what only this process calls it."""
    usual = world if group.desc == _WORLD else ()
    members = group.members or tuple(supplied.get(group.name, supplied.get(group.desc, usual)))
    # no name, and members unknown: peers' nameless groups may be different ones
    owner = NONE if members or group.name else rank
    return replace(group, desc="", pg_id=NONE, members=members, owner=owner)


def _adopt(
    key: LocalGroup, rank: int, named: Mapping[tuple[str, int], Sequence[LocalGroup]]
) -> LocalGroup:
    """The peers' group with this name and known members, if there is exactly one."""
    if key.members or key.owner != NONE:
        return key
    fitting = [
        candidate for candidate in named.get((key.name, key.age), ()) if rank in candidate.members
    ]
    return fitting[0] if len(fitting) == 1 else key


def _groups(
    records: Sequence[Record], keys: Sequence[Sequence[LocalGroup]], expected: Sequence[int]
) -> tuple[list[list[int]], tuple[Group, ...]]:
    """For each record the indices of its local groups, and the groups of the job."""
    desc: dict[LocalGroup, str] = {}
    seen: dict[LocalGroup, list[int]] = {}
    for record, listed in zip(records, keys, strict=True):
        for group, key in zip(record.dump.groups, listed, strict=True):
            desc[key] = desc.get(key) or group.desc
            seen.setdefault(key, []).append(record.rank)
    ordered = sorted(desc, key=_order)
    index = {key: at for at, key in enumerate(ordered)}
    groups = [
        Group(
            name=key.name,
            desc=desc[key],
            # unknown: the ranks that have entries; the world has all ranks
            members=key.members
            or tuple(expected if desc[key] == _WORLD else sorted(set(seen[key]))),
            inferred=key.inferred or not key.members,
            generation=key.generation,
        )
        for key in ordered
    ]
    named = _named_alike(groups, [key.owner for key in ordered])
    return [[index[key] for key in listed] for listed in keys], named


def _order(key: LocalGroup) -> tuple[Any, ...]:
    number = int(key.name) if key.name.isdecimal() and len(key.name) < 19 else 1 << 62
    generation = NONE if key.generation is None else key.generation
    return number, key.name, -generation, key.age, key.members, key.owner


def _named_alike(groups: Sequence[Group], owners: Sequence[int]) -> tuple[Group, ...]:
    """Groups with names made unique in the job; the newest of one name keeps it."""
    used: set[str] = set()
    next_number: dict[str, int] = {}
    named = []
    for group, owner in zip(groups, owners, strict=True):
        name = group.name or ("unnamed" if owner == NONE else f"unnamed of rank {owner}")
        if name in used and group.generation is not None:
            name = f"{name}@{group.generation}"
        unique = name
        while unique in used:
            next_number[name] = next_number.get(name, 1) + 1
            unique = f"{name}#{next_number[name]}"
        used.add(unique)
        named.append(replace(group, name=unique))
    return tuple(named)


def _info(record: Record, index: Sequence[int]) -> RankInfo:
    dump = record.dump
    return RankInfo(
        rank=record.rank,
        backend=dump.backend,
        only_active=dump.only_active,
        dropped=dump.dropped,
        status={index[local]: status for local, status in sorted(dump.status.items())},
        path=record.path,
    )


def _columns(
    records: Sequence[Record], places: Sequence[Sequence[int]], groups: Sequence[Group]
) -> tuple[dict[str, NDArray[Any]], tuple[Payload, ...], tuple[str, ...]]:
    """All rows, with each dump's indices replaced by the job's."""
    sizes = [len(record.dump.columns["seq"]) for record in records]
    columns = {name: np.empty(sum(sizes), dtype) for name, dtype in COLUMNS.items()}
    payloads: dict[Payload, int] = {}
    sites: dict[str, int] = {}
    end = 0
    for record, size, index in zip(records, sizes, places, strict=True):
        dump, rows = record.dump, slice(end, end + size)
        end += size
        for name, values in dump.columns.items():
            columns[name][rows] = values
        columns["rank"][rows] = record.rank
        columns["group"][rows] = _renumbered(dump.columns["group"], index)
        columns["payload"][rows] = _renumbered(
            dump.columns["payload"], [payloads.setdefault(p, len(payloads)) for p in dump.payloads]
        )
        columns["site"][rows] = _renumbered(
            dump.columns["site"], [sites.setdefault(s, len(sites)) for s in dump.sites]
        )
        if not dump.global_peers:
            columns["peer"][rows] = _peers(columns, rows, groups)
    return columns, tuple(payloads), tuple(sites)


def _renumbered(column: NDArray[Any], numbers: Sequence[int]) -> NDArray[np.int32]:
    """`numbers` indexed by `column`; NONE stays NONE."""
    renumbered: NDArray[np.int32] = np.array([*numbers, NONE], np.int32)[column]
    return renumbered


def _peers(
    columns: Mapping[str, NDArray[Any]], rows: slice, groups: Sequence[Group]
) -> NDArray[np.int32]:
    """Group ranks of peers as global ranks; NONE where the members are unknown."""
    peers: NDArray[np.int32] = columns["peer"][rows].copy()
    if not (peers != NONE).any():
        return peers
    pointing = np.flatnonzero(peers != NONE)
    group = columns["group"][rows][pointing]
    order = np.argsort(group, kind="stable")
    cuts = np.flatnonzero(np.diff(group[order])) + 1
    for own in np.split(pointing[order], cuts):
        index = int(columns["group"][rows][own[0]])
        members = () if groups[index].inferred else groups[index].members
        inside = peers[own] < len(members)
        peers[own[inside]] = np.array(members, np.int32)[peers[own[inside]]]
        peers[own[~inside]] = NONE
    return peers
