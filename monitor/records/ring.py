"""WorkerServers' answers: read row by row, and combined into one job.

Theory of operation. An answer holds the rank's ring and torch's own record. For each process group
one of the two is used, the same on all ranks, because they count differently. Torch's is used where
only it is complete (NCCL; collectives called from C++, as by DDP's reducer) and every rank has it.
Otherwise the ring is used, which on gloo knows what torch does not: exits, errors, roots, threads,
point-to-point, TorchFT's quorums.

Ranks are named by replica group and group rank, and numbered in that order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from lightkeeper.monitor.model.names import RankName, rank_name, split_rank_name
from lightkeeper.monitor.records.dump import (
    Dump,
    LocalGroup,
    Record,
    assemble,
    count_by_group,
    number_keys,
    read_dump,
)
from lightkeeper.monitor.records.job import (
    COLUMNS,
    MAIN_THREAD,
    NONE,
    Backend,
    CollectiveState,
    GroupStatus,
    Job,
    Payload,
    Problem,
)
from lightkeeper.monitor.records.safe_pickle import FlightRecordError
from lightkeeper.monitor.records.signature import POINT_TO_POINT, dtype_name, op_name, payload_of
from lightkeeper.worker_server.wire import ACROSS, RING_CALLS, FlightRecord, RingEntry

# -- rows of one answer ------------------------------------------------------------------------


class GroupKey(NamedTuple):
    """A process group as one rank names it."""

    name: str
    places: tuple[int, ...] = ()
    """Group ranks of its members within the replica group, if known."""
    quorum: int | None = None
    age: int = 0
    """How many newer groups have the same name, seen from sequence ids that start again."""
    nameless: bool = False
    """True if torch's record has no name for it."""

    @property
    def across(self) -> bool:
        """True if it spans replica groups."""
        return self.name.partition(".")[0] == ACROSS


@dataclass(frozen=True, slots=True)
class RingRow:
    """One collective of one rank; ranks count within the replica group."""

    group: GroupKey
    seq: int
    payload: Payload
    state: CollectiveState
    op_id: int = NONE
    record: int = NONE
    site: str | None = None
    p2p: bool = False
    peer: int = NONE
    thread: int = NONE
    blocking: bool = False
    created_ns: int = NONE
    started_ns: int = NONE
    completed_ns: int = NONE
    torch_ids: tuple[int, ...] = ()


@dataclass(frozen=True)  # no slots: they leave no room for a cached property
class RankRecord:
    """One rank's record in both forms."""

    record: FlightRecord
    path: str = ""
    ring: tuple[RingRow, ...] = ()
    dumps: tuple[tuple[Dump, tuple[GroupKey, ...]], ...] = ()
    """Torch's records, with each group's key in the ring, where it can be matched."""
    taken_ns: int = NONE
    problem: str | None = None
    alone: frozenset[int] = frozenset()
    """Torch's record ids that belong to no entry of the ring."""

    @cached_property
    def ring_groups(self) -> frozenset[GroupKey]:
        """Groups whose collectives the ring has."""
        return frozenset(row.group for row in self.ring if not row.p2p)

    @cached_property
    def torch(self) -> tuple[RingRow, ...]:
        """Torch's records as rows."""
        owners = rows_by_torch_id(self.ring)
        return tuple(r for dump, keys in self.dumps for r in rows_of_dump(dump, keys, owners))


# -- torch's record in the ring's groups -------------------------------------------------------

_AS_THEY_ARE: Final = (
    "seq", "op_id", "record", "state", "p2p", "thread", "blocking", "created_ns", "started_ns",
    "completed_ns",
)  # fmt: skip


def rows_of_dump(
    dump: Dump, groups: Sequence[GroupKey], owners: Mapping[int, RingRow]
) -> tuple[RingRow, ...]:
    """Torch's rows in the ring's groups, with what only the ring knows about them."""
    columns = {name: column.tolist() for name, column in dump.columns.items()}
    threads = {
        columns["thread"][at]: owners[record].thread
        for at, record in enumerate(columns["record"])
        if record in owners
    }
    rows = []
    for at, record in enumerate(columns["record"]):
        said = {name: columns[name][at] for name in _AS_THEY_ARE}
        if threads:
            said["thread"] = threads.get(said["thread"], NONE)
        group, site, peer = (columns[name][at] for name in ("group", "site", "peer"))
        members = dump.groups[group].members
        row = RingRow(
            **{**said, "state": CollectiveState(said["state"])},
            group=groups[group],
            payload=dump.payloads[columns["payload"][at]],
            site=None if site == NONE else dump.sites[site],
            # a group rank as a rank of the replica group
            peer=members[peer] if peer != NONE and peer < len(members) else NONE,
            torch_ids=(record,),
        )
        rows.append(_completed_by(owners[record], row) if record in owners else row)
    return tuple(rows)


def _completed_by(own: RingRow, row: RingRow) -> RingRow:
    """Torch's row with what only the ring's knows."""
    by_ring = own.state is CollectiveState.FAILED or row.state is CollectiveState.UNKNOWN
    return replace(
        row,
        payload=replace(row.payload, reduce_op=own.payload.reduce_op, root=own.payload.root),
        state=own.state if by_ring else row.state,
        site=row.site or own.site,  # torch's also has calls that the ring has forgotten
        blocking=own.blocking,
    )


def matched_groups(
    dump: Dump, ring: Sequence[RingRow], places: Mapping[str, tuple[int, ...]]
) -> tuple[GroupKey, ...]:
    """For each of torch's groups the ring's group that most of its matched entries are in.

    Without matches it is the ring's group of the same name, else a group that only torch knows.
    """
    owners = rows_by_torch_id(ring)
    votes: dict[int, Counter[GroupKey]] = {}
    pairs = (dump.columns[name].tolist() for name in ("record", "group"))
    for record, index in zip(*pairs, strict=True):
        if record in owners:
            votes.setdefault(index, Counter())[owners[record].group] += 1
    named = {row.group.name: row.group for row in ring if not row.group.across}
    keys = []
    for index, group in enumerate(dump.groups):
        world = group.desc == "default_pg"
        given = "default" if world else group.desc or group.name
        name = given or f"unnamed {group.pg_id}"
        if index in votes:
            keys.append(max(votes[index].items(), key=lambda vote: (vote[1], vote[0].name))[0])
        elif name in named and group.age == 0:
            keys.append(named[name])
        else:
            members = group.members or places.get(name, ())
            keys.append(GroupKey(name, tuple(members), group.generation, group.age, not given))
    return tuple(keys)


def split_by_backend(
    homes: Sequence[tuple[GroupKey, ...]], dumps: Sequence[Dump]
) -> list[tuple[GroupKey, ...]]:
    """A group that several backends serve, each with its own count, as one group per backend."""
    taken: set[GroupKey] = set()
    renamed = []
    for keys, dump in zip(homes, dumps, strict=True):
        served = f".{dump.backend.name.lower()}"
        renamed.append(
            tuple(
                key._replace(name=key.name + served) if key._replace(places=()) in taken else key
                for key in keys
            )
        )
        taken.update(key._replace(places=()) for key in keys)
    return renamed


def rows_by_torch_id(ring: Iterable[RingRow]) -> dict[int, RingRow]:
    """Torch's record id -> the ring's row that it belongs to."""
    return {number: row for row in ring for number in row.torch_ids}


# -- one answer, read --------------------------------------------------------------------------

_COPY: Final = re.compile(r"#\d+$")
"""The ring numbers groups of one description in the order in which the process made them."""
_NS: Final = 1_000_000_000
_LARGEST_WORLD: Final = 1 << 16
"""Ranks of one replica group; each is counted as expected."""
_LONGEST_AGE_S: Final = 1e9
_LARGEST: Final = 1 << 62
_STRIDE: Final = 1 << 40
"""Offset between the record ids of two recorders: each counts from 0."""


def read_answer(record: FlightRecord, path: str = "", taken_ns: int = NONE) -> RankRecord:
    """All records of an answer as rows; an unreadable part of torch's is noted in `problem`.

    `taken_ns`: time of the answer, Unix time, used if torch's times do not give it.

    Raises:
        FlightRecordError: an impossible sequence id or world size.
    """
    refuse_impossible(record)
    dumps: list[Dump] = []
    problems: list[str] = []
    alone: set[int] = set()
    first = {name: at * _STRIDE for at, (name, _) in enumerate(record.parts)}
    for name, part in record.parts:
        if part.error is not None:
            problems.append(part.error)
        try:
            dump = None if part.record is None else read_dump(part.record)
        except FlightRecordError as exc:
            problems.append(f"torch's part{f' of {name}' if name else ''}: {exc}")
            continue
        if dump is not None:
            number = dump.columns["record"] + first[name]
            dumps.append(replace(dump, columns={**dump.columns, "record": number}))
        alone.update(number + first[name] for number in part.only)
    entries = _collectives_alone(record.ring)
    if dumps[1:]:
        entries = tuple(_numbered(entry, first) for entry in entries)
    taken_ns = _taken(entries, dumps, taken_ns)
    ring = _ring_rows(replace(record, ring=_with_main_thread(entries, record)), dumps, taken_ns)
    homes = split_by_backend([matched_groups(dump, ring, record.members) for dump in dumps], dumps)
    return RankRecord(
        record=record,
        path=path,
        ring=ring,
        dumps=tuple(zip(dumps, homes, strict=True)),
        taken_ns=taken_ns,
        problem="; ".join(problems) or None,
        alone=frozenset(alone),
    )


def _with_main_thread(
    entries: tuple[RingEntry, ...], record: FlightRecord
) -> tuple[RingEntry, ...]:
    """The entries with `MAIN_THREAD` for the main thread, whose native id is the process's; where
    it calls nothing, for the one that calls most.
    """
    callers = Counter(entry.thread for entry in entries if entry.thread is not None)
    pid = record.identity.pid
    main = pid if pid in callers else max(callers, key=callers.__getitem__, default=None)
    if main is None:
        return entries
    return tuple(
        replace(entry, thread=MAIN_THREAD) if entry.thread == main else entry for entry in entries
    )


def _collectives_alone(ring: tuple[RingEntry, ...]) -> tuple[RingEntry, ...]:
    """The entries with collectives numbered alone.

    Rings of a WorkerServer up to 0.2, which name no thread, count sends and receives among them.
    Of such a ring that no longer has all calls nothing of use is left.
    """
    old = not any(entry.thread is not None for entry in ring)
    if not old or not any(entry.op in POINT_TO_POINT for entry in ring):
        return ring
    if not all(entry.id == number for number, entry in enumerate(ring, 1)):
        return ()
    between: Counter[tuple[str, int | None]] = Counter()
    last: dict[tuple[str, int | None], int] = {}
    entries = []
    for entry in ring:
        name = entry.group, entry.quorum
        if entry.seq <= last.get(name, -1):
            between[name] = 0
        last[name] = entry.seq
        entries.append(replace(entry, seq=entry.seq - between[name]))
        between[name] += entry.op in POINT_TO_POINT
    return tuple(entries)


def _numbered(entry: RingEntry, first: Mapping[str | None, int]) -> RingEntry:
    """The entry with torch's ids offset by its recorder's `first`."""
    at = first.get(entry.recorder)
    return replace(entry, torch_ids=() if at is None else tuple(n + at for n in entry.torch_ids))


def refuse_impossible(record: FlightRecord) -> None:
    """Refuse numbers that no program has.

    Raises:
        FlightRecordError: there is such a number.
    """
    if not record.identity.group:
        raise FlightRecordError("a rank of no replica group")
    if record.identity.world_size > _LARGEST_WORLD:
        raise FlightRecordError(f"a world of {record.identity.world_size} ranks")
    for entry in record.ring:
        if max(entry.seq, entry.id or 0) >= _LARGEST:
            raise FlightRecordError(f"ring: sequence {entry.seq} of {entry.group[:40]!r}")
        if max(entry.enter_age_s, entry.exit_age_s or 0) > _LONGEST_AGE_S:
            raise FlightRecordError(f"ring: an age of {entry.enter_age_s} s")


def _taken(ring: Iterable[RingEntry], dumps: Iterable[Dump], otherwise: int) -> int:
    """The time from which ages count: torch makes its entry just after the ring."""
    created: dict[int, int] = {}
    for dump in dumps:
        pairs = (dump.columns[name].tolist() for name in ("record", "created_ns"))
        created.update(zip(*pairs, strict=True))
    guesses = [
        created[number] + int(entry.enter_age_s * _NS)
        for entry in ring
        for number in entry.torch_ids
        if created.get(number, NONE) != NONE
    ]
    return min(guesses, default=otherwise)


def _ring_rows(record: FlightRecord, dumps: Iterable[Dump], taken_ns: int) -> tuple[RingRow, ...]:
    """The ring as rows, with torch's states where these are more reliable than the ring's: NCCL's
    are real, gloo only knows what is over, of work that nobody waited for, too.
    """
    over: dict[int, CollectiveState] = {}
    for dump in dumps:
        real, done = dump.backend is Backend.NCCL, CollectiveState.COMPLETED
        states = zip(*(dump.columns[name].tolist() for name in ("record", "state")), strict=True)
        over |= {number: CollectiveState(s) for number, s in states if real or s == done}
    rows = [_ring_row(entry, key, taken_ns, over) for entry, key in _keyed(record)]
    return tuple(_batched(_close_unwaited(rows, record.ring), record.ring))


def _keyed(record: FlightRecord) -> Iterable[tuple[RingEntry, GroupKey]]:
    """Entries with their groups; collectives whose sequence ids start again make a new group."""
    last: dict[tuple[str, int | None], int] = {}
    begun: Counter[tuple[str, int | None]] = Counter()
    epochs = []
    for entry in record.ring:
        name = entry.group, entry.quorum
        if entry.op not in POINT_TO_POINT:
            if entry.seq <= last.get(name, -1):
                begun[name] += 1
            last[name] = entry.seq
        epochs.append(begun[name])
    for entry, epoch in zip(record.ring, epochs, strict=True):
        age = begun[entry.group, entry.quorum] - epoch
        places = record.members.get(entry.group, ())
        base = _COPY.sub("", entry.group) if places else entry.group
        yield entry, GroupKey(base, tuple(places), entry.quorum, age)


def newest_collectives(record: FlightRecord) -> tuple[RingEntry, ...]:
    """The ring without point-to-point operations, and only the newest group of each name.

    Raises:
        FlightRecordError: a sequence id below 1.
    """
    calls = [pair for pair in _keyed(record) if op_name(pair[0].op) not in POINT_TO_POINT]
    quorum = {entry.group: entry.quorum for entry, _ in calls}
    for entry, _ in calls:
        if entry.seq < 1:
            raise FlightRecordError(
                f"ring of {record.identity.rank}: sequence {entry.seq} of {entry.group!r}"
            )
    return tuple(e for e, key in calls if not key.age and e.quorum == quorum[e.group])


def _ring_row(
    entry: RingEntry, key: GroupKey, taken_ns: int, over: Mapping[int, CollectiveState]
) -> RingRow:
    p2p, state = entry.op in POINT_TO_POINT, _state(entry, over)
    completed = state is CollectiveState.COMPLETED
    dtypes = () if dtype_name(entry.dtype) is None else (str(entry.dtype),)
    root = None if key.across else entry.root
    return RingRow(
        group=key,
        seq=entry.seq,
        payload=payload_of(
            entry.op,
            entry.sizes_in,
            entry.sizes_out,
            dtypes_in=dtypes * len(entry.sizes_in),
            dtypes_out=dtypes * len(entry.sizes_out),
            reduce_op=entry.reduce_op,
            root=None if p2p else root,
            tag=entry.tag or 0 if p2p else 0,
        ),
        state=state,
        op_id=_number(entry.id),
        record=_number(entry.id),
        site=entry.site,
        p2p=p2p,
        peer=_number(root) if p2p else NONE,
        thread=_number(entry.thread),
        blocking=not entry.is_async,
        created_ns=_moment(taken_ns, entry.enter_age_s),
        completed_ns=_moment(taken_ns, entry.exit_age_s if completed else None),
        torch_ids=entry.torch_ids,
    )


def _number(value: int | None) -> int:
    return NONE if value is None else value


def _moment(taken_ns: int, age_s: float | None) -> int:
    """The time of something of this age, if both are known."""
    return NONE if age_s is None or taken_ns == NONE else taken_ns - int(age_s * _NS)


def _state(entry: RingEntry, over: Mapping[int, CollectiveState]) -> CollectiveState:
    """With NCCL the host's exit does not mean that the GPU is done; torch's state does."""
    if entry.error is not None:
        return CollectiveState.FAILED
    states = [over[number] for number in entry.torch_ids if number in over]
    if states:
        return min(states)
    return CollectiveState.UNKNOWN if entry.exit_age_s is None else CollectiveState.COMPLETED


def _close_unwaited(rows: Sequence[RingRow], ring: Sequence[RingEntry]) -> list[RingRow]:
    """An asynchronous call before a completed one of its group is marked as completed too.

    Its missing exit may only mean that nobody called wait(); a group's work is done in order.
    """
    last: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.state is CollectiveState.COMPLETED:
            last[_stream(row)] = max(row.seq, last.get(_stream(row), 0))
    return [
        replace(row, state=CollectiveState.COMPLETED)
        if entry.is_async
        and row.state is CollectiveState.UNKNOWN
        and row.seq < last.get(_stream(row), 0)
        else row
        for row, entry in zip(rows, ring, strict=True)
    ]


def _stream(row: RingRow) -> tuple[Any, ...]:
    """What is counted together: a group's collectives, or its transfers of one kind with one peer
    and tag.
    """
    return row.group, row.payload.op if row.p2p else "", row.peer, row.payload.tag


def _batched(rows: Sequence[RingRow], ring: Sequence[RingEntry]) -> Iterable[RingRow]:
    """Transfers that one line posts one after the other get the op id of the first: they are one
    operation, such as `batch_isend_irecv`, and the rank waits for all of them.
    """
    before: tuple[Any, ...] | None = None
    op_id = NONE
    for row, entry in zip(rows, ring, strict=True):
        line = (entry.group, entry.site, entry.thread, entry.attempt)
        posted = row.p2p and entry.is_async
        same = posted and before == (*line, row.op_id)
        op_id = op_id if same else row.op_id
        before = (*line, row.op_id + 1) if posted else None
        yield replace(row, op_id=op_id) if same else row


# -- bounds ------------------------------------------------------------------------------------

_RING: Final = 2 * RING_CALLS
_ENTRIES: Final = 8192
"""For all of torch's recorders together: each keeps 2,000 by default."""
_RECORDERS: Final = 8
_GROUPS: Final = 512
"""Process groups of one rank. A rank of a large job is in some tens, and in one more per quorum;
each costs the analysis 0.1 ms."""
_TORCH_IDS: Final = 64
"""Torch's records of one call: the parts of a coalesced one."""


def bounded(record: FlightRecord) -> FlightRecord:
    """The newest entries of a record.

    Raises:
        FlightRecordError: no program can have made this record.

    No rank may hold up a tick, so of a record with more entries than its recorders keep only the
    newest are used. One that no program can have made is garbage: the other ranks are judged
    without it.
    """
    refuse_impossible(record)
    if len(record.recorders) >= _RECORDERS:
        raise FlightRecordError(f"{len(record.recorders)} recorders")
    world = max(record.identity.world_size, 1)
    if len(record.members) > _RING or any(len(m) > world for m in record.members.values()):
        raise FlightRecordError("members of its process groups that its world does not have")
    ring = _newest_calls(record.ring)
    if any(len(entry.torch_ids) > _TORCH_IDS for entry in ring):
        raise FlightRecordError(f"an entry of more than {_TORCH_IDS} of torch's")
    most = _ENTRIES // (1 + len(record.recorders))
    return replace(
        record,
        ring=ring,
        dropped=record.dropped + len(record.ring) - len(ring),
        torch=_newest(record.torch, most),
        recorders={
            name: replace(recorder, record=_newest(recorder.record, most))
            for name, recorder in record.recorders.items()
        },
    )


def _newest_calls(ring: tuple[RingEntry, ...]) -> tuple[RingEntry, ...]:
    """The last calls of a ring; sequence ids that start again count as another group."""
    first: dict[tuple[str, int | None], int] = {}
    begun = 0
    for place, entry in enumerate(reversed(ring)):
        key = entry.group, entry.quorum
        collective = entry.op not in POINT_TO_POINT
        begun += collective and entry.seq >= first.get(key, 0)
        if place == _RING or begun > _GROUPS:
            return ring[len(ring) - place :]
        if collective:
            first[key] = entry.seq
    return ring


def _newest(torch: Mapping[str, Any] | None, most: int) -> Mapping[str, Any] | None:
    entries = None if torch is None else torch.get("entries")
    if torch is None or not isinstance(entries, list):
        return torch
    for key in ("pg_config", "pg_status"):
        _few(torch.get(key))
    rows = entries[-most:]
    ids = (row.get("pg_id") for row in rows if isinstance(row, dict))
    _few({number for number in ids if type(number) is int})
    return torch if len(rows) == len(entries) else {**torch, "entries": rows}


def _few(groups: Any) -> None:
    if isinstance(groups, set | dict) and len(groups) > _GROUPS:
        raise FlightRecordError(f"{len(groups)} process groups")


# -- the job of many answers -------------------------------------------------------------------

_WORLD: Final = "default"
"""The ring's name for a replica group's own world."""


@dataclass(frozen=True, slots=True)
class _Ranks:
    """Global ranks of a job that has replica groups."""

    number: Mapping[tuple[str, int], int]
    alone: bool
    """True if there is only one replica group, so names need not include it."""
    lanes: int
    """Ranks of the largest replica group."""

    def members(self, group: str, places: Iterable[int]) -> tuple[int, ...]:
        """Global ranks of a replica group's ranks; empty if any of them is unknown."""
        members = [self.number.get((group, place), NONE) for place in places]
        return () if NONE in members else tuple(members)


def from_answers(
    answers: Iterable[RankRecord],
    *,
    lost: Mapping[RankName, Problem] | None = None,
    members: Mapping[str, Sequence[int]] | None = None,
    problems: Iterable[Problem] = (),
) -> Job:
    """The job of these answers, at most one per rank; `lost`: ranks whose answer cannot be read."""
    counted = _counted(
        sorted(answers, key=lambda answer: split_rank_name(answer.record.identity.rank))
    )
    lost = lost or {}
    ranks = _ranks(counted, lost)
    by_torch = _groups_by_torch(counted)
    quorums = _quorums(counted)
    records = [_record(answer, ranks, by_torch, quorums) for answer in counted]
    odd = [Problem(answer.path, answer.problem) for answer in counted if answer.problem is not None]
    gone = [replace(lost[name], rank=ranks.number[split_rank_name(name)]) for name in lost]
    job = assemble(
        records, world_size=len(ranks.number), members=members, problems=[*problems, *odd, *gone]
    )
    names = {number: rank_name(*place) for place, number in ranks.number.items()}
    of_rank = {record.rank: each for each, record in zip(counted, records, strict=True)}
    infos = {
        rank: replace(job.ranks[rank], alive=each.record.alive, taken_ns=each.taken_ns)
        for rank, each in of_rank.items()
    }
    hosts = {rank: str(each.record.identity.host) for rank, each in of_rank.items()}
    return replace(job, names=names, hosts=hosts, ranks=infos)


def _counted(answers: Sequence[RankRecord]) -> list[RankRecord]:
    """The answers with torch's calls numbered within each group; see `count_by_group`."""
    dumps, uncounted = count_by_group([dump for answer in answers for dump, _ in answer.dumps])
    after = iter(dumps)
    return [
        replace(
            answer,
            dumps=tuple((next(after), keys) for _, keys in answer.dumps),
            problem="; ".join(filter(None, (answer.problem, uncounted))) or None,
        )
        for answer in answers
    ]


def _ranks(answers: Sequence[RankRecord], expected: Iterable[RankName]) -> _Ranks:
    places = {split_rank_name(name) for name in expected}
    for answer in answers:
        identity = answer.record.identity
        places.update((identity.group, place) for place in range(identity.world_size))
    number: dict[tuple[str, int], int] = {place: at for at, place in enumerate(sorted(places))}
    lanes = 1 + max((lane for _, lane in places), default=0)
    return _Ranks(number, len({group for group, _ in places}) == 1, lanes)


def _groups_by_torch(answers: Sequence[RankRecord]) -> frozenset[tuple[str, GroupKey]]:
    """(replica group, process group) pairs that use torch's record; "" for groups across.

    None does of which the ring has later calls: torch's record of the dead was read before they
    died, at a sample.
    """
    ring: dict[tuple[str, GroupKey], bool] = {}
    wanted: set[tuple[str, GroupKey]] = set()
    for answer in answers:
        torch = {row.group for row in answer.torch}
        nccl = {key for dump, keys in answer.dumps for key in keys if dump.backend is Backend.NCCL}
        unexplained = {row.group for row in answer.torch if row.record in answer.alone}
        torch -= {row.group for row in answer.ring if _after_torch(answer, row)}
        for key in answer.ring_groups | torch:
            where = _scope(answer, key)
            ring[where] = ring.get(where, True) and key in torch
            if key in nccl or key in unexplained:
                wanted.add(where)
    return frozenset(where for where in wanted if ring[where])


def _after_torch(answer: RankRecord, row: RingRow) -> bool:
    """True if a call of the ring came after torch's record was read."""
    age_s = answer.record.torch_age_s
    if age_s is None or row.torch_ids or NONE in (answer.taken_ns, row.created_ns):
        return False
    return row.created_ns > answer.taken_ns - int(age_s * _NS)


def _scope(answer: RankRecord, key: GroupKey) -> tuple[str, GroupKey]:
    return ("" if key.across else answer.record.identity.group), key


def _quorums(answers: Sequence[RankRecord]) -> dict[GroupKey, set[str]]:
    """Groups that span replica groups -> the replica groups that are in them."""
    groups: dict[GroupKey, set[str]] = {}
    for answer in answers:
        for row in (*answer.ring, *answer.torch):
            if row.group.across:
                groups.setdefault(row.group, set()).add(answer.record.identity.group)
    return groups


def _record(
    answer: RankRecord,
    ranks: _Ranks,
    by_torch: frozenset[tuple[str, GroupKey]],
    quorums: Mapping[GroupKey, set[str]],
) -> Record:
    identity = answer.record.identity
    rows = _rows(answer, by_torch)
    status = _status(answer, by_torch)
    group, groups = number_keys([*(row.group for row in rows), *status])
    payload, payloads = number_keys(_with_root(row.payload, answer, ranks) for row in rows)
    site, sites = number_keys([None, *(row.site for row in rows)])
    columns: dict[str, Iterable[Any]] = {
        name: [getattr(row, name) for row in rows] for name in _AS_THEY_ARE
    }
    columns |= {
        "group": group[: len(rows)],
        "payload": payload,
        "site": site[1:] - 1,  # NONE if there is none
        "peer": [ranks.number.get((identity.group, row.peer), NONE) for row in rows],
    }
    backends = [dump.backend for dump, _ in answer.dumps if not answer.ring] or [Backend.RING]
    return Record(
        rank=ranks.number[identity.group, identity.group_rank],
        path=answer.path,
        dump=Dump(
            backend=Backend.NCCL if Backend.NCCL in backends else backends[0],
            only_active=_only_active(answer, rows),
            dropped=answer.record.dropped,
            groups=tuple(_local(key, answer, ranks, quorums) for key in groups),
            status={groups.index(key): head for key, head in status.items()},
            payloads=payloads,
            sites=sites[1:],
            columns={name: np.array(listed, COLUMNS[name]) for name, listed in columns.items()},
            global_peers=True,
        ),
    )


def _rows(answer: RankRecord, by_torch: frozenset[tuple[str, GroupKey]]) -> list[RingRow]:
    """Each group's rows from the record that is used for it, in call order."""
    ring = [row for row in answer.ring if row.p2p or _scope(answer, row.group) not in by_torch]
    sends = {row.group for row in answer.torch if row.p2p}
    torch = [row for row in answer.torch if _counts(answer, row.group, by_torch)]
    rows = [row for row in ring if not (row.p2p and row.group in sends)] + torch
    if all(row.created_ns != NONE for row in rows):
        rows.sort(key=lambda row: row.created_ns)
    return rows


def _status(
    answer: RankRecord, by_torch: frozenset[tuple[str, GroupKey]]
) -> dict[GroupKey, GroupStatus]:
    """Torch's status of the groups that use its numbers."""
    heads = {
        keys[index]: head
        for dump, keys in answer.dumps
        for index, head in sorted(dump.status.items())
    }
    return {key: head for key, head in heads.items() if _counts(answer, key, by_torch)}


def _counts(answer: RankRecord, key: GroupKey, by_torch: frozenset[tuple[str, GroupKey]]) -> bool:
    """True if torch's numbers of a group are used."""
    return key not in answer.ring_groups or _scope(answer, key) in by_torch


def _only_active(answer: RankRecord, rows: Sequence[RingRow]) -> bool:
    """True if only unfinished calls were requested: seen from missing numbers."""
    if any(row.state is CollectiveState.COMPLETED for row in rows):
        return False
    torch = any(dump.only_active for dump, _ in answer.dumps)
    ring = bool(answer.record.ring) and (answer.record.ring[0].id or 0) > answer.record.dropped + 1
    return torch or ring


def _local(
    key: GroupKey, answer: RankRecord, ranks: _Ranks, quorums: Mapping[GroupKey, set[str]]
) -> LocalGroup:
    """The group with its members as global ranks.

    Across replica groups there is one group per group rank, with that rank of each replica group
    known to be in the quorum; a replica group that has not answered may be in it too.
    """
    identity = answer.record.identity
    if key.across:
        lane = identity.group_rank
        like = [(group, lane) for group in sorted(quorums.get(key, ()))]
        members = tuple(ranks.number[place] for place in like if place in ranks.number)
        name = key.name if ranks.lanes == 1 else f"{key.name}/{lane}"
        return LocalGroup(name, members=members, age=key.age, generation=key.quorum, inferred=True)
    name, places = key.name, key.places
    if not places and name == _WORLD:
        places = tuple(range(identity.world_size))
    if not places and key.nameless:  # an old quorum's: nobody knows with whom
        name += f" of {identity.rank}"
    return LocalGroup(
        name if ranks.alone else f"{identity.group}/{name}",
        members=ranks.members(identity.group, places),
        age=key.age,
        generation=key.quorum,
    )


def _with_root(payload: Payload, answer: RankRecord, ranks: _Ranks) -> Payload:
    if payload.root is None:
        return payload
    root = ranks.number.get((answer.record.identity.group, payload.root))
    return replace(payload, root=root)
