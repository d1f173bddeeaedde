"""Rows of one WorkerServer's answer, of its ring above all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from monitor.flight_recorder import dump, ring_torch
from monitor.flight_recorder.job import NONE, Backend, Payload, State
from monitor.flight_recorder.ops import POINT_TO_POINT, dtype_name, op_name
from monitor.flight_recorder.record import FlightRecordError
from monitor.flight_recorder.ring_types import Answer, GroupKey, Row
from monitor.flight_recorder.signature import reduce_name
from worker_server.wire import FlightRecord, RingEntry

_COPY: Final = re.compile(r"#\d+$")
"""The ring tells groups of one description apart by the order in which that process made them."""
_NS: Final = 1_000_000_000
_LARGEST_WORLD: Final = 1 << 16
"""Ranks of one replica group; each is counted as expected."""
_LONGEST_AGE_S: Final = 1e9
_LARGEST: Final = 1 << 62
_STRIDE: Final = 1 << 40
"""Between the entries of two recorders: each counts its own from 0."""


def read(record: FlightRecord, path: str = "", taken_ns: int = NONE) -> Answer:
    """All records of an answer as rows; parts of torch's may be unreadable, which is a problem.

    `taken_ns`: when it was answered, Unix time, if torch's times do not tell.

    Raises:
        FlightRecordError: a sequence id or a world that no program has.
    """
    _check(record)
    dumps: list[dump.Dump] = []
    problems: list[str] = []
    alone: set[int] = set()
    first = {name: at * _STRIDE for at, (name, _) in enumerate(record.parts)}
    for name, part in record.parts:
        if part.error is not None:
            problems.append(part.error)
        try:
            found = None if part.record is None else dump.read(part.record)
        except FlightRecordError as exc:
            problems.append(f"torch's part{f' of {name}' if name else ''}: {exc}")
            continue
        if found is not None:
            number = found.columns["record"] + first[name]
            dumps.append(replace(found, columns={**found.columns, "record": number}))
        alone.update(number + first[name] for number in part.only)
    entries = tuple(_numbered(entry, first) for entry in record.ring) if dumps[1:] else record.ring
    taken_ns = _taken(entries, dumps, taken_ns)
    ring = _ring_rows(replace(record, ring=entries), dumps, taken_ns)
    owners = ring_torch.owners_of(ring)
    homes = ring_torch.apart(
        [ring_torch.homes(found, ring, record.members) for found in dumps], dumps
    )
    return Answer(
        record=record,
        path=path,
        ring=ring,
        torch=tuple(
            row
            for found, keys in zip(dumps, homes, strict=True)
            for row in ring_torch.rows(found, keys, owners)
        ),
        dumps=tuple(zip(dumps, homes, strict=True)),
        taken_ns=taken_ns,
        problem="; ".join(problems) or None,
        alone=frozenset(alone),
    )


def _numbered(entry: RingEntry, first: Mapping[str | None, int]) -> RingEntry:
    """The entry with torch's numbers as they are here, where each recorder has its own."""
    at = first.get(entry.recorder)
    return replace(entry, torch_ids=() if at is None else tuple(n + at for n in entry.torch_ids))


def _check(record: FlightRecord) -> None:
    if not record.identity.group:
        raise FlightRecordError("a rank of no replica group")
    if record.identity.world_size > _LARGEST_WORLD:
        raise FlightRecordError(f"a world of {record.identity.world_size} ranks")
    for entry in record.ring:
        if max(entry.seq, entry.id or 0) >= _LARGEST:
            raise FlightRecordError(f"ring: sequence {entry.seq} of {entry.group[:40]!r}")
        if max(entry.enter_age_s, entry.exit_age_s or 0) > _LONGEST_AGE_S:
            raise FlightRecordError(f"ring: an age of {entry.enter_age_s} s")


def _taken(ring: Iterable[RingEntry], dumps: Iterable[dump.Dump], known: int) -> int:
    """The moment that the ages count from: torch made its entry just after the ring its own."""
    created = {
        number: moment
        for found in dumps
        for number, moment in zip(
            found.columns["record"].tolist(), found.columns["created_ns"].tolist(), strict=True
        )
    }
    guesses = [
        created[number] + int(entry.enter_age_s * _NS)
        for entry in ring
        for number in entry.torch_ids
        if created.get(number, NONE) != NONE
    ]
    return min(guesses, default=known)


def _ring_rows(record: FlightRecord, dumps: Iterable[dump.Dump], taken_ns: int) -> tuple[Row, ...]:
    over = {number: state for found in dumps for number, state in _over(found).items()}
    rows = [_ring_row(entry, key, taken_ns, over) for entry, key in _keyed(record)]
    rows = _close_unwaited(rows, record.ring)
    return _renumbered(rows) if is_whole(record) else tuple(rows)


def is_whole(record: FlightRecord) -> bool:
    """Whether the ring has every call of that process: nothing forgotten, nothing left out."""
    return all(entry.id == number for number, entry in enumerate(record.ring, 1))


def _keyed(record: FlightRecord) -> Iterable[tuple[RingEntry, GroupKey]]:
    """Entries with their groups; sequence ids that begin again make a group of their own."""
    last: dict[tuple[str, int | None], int] = {}
    begun: Counter[tuple[str, int | None]] = Counter()
    epochs = []
    for entry in record.ring:
        name = entry.group, entry.quorum
        if entry.seq <= last.get(name, -1):
            begun[name] += 1
        last[name] = entry.seq
        epochs.append(begun[name])
    for entry, epoch in zip(record.ring, epochs, strict=True):
        age = begun[entry.group, entry.quorum] - epoch
        places = record.members.get(entry.group, ())
        base = _COPY.sub("", entry.group) if places else entry.group
        yield entry, GroupKey(base, tuple(places), entry.quorum, age)


def _ring_row(entry: RingEntry, key: GroupKey, taken_ns: int, over: Mapping[int, State]) -> Row:
    p2p = entry.op in POINT_TO_POINT
    payload = Payload(
        op=op_name(entry.op),
        recorded=entry.op,
        sizes_in=entry.sizes_in,
        sizes_out=entry.sizes_out,
        dtypes_in=_dtypes(entry.dtype, entry.sizes_in),
        dtypes_out=_dtypes(entry.dtype, entry.sizes_out),
        reduce_op=reduce_name(entry.reduce_op),
        root=None if p2p or key.across else entry.root,
    )
    state = _state(entry, over)
    known = taken_ns != NONE
    left = known and entry.exit_age_s is not None and state is State.COMPLETED
    return Row(
        group=key,
        seq=entry.seq,
        payload=payload,
        state=state,
        op_id=NONE if entry.id is None else entry.id,
        record=NONE if entry.id is None else entry.id,
        site=entry.site,
        p2p=p2p,
        peer=entry.root if p2p and entry.root is not None and not key.across else NONE,
        created_ns=taken_ns - int(entry.enter_age_s * _NS) if known else NONE,
        completed_ns=taken_ns - int((entry.exit_age_s or 0) * _NS) if left else NONE,
        torch_ids=entry.torch_ids,
    )


def _dtypes(dtype: str | None, sizes: Sequence[object]) -> tuple[str, ...]:
    name = dtype_name(dtype)
    return () if name is None else (name,) * len(sizes)


def _state(entry: RingEntry, over: Mapping[int, State]) -> State:
    """With NCCL the host's exit does not mean that the GPU is done: torch's own state does."""
    if entry.error is not None:
        return State.FAILED
    told = [over[number] for number in entry.torch_ids if number in over]
    if told:
        return min(told)
    return State.UNKNOWN if entry.exit_age_s is None else State.COMPLETED


def _over(found: dump.Dump) -> dict[int, State]:
    """Torch's record id -> a state that is worth more than the ring's.

    NCCL's are real. Gloo only knows what is over, which matters for a work that nobody waited for.
    """
    columns = found.columns
    states = dict(zip(columns["record"].tolist(), columns["state"].tolist(), strict=True))
    real = found.backend is Backend.NCCL
    return {
        number: State(state) for number, state in states.items() if real or state == State.COMPLETED
    }


def _close_unwaited(rows: Sequence[Row], ring: Sequence[RingEntry]) -> list[Row]:
    """An asynchronous call before one that has completed in its group is over, waited for or not.

    Its missing exit may only mean that nobody called wait(); a group's work is done in order.
    """
    last: dict[GroupKey, int] = {}
    for row in rows:
        if row.state is State.COMPLETED:
            last[row.group] = max(row.seq, last.get(row.group, 0))
    return [
        replace(row, state=State.COMPLETED)
        if entry.is_async and row.state is State.UNKNOWN and row.seq < last.get(row.group, 0)
        else row
        for row, entry in zip(rows, ring, strict=True)
    ]


def _renumbered(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Sequence ids that count collectives and point-to-point apart, as torch's do.

    The ring counts both together, so that members with other sends would seem out of step. Needs
    a whole ring.
    """
    counts: Counter[tuple[GroupKey, bool]] = Counter()
    mixed = {row.group for row in rows if row.p2p}
    renumbered = []
    for row in rows:
        if row.group in mixed:
            counts[row.group, row.p2p] += 1
            renumbered.append(replace(row, seq=counts[row.group, row.p2p]))
        else:
            renumbered.append(row)
    return tuple(renumbered)
