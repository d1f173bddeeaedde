"""Who waits for whom: the wait-for graph over ranks and the collectives in which they are stuck.

Theory of operation. A rank points at every collective or transfer in which one of its streams is
stuck; that points at the members that hold it up. Members that did not enqueue it always hold it
up. Members that did, but are stuck in something earlier (their GPU has not got that far), hold up
only ranks for which it is the front: for the others, their own front explains the wait. Strongly
connected components that no edge leaves are the roots; a rank that reaches a root is its victim.
(Closed form: FT-HSDP's analyser, arXiv 2602.00277; Mycroft, SOSP'25.)

A stream is one communicator of one rank: collectives of a group, or the transfers between two ranks
in it. Within a stream the GPU works in order, across streams it does not, and the CPU runs ahead of
both. So a stream is stuck in its first unfinished entry (its head), and a rank is stuck in the
first of its heads in call order (its front).

Collectives are separate nodes, so a thousand ranks in one make a thousand edges, not a million.

No rank gets out of a synchronising collective before all ranks are in. So what one member completed
all members have enqueued, and all healthy members complete within milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.records.job import (
    COPIED_NS,
    MAIN_THREAD,
    MOMENTS,
    NONE,
    Backend,
    CollectiveState,
    GroupStatus,
    Job,
)
from lightkeeper.monitor.records.signature import closes_coalesced

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def live(job: Job) -> Bools:
    """Unfinished rows, and failed ones after which the rank finished nothing in that group.

    A rank that recovered from a failure is not stuck in it.
    """
    state = job.columns["state"]
    unfinished = np.isin(
        state, (CollectiveState.UNKNOWN, CollectiveState.SCHEDULED, CollectiveState.STARTED)
    )
    unfinished &= ~(_parts_of_the_past(job) | _received(job))
    failed = np.flatnonzero(state == CollectiveState.FAILED)
    if len(failed):
        done = np.flatnonzero(state == CollectiveState.COMPLETED)
        last = dict(zip(pairs(job, done).tolist(), done.tolist(), strict=True))
        keys = pairs(job, failed).tolist()
        unfinished[
            [r for r, k in zip(failed.tolist(), keys, strict=True) if r > last.get(k, -1)]
        ] = 1
    return np.asarray(unfinished, dtype=np.bool_)


def _received(job: Job) -> Bools:
    """Sends that their receiver has completed, by the ring's counts of each pair and tag.

    A rank that never waits for an `isend` leaves it unfinished in its own record.
    """
    columns = job.columns
    ring = [rank for rank, info in job.ranks.items() if info.backend is Backend.RING]
    rows = np.flatnonzero(columns["p2p"] & np.isin(columns["rank"], ring))
    over = np.zeros(len(job), dtype=np.bool_)
    received: set[tuple[int, ...]] = set()
    sent: list[tuple[int, tuple[int, ...]]] = []
    for row in rows.tolist():
        payload = job.payloads[int(columns["payload"][row])]
        rank, peer, group, seq = (int(columns[c][row]) for c in ("rank", "peer", "group", "seq"))
        if payload.op == "send":
            sent.append((row, (group, rank, peer, payload.tag, seq)))
        elif columns["state"][row] == CollectiveState.COMPLETED:
            received.add((group, peer, rank, payload.tag, seq))
    over[[row for row, key in sent if key in received]] = True
    return over


def _parts_of_the_past(job: Job) -> Bools:
    """Parts of finished batches, in records of unfinished entries only.

    The whole of a batch follows its parts and has their state (`closes_coalesced`). So if groups of
    one kind batch, parts without a whole belong to batches that were left out as completed. Batches
    work in order, so this excludes parts after an unfinished whole.
    """
    columns = job.columns
    over = np.zeros(len(job), dtype=np.bool_)
    whole = np.array([closes_coalesced(p.recorded) for p in job.payloads], dtype=np.bool_)
    if not len(job) or not (whole[columns["payload"]] & columns["p2p"]).any():
        return over
    whole = whole[columns["payload"]] & columns["p2p"]
    kinds = [group.desc or group.name for group in job.groups]
    batching = {kinds[group] for group in np.unique(columns["group"][whole]).tolist()}
    batched = np.array([kind in batching for kind in kinds], dtype=np.bool_)
    partial = [r for r, i in job.ranks.items() if i.only_active and i.backend is Backend.NCCL]
    parts = columns["p2p"] & ~whole & batched[columns["group"]]
    parts &= np.isin(columns["rank"], partial) & (columns["state"] == CollectiveState.SCHEDULED)
    ends: dict[int, int] = {}
    wholes = np.flatnonzero(whole)
    for key, seq in zip(pairs(job, wholes).tolist(), columns["seq"][wholes].tolist(), strict=True):
        ends[key] = min(seq, ends.get(key, seq))
    rows = np.flatnonzero(parts)
    for row, key in zip(rows.tolist(), pairs(job, rows).tolist(), strict=True):
        over[row] = key not in ends or columns["seq"][row] < ends[key]
    return over


def generations(job: Job) -> tuple[frozenset[int], Bools]:
    """Groups that were replaced, and by row whether its rank had not left the row's group.

    For each quorum TorchFT makes a new group whose sequence starts again; entries of the old one
    stay in the record forever, however they ended.
    """
    generation = np.array([NONE if g.generation is None else g.generation for g in job.groups])
    current = np.ones(len(job), dtype=np.bool_)
    if not len(job) or not (generation != NONE).any():
        return frozenset(), current
    rank, own = job.columns["rank"], generation[job.columns["group"]]
    newest = np.full(int(rank.max()) + 1, NONE)
    np.maximum.at(newest, rank, own)
    current = (own == NONE) | (own == newest[rank])
    latest = int(generation.max())
    return frozenset(np.flatnonzero((generation != NONE) & (generation < latest)).tolist()), current


def collective_heads(job: Job, chosen: Bools) -> dict[tuple[int, int], int]:
    """(rank, group) -> row of its lowest unfinished sequence."""
    seq = job.columns["seq"]
    streams = by_stream(job, np.flatnonzero(chosen))
    return {stream: int(rows[np.argmin(seq[rows])]) for stream, rows in streams.items()}


def transfer_heads(job: Job, chosen: Bools) -> list[int]:
    """Rows of the first unfinished send and the first unfinished recv of each pair and group."""
    heads: dict[tuple[int, int, int, str, int], int] = {}
    columns = job.columns
    for row in np.flatnonzero(chosen).tolist():
        payload = job.payloads[int(columns["payload"][row])]
        rank, group, peer = (int(columns[name][row]) for name in ("rank", "group", "peer"))
        heads.setdefault((rank, group, peer, payload.op, payload.tag), row)
    return list(heads.values())


def front_of(job: Job, heads: list[int]) -> tuple[int, ...]:
    """What a thread is stuck in: the blocking call that it is inside, if the record knows it, else
    the first head, with the other parts of its coalesced transfer, if it is part of one.
    """
    columns = job.columns
    first = next((row for row in reversed(heads) if columns["blocking"][row]), heads[0])
    if not columns["p2p"][first] or columns["op_id"][first] == NONE:
        return (first,)
    same = ("group", "op_id", "p2p")
    return tuple(r for r in heads if all(columns[c][r] == columns[c][first] for c in same))


def _fronts_of(job: Job, heads: list[int]) -> tuple[int, ...]:
    """What each thread of a rank is stuck in, of all its heads."""
    by_thread = grouped((int(job.columns["thread"][row]), row) for row in heads)
    return tuple(sorted(row for rows in by_thread.values() for row in front_of(job, rows)))


def highest(job: Job, chosen: Bools) -> dict[tuple[int, int], int]:
    """(rank, group) -> highest sequence among the chosen rows."""
    streams, rows, starts = _in_streams(job, np.flatnonzero(chosen))
    last = np.maximum.reduceat(job.columns["seq"][rows], starts) if len(rows) else rows
    return dict(zip(streams, last.tolist(), strict=True))


def by_stream(job: Job, rows: Ints) -> dict[tuple[int, int], Ints]:
    """(rank, group) -> its rows, in order."""
    streams, rows, starts = _in_streams(job, rows)
    return dict(zip(streams, np.split(rows, starts)[1:], strict=True))


def _in_streams(job: Job, rows: Ints) -> tuple[list[tuple[int, int]], Ints, Ints]:
    """Each (rank, group), the rows sorted by it, and where each begins in them."""
    keys = pairs(job, rows)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    return [divmod(key, len(job.groups)) for key in keys[starts].tolist()], rows, starts


def pairs(job: Job, rows: NDArray[Any]) -> Ints:
    """(rank, group) of each row, as one number."""
    rank = job.columns["rank"][rows].astype(np.int64)
    return np.asarray(rank * len(job.groups) + job.columns["group"][rows], dtype=np.int64)


NEVER: Final = np.iinfo(np.int64).max
"""Sequence of the head if a stream has none."""
SYNCHRONISING: Final = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "monitored_barrier"}
)
"""No rank gets out of these before all are in. A broadcast's root, a reduce's leaf and a
sender may: their data is buffered."""
SENDING: Final = frozenset({"broadcast", "scatter"})
"""Only the root gets out of these alone; any other rank that is out has the root's data."""

_UNSEEN: Final = 2
"""This many completed calls in a row that are no longer in the record may be broadcasts (real
records have two in a row). Lower: a rank that did not arrive looks like one that moved on.
Higher: the reverse."""


@dataclass(frozen=True, slots=True, order=True)
class Transfers:
    """The stream of sends from one rank to another."""

    group: int
    source: int
    target: int
    tag: int = 0


@dataclass(frozen=True, slots=True)
class Standings:
    """The members of one group, side by side: arrays of one length."""

    members: Ints
    """Global ranks, including those without a record."""
    read: Bools
    """True where the rank's record was read."""
    recorded: Bools
    """True where its record shows what it enqueued here, even if that is nothing."""
    enqueued: Ints
    """Highest sequence it is known to have enqueued; 0: none."""
    head: Ints
    """First unfinished sequence, or NEVER."""
    front: Bools
    """True where that head is what the rank as a whole is stuck in."""
    passed: Ints
    """Highest sequence that it completed and that no rank can complete alone; 0: none."""


@dataclass(frozen=True, slots=True)
class Index:
    """All that the later stages need to know about a job."""

    job: Job
    live: Bools
    """By row: unfinished and still relevant."""
    groups: Mapping[int, Standings]
    """Groups in which anything is unfinished, or in which completion can be compared."""
    heads: Mapping[int, tuple[int, ...]]
    """Rank -> rows of the heads of its streams, in call order."""
    collective_heads: Mapping[tuple[int, int], int]
    """Rank and group -> the row among them that is not a transfer."""
    head_rows: Mapping[tuple[int, int, int], Sequence[int]]
    """Rank, group and sequence id -> rows of heads."""
    front: Mapping[int, tuple[int, ...]]
    """Rank -> rows in which it is stuck: one, or the parts of one coalesced operation. Without
    ranks whose ring has overwritten them."""
    retired: frozenset[int]
    """Groups of generations that a rank has left for a newer one."""

    @property
    def unplaced(self) -> frozenset[int]:
        """Ranks stuck in a transfer of unknown peer, or in what their ring has overwritten."""
        unknown = {r for r, rows in self.front.items() if None in map(self.place, rows)}
        return frozenset(unknown.union(self.heads.keys() - self.front.keys()))

    def op(self, row: int) -> str:
        """The op of an entry, for people."""
        return self.job.payloads[int(self.job.columns["payload"][row])].op

    def site(self, row: int) -> str | None:
        """Where the program called it, if recorded."""
        site = int(self.job.columns["site"][row])
        return None if site == NONE else self.job.sites[site]

    def age_ns(self, row: int) -> int | None:
        """How long before its record was written an entry was enqueued, if known."""
        taken_ns = self.job.ranks[int(self.job.columns["rank"][row])].taken_ns
        created_ns = int(self.job.columns["created_ns"][row])
        if NONE in (taken_ns, created_ns) or taken_ns - created_ns >= COPIED_NS:
            return None
        return taken_ns - created_ns

    def stayed_ns(self, row: int) -> int | None:
        """How long a rank was inside an entry that it left, if known."""
        created_ns, left_ns = (
            int(self.job.columns[name][row]) for name in ("created_ns", "completed_ns")
        )
        return None if NONE in (created_ns, left_ns) else left_ns - created_ns

    def place(self, row: int) -> Transfers | tuple[int, int] | None:
        """Where an entry meets its peers': a stream of transfers, or (group, sequence).

        None for a transfer whose peer is not recorded.
        """
        columns = self.job.columns
        group, rank, peer = (int(columns[name][row]) for name in ("group", "rank", "peer"))
        if not columns["p2p"][row]:
            return group, int(columns["seq"][row])
        if peer == NONE:
            return None
        payload = self.job.payloads[int(columns["payload"][row])]
        ends = (rank, peer) if "send" in payload.op else (peer, rank)
        return Transfers(group, *ends, payload.tag)

    def by_place(
        self, rows_of: Mapping[int, Iterable[int]]
    ) -> dict[Transfers | tuple[int, int], list[int]]:
        """Ranks' rows, by where they meet their peers'; without those of unknown peers."""
        rows = (row for rows in rows_of.values() for row in rows)
        return grouped((place, row) for row in rows if (place := self.place(row)) is not None)


def build_index(job: Job) -> Index:
    columns = job.columns
    retired, current = generations(job)
    unfinished = live(job) & current
    heads_at = collective_heads(job, unfinished & ~columns["p2p"])
    transfers = transfer_heads(job, unfinished & columns["p2p"])
    rows_of_heads = sorted([*heads_at.values(), *transfers])
    rank, group, seq = (columns[name][rows_of_heads].tolist() for name in ("rank", "group", "seq"))
    heads = grouped(zip(rank, rows_of_heads, strict=True))
    gone = _overwritten(job, unfinished)
    over = {rank for rank, _ in gone}
    front = {rank: _fronts_of(job, rows) for rank, rows in heads.items() if rank not in over}
    return Index(
        job=job,
        live=unfinished,
        groups=_standings(job, heads_at, front, gone),
        heads={rank: tuple(rows) for rank, rows in sorted(heads.items())},
        collective_heads=heads_at,
        head_rows=grouped(zip(zip(rank, group, seq, strict=True), rows_of_heads, strict=True)),
        front=front,
        retired=retired,
    )


def _overwritten(job: Job, unfinished: Bools) -> dict[tuple[int, int], int]:
    """(rank, group) -> its first unfinished sequence, where the ring has overwritten that.

    The oldest call of the group that is left is unfinished, and NCCL's `pg_status` says that older
    ones are, too; not where transfers share its counter (`op_id`).
    """
    columns, heads = job.columns, dict[tuple[int, int], int]()
    streams, rows, starts = _in_streams(job, np.flatnonzero(~columns["p2p"]))
    for (rank, group), row in zip(streams, rows[starts].tolist(), strict=True):
        info, sequence = job.ranks[rank], int(columns["seq"][row])
        completed = info.status.get(group, GroupStatus()).completed
        alone = columns["op_id"][row] == sequence and info.backend is Backend.NCCL
        if alone and unfinished[row] and NONE < completed < sequence - 1:
            heads[rank, group] = completed + 1
    return heads


def _standings(
    job: Job,
    heads: Mapping[tuple[int, int], int],
    front: Mapping[int, tuple[int, ...]],
    gone: Mapping[tuple[int, int], int],
) -> dict[int, Standings]:
    seen = highest(job, ~job.columns["p2p"])
    enqueued = _by_counters(job, seen, heads) | seen
    head = {stream: int(job.columns["seq"][row]) for stream, row in heads.items()}
    head.update(gone)
    passed, whole = _passed(job, head), _whole(job)
    at_front = {(r, group) for (r, group), row in heads.items() if row in front.get(r, ())}
    standings = {}
    for group, ranks in grouped((group, rank) for rank, group in seen).items():
        members = job.groups[group].members
        if not members or job.groups[group].inferred:
            members = tuple(sorted({*members, *ranks}))
        streams = [(rank, group) for rank in members]
        standings[group] = Standings(
            members=np.array(members, dtype=np.int64),
            read=np.array([rank in job.ranks for rank in members], dtype=np.bool_),
            recorded=np.array([s in enqueued or s[0] in whole for s in streams], dtype=np.bool_),
            enqueued=np.array([enqueued.get(s, 0) for s in streams], dtype=np.int64),
            head=np.array([head.get(s, NEVER) for s in streams], dtype=np.int64),
            front=np.array([s in at_front for s in streams], dtype=np.bool_),
            passed=np.array([passed.get(s, 0) for s in streams], dtype=np.int64),
        )
    return standings


def _passed(job: Job, heads: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """(rank, group) -> highest sequence that it completed and that no rank can complete alone."""
    columns, sync = job.columns, synchronising(job)
    passed = highest(job, ~columns["p2p"] & _surely_completed(job) & sync)
    buffering = set(np.unique(columns["group"][~sync]).tolist())
    for (rank, group), head in heads.items():  # one of NCCL's communicators works in order
        if group not in buffering and job.ranks[rank].backend is Backend.NCCL:
            before = head - 1 - _UNSEEN
            passed[rank, group] = max(before, passed.get((rank, group), 0))
    return passed


def _whole(job: Job) -> frozenset[int]:
    """Ranks whose record has every call they ever made: each group from its first sequence.

    `dropped` and `only_active` are not enough: missing entries are not always evident.
    """
    first: dict[int, int] = {}
    streams, rows, starts = _in_streams(job, np.arange(len(job)))
    for (rank, _), seq in zip(streams, job.columns["seq"][rows[starts]].tolist(), strict=True):
        first[rank] = max(first.get(rank, 0), seq)
    return frozenset(
        rank
        for rank, info in job.ranks.items()
        if first.get(rank, 2) <= 1 and not info.only_active and not info.dropped
    )


def synchronising(job: Job) -> Bools:
    """By row: whether no rank gets out of it before all are in."""
    by_payload = np.array([p.op in SYNCHRONISING for p in job.payloads], dtype=np.bool_)
    return np.asarray(by_payload[job.columns["payload"]], dtype=np.bool_)


def _surely_completed(job: Job) -> Bools:
    """Rows that ended well; gloo's last one of a group may have ended with an error (facts)."""
    completed = np.asarray(job.columns["state"] == CollectiveState.COMPLETED, dtype=np.bool_)
    doubtful = [r for r, info in job.ranks.items() if info.backend is not Backend.NCCL]
    if not doubtful:
        return completed
    streams = by_stream(job, np.flatnonzero(np.isin(job.columns["rank"], doubtful)))
    completed[[rows[-1] for rows in streams.values()]] = False
    return completed


def _by_counters(
    job: Job, seen: Mapping[tuple[int, int], int], heads: Iterable[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """What ranks enqueued in groups of which NCCL's records have no entry, by their `pg_status`.

    torch keeps one counter for collectives and transfers: with a send or recv in the group it
    differs between ranks (seen in real records: 13998 at collective 194) and is not used. If the
    transfers are no longer in the record, an `op_id` other than the sequence reveals them. Gloo's
    counter includes what it does not record.
    """
    columns = job.columns
    numbered = (columns["op_id"] != NONE) & ~columns["p2p"]
    mixed = columns["p2p"] | (numbered & (columns["op_id"] != columns["seq"]))
    transferring = set(np.unique(columns["group"][mixed]).tolist())
    doubtful = {
        group
        for (rank, group) in heads
        if (status := job.ranks[rank].status.get(group)) is not None
        and status.enqueued != seen[rank, group]
    }
    return {
        (rank, group): max(status.enqueued, 0)
        for rank, info in job.ranks.items()
        if info.backend is Backend.NCCL
        for group, status in info.status.items()
        if group not in transferring and group not in doubtful
    }


_DOUBT_NS: Final = 5_000_000_000
"""Times closer than this on two hosts, or on a host and in a file's date, have no order. Lower: a
rank late to a running job's call is reported missing. Higher: short timeouts stay unsolved."""
CLOCKS_NS: Final = 10_000_000_000
"""A file's date that differs more than this from a rank's clock is not believed."""
_LONG_NS: Final = 10_000_000_000
"""A collective that all are in and that is known to last this long is stuck. Lower: a slow one is
called stuck. Higher: a stuck one is reported later; nobody is accused of it anyway."""
YOUNG_NS: Final = 1_000_000_000
"""A rank that waits for less than this is not stuck, whatever the records look like. Lower: a
healthy job that is often inspected gets accused. Higher: detection is that much later."""


def ranks_moved_on(index: Index) -> frozenset[int]:
    """Ranks that moved on after their dump: peers completed what they had not enqueued."""
    ranks: set[int] = set()
    for group, at in index.groups.items():
        if group in index.retired or not len(at.passed):
            continue
        ranks.update(at.members[at.recorded & (at.enqueued < at.passed.max())].tolist())
    return frozenset(ranks)


def lost(index: Index) -> dict[int, int]:
    """Ranks with unfinished collectives that their peers completed -> how many.

    Gloo's records are left out: what ended there with an error looks completed.
    """
    counts: dict[int, int] = {}
    for group, at in index.groups.items():
        if group in index.retired:
            continue
        top = highest_finished(at)
        for rank in at.members[at.read & (at.head <= top)].tolist():
            row = index.collective_heads[rank, group]
            gloo = index.job.ranks[rank].backend is Backend.GLOO
            head = int(index.job.columns["seq"][row])
            own_last = int(at.enqueued[at.members == rank][0])
            trailing = min(top, own_last) - head + 1
            if not gloo and _believed(index, at, head, index.op(row), trailing):
                counts[rank] = counts.get(rank, 0) + trailing
    return counts


def _believed(index: Index, at: Standings, sequence: int, op: str, trailing: int) -> bool:
    """True if members that have finished a collective show that the others should have.

    One may have finished alone because it called something else there, which a record of only
    unfinished entries no longer shows. Then most must have finished, or have finished more than
    that one. In a collective that a root sends, the root gets out first and members may pass data
    on: only the last one inside trails, and only if all others are known to have finished.
    """
    called = at.read & (at.enqueued >= sequence)
    through = at.members[called & (at.head > sequence)].tolist()
    inside = int((called & (at.head <= sequence)).sum())
    if op in SENDING:
        return inside == 1 and 1 < len(through) == len(at.members) - 1
    shown = any(not index.job.ranks[rank].only_active for rank in through)
    return op in SYNCHRONISING and (shown or len(through) > inside or trailing > 1)


def highest_finished(at: Standings) -> int:
    """The highest sequence that a member has finished; a communicator works in order."""
    return int(np.minimum(at.enqueued, at.head - 1)[at.read].max(initial=0))


def stopped_short(index: Index, rank: int) -> bool:
    """True if peers completed exactly what a trailing rank had launched, in every group.

    This happens if its GPU did all its work but its process lost track of it (a CUDA error, as
    in real records). A rank of a running job that was merely dumped first has launched more.
    """
    for at in index.groups.values():
        own = at.members == rank
        if not own.any() or int(at.head[own][0]) == NEVER:
            continue
        top = highest_finished(at)
        if int(at.head[own][0]) <= top < int(at.enqueued[own][0]):
            return False
    return True


def unbegun(index: Index) -> frozenset[int]:
    """Ranks that have not begun on the GPU what a peer has begun or finished.

    Nothing they launched earlier is unfinished, so it is their own GPU that does not get
    there. Known only if the job records when a kernel starts.
    """
    columns = index.job.columns
    began = (columns["state"] == CollectiveState.STARTED) | (columns["started_ns"] != NONE)
    if not began.any():
        return frozenset()
    late_ranks: set[int] = set()
    for place, rows in index.by_place(index.front).items():
        states = columns["state"][rows]
        late = [row for row, s in zip(rows, states, strict=True) if s == CollectiveState.SCHEDULED]
        begun = int((states == CollectiveState.STARTED).sum())
        if not isinstance(place, Transfers):
            at, sequence = index.groups[place[0]], place[1]
            begun += int((at.read & (at.enqueued >= sequence) & (at.head > sequence)).sum())
        if 0 < len(late) <= begun:
            late_ranks.update(int(columns["rank"][row]) for row in late)
    return frozenset(late_ranks)


def timed_out(index: Index) -> list[int]:
    """Rows that look completed but cannot be: a member had not entered while its peers were inside.

    An abort ends the kernel, and NCCL calls that completed; gloo calls everything that ended
    completed, and so does a program that swallows an error. The member's record must be younger
    than its peers' entry: an older one belongs to a rank that came later (`moved`).
    """
    job, columns = index.job, index.job.columns
    completed = (columns["state"] == CollectiveState.COMPLETED) & ~columns["p2p"]
    top: dict[int, int] = {}
    for (_, group), last in highest(job, completed & synchronising(job)).items():
        top[group] = max(last, top.get(group, 0))
    low, since = np.full((2, len(job.groups)), NEVER)
    missing: list[tuple[int, int, int]] = []
    for group in set(top) - index.retired:
        at = index.groups[group]
        short = at.recorded & (at.head == NEVER) & (at.enqueued < top[group])
        for rank, enqueued in zip(at.members[short], at.enqueued[short], strict=True):
            missing.append((group, int(rank), int(enqueued) + 1))
            low[group] = min(low[group], enqueued + 1)
    number = columns["seq"]
    rows = np.flatnonzero(completed & (number >= low[columns["group"]])).tolist()
    calls = grouped(((int(columns["group"][row]), int(number[row])), row) for row in rows)
    for group, rank, first in missing:
        if _never_came(index, rank, calls.get((group, first), ()), last=first == top[group]):
            since[group] = min(since[group], first)
    return list(np.flatnonzero(completed & (number >= since[columns["group"]])).tolist())


def _never_came(index: Index, rank: int, rows: Sequence[int], *, last: bool) -> bool:
    """True if a rank's record shows that it was not in what its peers left, in these rows.

    The record must be younger than their entry by more than `_DOUBT_NS`, and they must have left
    no longer after it than it came after their entry. A file may be a copy of a running job's, so
    its date counts only if they stayed at least `YOUNG_NS`, or this is the last that any rank left.
    """
    columns, ranks = index.job.columns, index.job.ranks
    entered_ns = max((int(columns["created_ns"][row]) for row in rows), default=NONE)
    if entered_ns == NONE:
        return False
    own_rows = slice(*np.searchsorted(columns["rank"], [rank, rank + 1]))
    own_ns = max(int(columns[name][own_rows].max(initial=NONE)) for name in MOMENTS)
    taken_ns = ranks[rank].taken_ns if ranks[rank].taken_ns - entered_ns < COPIED_NS else NONE
    ends = [int(columns["completed_ns"][row]) for row in rows]
    left_ns = min((ns for ns in ends if ns != NONE), default=NONE)
    dated = ranks[rank].alive is not None or own_ns - entered_ns > _DOUBT_NS
    if not dated and not (last if left_ns == NONE else left_ns - entered_ns >= YOUNG_NS):
        return False
    if left_ns == NONE:
        left_ns = min(ranks[int(columns["rank"][row])].taken_ns for row in rows)
    waited_ns = max(own_ns, taken_ns) - entered_ns
    return waited_ns > _DOUBT_NS and left_ns - entered_ns <= 2 * waited_ns


@dataclass(frozen=True, slots=True)
class StuckCollective:
    """A collective that a rank is stuck in, or the head of a stream of transfers."""

    group: int
    sequence: int
    row: int
    """Of the lowest rank inside."""
    front: tuple[int, ...]
    """Ranks that are stuck in it before anything else; all rank tuples are sorted."""
    later: tuple[int, ...]
    """Ranks for which it is the head of a stream, but not their front."""
    absent: tuple[int, ...]
    """Members that did not enqueue it."""
    held: tuple[int, ...]
    """Members that enqueued it and are stuck in something earlier."""
    silent: tuple[int, ...]
    """Members without a record."""
    done: tuple[int, ...]
    """Members that have finished it."""
    transfer: Transfers | None = None

    @property
    def place(self) -> Transfers | tuple[int, int]:
        """See `Index.place`."""
        return self.transfer or (self.group, self.sequence)

    @property
    def joined(self) -> tuple[int, ...]:
        """Members known to have enqueued it."""
        return tuple(sorted({*self.front, *self.later, *self.held, *self.done}))

    @property
    def inside(self) -> tuple[int, ...]:
        """Members for which it is the head of a stream."""
        return tuple(sorted({*self.front, *self.later}))

    @property
    def holding(self) -> tuple[int, ...]:
        """Members that hold it up, or may."""
        return tuple(sorted({*self.absent, *self.held, *self.silent}))


@dataclass(frozen=True, slots=True)
class Graph:
    """The stuck collectives, the edges, and the components that no edge leaves."""

    index: Index
    stuck: tuple[StuckCollective, ...]
    edges: tuple[tuple[int, ...], ...]
    """By node; nodes are threads by place in `ranks`, then front and later of each `stuck`."""
    ranks: tuple[int, ...]
    """Of each thread: a rank has one, unless several of its threads are known to call groups."""
    roots: tuple[tuple[int, ...], ...]
    """Nodes of each component that no edge leaves; ranks that nobody waits for are left out."""
    knots: tuple[tuple[int, ...], ...]
    """Nodes of other cycles of collectives in which ranks are stuck first: deadlocked too, as
    each collective needs all of its members."""
    unbegun: frozenset[int]
    """Ranks whose GPU has not reached where they are stuck, while peers' have: held up by none."""
    back: Mapping[int, Sequence[int]]
    """Node -> nodes that point at it."""
    collectives: Mapping[int, Sequence[int]]
    """Group -> the places in `stuck` of its collectives."""
    lost: Mapping[int, int]
    """Ranks with unfinished collectives that peers completed -> how many. What they are stuck in
    is over, so only they themselves hold them up."""

    def rank_of(self, node: int) -> int | None:
        """The rank of a node; None if it is a collective."""
        return self.ranks[node] if node < len(self.ranks) else None

    @property
    def awaited(self) -> frozenset[int]:
        """Ranks that others wait for, and that wait for nothing themselves."""
        alone = (self.rank_of(nodes[0]) for nodes in self.roots if len(nodes) == 1)
        return frozenset(rank for rank in alone if rank is not None)

    def stuck_of(self, node: int) -> StuckCollective:
        return self.stuck[(node - len(self.ranks)) // 2]

    def front_node(self, number: int) -> int:
        """The node of the collective `stuck[number]`, for those stuck in it first."""
        return len(self.ranks) + 2 * number

    def reaching(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Ranks that wait, directly or not, for one of the nodes, including the nodes' own."""
        seen = set(nodes)
        todo = list(seen)
        while todo:
            new = [node for node in self.back.get(todo.pop(), ()) if node not in seen]
            seen.update(new)
            todo += new
        return tuple(sorted({self.ranks[node] for node in seen if node < len(self.ranks)}))

    def nodes_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        chosen = set(ranks)
        return tuple(node for node, rank in enumerate(self.ranks) if rank in chosen)


def build_graph(index: Index) -> Graph:
    """The wait-for graph of a job."""
    stuck = tuple(_stuck_all(index))
    holding = (rank for collective in stuck for rank in collective.holding)
    threads = _Threads(index, {*index.job.expected, *index.job.ranks, *index.heads, *holding})
    ranks = threads.ranks
    behind, late = lost(index), unbegun(index)
    pointing = _edges(stuck, threads, late.union(behind))
    back = grouped((target, node) for node, targets in enumerate(pointing) for target in targets)
    # in a cycle all nodes are waited for
    roots = [nodes for nodes in closed(pointing) if next(iter(nodes)) in back]
    collectives = grouped((s.group, at) for at, s in enumerate(stuck) if s.transfer is None)
    fronts = {len(ranks) + 2 * at for places in collectives.values() for at in places}
    return Graph(
        index=index,
        stuck=stuck,
        edges=tuple(pointing),
        ranks=ranks,
        roots=_sorted(roots),
        knots=_sorted(_knots(pointing, len(ranks), fronts, set().union(*roots))),
        unbegun=late,
        back=back,
        collectives=collectives,
        lost=behind,
    )


def _edges(
    stuck: Sequence[StuckCollective], threads: _Threads, alone: frozenset[int]
) -> list[tuple[int, ...]]:
    """Node -> the nodes it waits for: threads, then front and later of each collective.

    `alone`: ranks that nobody holds up. A later head that nobody holds up means nothing, because
    its ranks' fronts explain the wait. An idle helper may wait for its task from a main thread that
    is stuck itself.
    """
    count = len(threads.ranks)
    edges: list[list[int]] = [[] for _ in range(count + 2 * len(stuck))]
    batches = _in_batches(stuck)
    for number, collective in enumerate(stuck):
        front, later = count + 2 * number, count + 2 * number + 1
        elsewhere = batches.get(number, frozenset())
        for inside, target in ((collective.front, front), (collective.later, later)):
            for rank in set(inside) - alone - elsewhere:
                for node in threads.inside(rank, collective):
                    edges[node].append(target)
        holding = (*collective.holding, *sorted(elsewhere))
        edges[front] = [threads.caller(r, collective) for r in holding]
        missing = (*collective.absent, *collective.silent)
        edges[later] = [threads.caller(r, collective) for r in missing]
    for node, main in threads.helpers.items():
        if edges[main] and not edges[node]:
            edges[node].append(main)
    empty = {n for n in range(count + 1, len(edges), 2) if not edges[n]}
    return [tuple(t for t in targets if t not in empty) for targets in edges]


def _in_batches(stuck: Sequence[StuckCollective]) -> dict[int, frozenset[int]]:
    """Place of a transfer that both sides posted -> the sides whose batch hangs in another part.

    A batch ends as a whole: such a side is not held up by this transfer, the other side is by it.
    """
    transfers = {at: s for at, s in enumerate(stuck) if s.transfer is not None and s.front}
    hanging = {rank for s in transfers.values() if s.holding for rank in s.front}
    sides = {at: frozenset(s.front) for at, s in transfers.items() if not s.holding}
    waits: dict[int, frozenset[int]] = {}
    while new := {at: sides.pop(at) for at in [*sides] if hanging & sides[at]}:
        waits.update({at: both & hanging for at, both in new.items()})
        hanging.update(*new.values())
    return waits


class _Threads:
    """The nodes of ranks: one for each thread that is stuck, or that calls what others wait in.

    Two threads of a rank wait for different things, and neither explains the other's wait.
    """

    def __init__(self, index: Index, ranks: Iterable[int]) -> None:
        columns = index.job.columns
        self._inside = grouped(
            ((rank, index.place(row)), int(columns["thread"][row]))
            for rank, rows in index.heads.items()
            for row in rows
        )
        named = by_stream(index.job, np.flatnonzero(columns["thread"] != NONE))
        self._usual = {stream: int(columns["thread"][rows[-1]]) for stream, rows in named.items()}
        """(rank, group) -> the thread that called it last."""
        of_rank = grouped((rank, thread) for (rank, _), thread in self._usual.items())
        lanes = [(r, t) for r in sorted(ranks) for t in sorted({*of_rank.get(r, ())}) or (NONE,)]
        self.ranks = tuple(rank for rank, _ in lanes)
        self._node = {lane: node for node, lane in enumerate(lanes)}
        self._first = {rank: node for node, rank in reversed(list(enumerate(self.ranks)))}
        self.helpers = {
            node: self._node[rank, MAIN_THREAD]
            for (rank, thread), node in self._node.items()
            if thread != MAIN_THREAD and (rank, MAIN_THREAD) in self._node
        }
        """Node of a helper thread -> that of its rank's main thread, which may owe it its task."""

    def inside(self, rank: int, stuck: StuckCollective) -> tuple[int, ...]:
        """Threads of a rank for which it is the head of a stream."""
        return tuple(sorted({self._at(rank, thread) for thread in self._inside[rank, stuck.place]}))

    def caller(self, rank: int, stuck: StuckCollective) -> int:
        """The thread of a rank that would call it: the one that called that group last."""
        return self._at(rank, self._usual.get((rank, stuck.group), NONE))

    def _at(self, rank: int, thread: int) -> int:
        return self._node.get((rank, thread), self._first[rank])


def _sorted(parts: Iterable[frozenset[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(tuple(sorted(nodes)) for nodes in parts))


def _knots(
    edges: Sequence[Sequence[int]], ranks: int, fronts: set[int], taken: set[int]
) -> list[frozenset[int]]:
    """Cycles that pass only through fronts of collectives, except those already known."""
    only = [
        [t for t in targets if node in fronts or (node < ranks and t in fronts)]
        for node, targets in enumerate(edges)
    ]
    return [nodes for nodes in components(only) if len(nodes) > 1 and not nodes & taken]


def _stuck_all(index: Index) -> Iterable[StuckCollective]:
    rows = index.by_place(index.heads)
    for place in sorted(place for place in rows if not isinstance(place, Transfers)):
        yield _collective(index, *place, rows[place])
    for stream in sorted(place for place in rows if isinstance(place, Transfers)):
        yield _transfer(index, stream, rows[stream])


def _split(index: Index, rows: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ranks = {int(index.job.columns["rank"][row]): row for row in rows}
    front = tuple(sorted(r for r, row in ranks.items() if row in index.front.get(r, ())))
    return front, tuple(sorted(set(ranks) - set(front)))


def _collective(index: Index, group: int, sequence: int, rows: list[int]) -> StuckCollective:
    front, later = _split(index, rows)
    at, job, team = index.groups[group], index.job, index.job.groups[group]
    left = np.zeros(len(at.members), dtype=np.bool_)
    if group in index.retired:  # members may have left this generation for a newer one
        left = ~np.isin(at.members, front + later)
    enqueued = at.read & (at.enqueued >= sequence)
    behind = enqueued & ((at.head < sequence) | ((at.head == sequence) & ~at.front))
    # ranks without a record that may be members, if members are only inferred
    unseen = job.silent if team.inferred or not team.members else ()
    return StuckCollective(
        group=group,
        sequence=sequence,
        row=min(rows),
        front=front,
        later=later,
        absent=_of(at.members[at.read & ~enqueued & ~left]),
        held=_of(at.members[behind]),
        silent=tuple(sorted({*_of(at.members[~at.read]), *unseen})),
        done=_of(at.members[enqueued & (at.head > sequence)]),
    )


def _of(ranks: Ints) -> tuple[int, ...]:
    return tuple(sorted(ranks.tolist()))


def _transfer(index: Index, stream: Transfers, rows: list[int]) -> StuckCollective:
    """The head of the transfers from one rank to another.

    Any unfinished part shows that the other side has posted: sequence numbers of transfers need
    not agree between ranks, and a finished send may be buffered.
    """
    front, later = _split(index, rows)
    columns = index.job.columns
    inside = {int(columns["rank"][row]) for row in rows}
    other = {stream.source, stream.target} - inside
    read = {rank for rank in other if rank in index.job.ranks}
    first = rows[0]
    return StuckCollective(
        group=stream.group,
        sequence=int(columns["seq"][first]),
        row=min(rows),
        front=front,
        later=later,
        absent=tuple(sorted(read)),
        held=tuple(rank for rank in later if len(inside) == 2),
        silent=tuple(sorted(other - read)),
        done=(),
        transfer=stream,
    )


def closed(edges: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Strongly connected components that no edge leaves."""
    parts = components(edges)
    return [part for part in parts if all(part.issuperset(edges[node]) for node in part)]


def components(edges: Sequence[Sequence[int]]) -> list[frozenset[int]]:
    """Strongly connected components (Tarjan's, without recursion)."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    path: list[int] = []
    open_nodes: set[int] = set()
    parts: list[frozenset[int]] = []
    for start in range(len(edges)):
        todo = [] if start in number else [(start, iter(edges[start]))]
        while todo:
            node, targets = todo[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                path.append(node)
                open_nodes.add(node)
            for target in targets:
                if target not in number:
                    todo.append((target, iter(edges[target])))
                    break
                if target in open_nodes:
                    low[node] = min(low[node], low[target])
            else:
                todo.pop()
                if todo:
                    low[todo[-1][0]] = min(low[todo[-1][0]], low[node])
                if low[node] == number[node]:
                    component = set()
                    while node not in component:
                        component.add(path.pop())
                    open_nodes -= component
                    parts.append(frozenset(component))
    return parts


def settled(graph: Graph, scene: Iterable[StuckCollective], culprits: Iterable[int]) -> bool:
    """True if the records around these collectives can show one moment, except for the culprits.

    A culprit may have lost track of its GPU; it may not have moved, for then it did arrive.

    In a hang nothing moves between the dumps. In a running job, ranks that were merely dumped first
    look absent or behind; then some `moved`, or ranks that are not to blame `lost` something.
    """
    restless = ranks_moved_on(graph.index) | (frozenset(graph.lost) - frozenset(culprits))
    around = {rank for stuck in scene for rank in (*stuck.joined, *stuck.absent)}
    return not (restless & around)


def young(graph: Graph, scene: Iterable[StuckCollective]) -> bool:
    """True if ages are known and all show that the wait has only just begun."""
    ages = [age for stuck in scene for rank in stuck.inside for age in _ages(graph, stuck, rank)]
    return bool(ages) and all(-CLOCKS_NS < age < YOUNG_NS for age in ages)


def old(graph: Graph, stuck: StuckCollective) -> bool:
    """True if a rank inside is known to have waited for long."""
    return any(age >= _LONG_NS for rank in stuck.inside for age in _ages(graph, stuck, rank))


def _ages(graph: Graph, stuck: StuckCollective, rank: int) -> list[int]:
    rows = graph.index.head_rows.get((rank, stuck.group, stuck.sequence), ())
    return [age for row in rows if (age := graph.index.age_ns(row)) is not None]


def lasting(graph: Graph, stuck: StuckCollective) -> bool:
    """True if a collective that all are in is known to last long.

    A record of only unfinished entries also shows it: it is written because something is stuck.
    """
    ranks = graph.index.job.ranks.values()
    if old(graph, stuck):
        return True
    return any(info.only_active and info.backend is Backend.NCCL for info in ranks)
