"""What each rank did in each group: the facts from which the wait-for graph is drawn.

Theory of operation. Linear in entries and vectorised; what comes out has one line for a rank in a
group, not for an entry. For heads and fronts see `streams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.analysis import streams
from monitor.analysis.streams import Bools, Ints
from monitor.flight_recorder.job import NONE, Backend, Job, State

NEVER: Final = np.iinfo(np.int64).max
"""Sequence of the head of a stream that has none."""
SYNCHRONISING: Final = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "monitored_barrier"}
)
"""Nobody gets out of these before everybody is in. A broadcast's root, a reduce's leaf and a
sender may: their data is buffered."""
SENDING: Final = frozenset({"broadcast", "scatter"})
"""Only the root gets out of these alone; who else does has what the root sent."""

_UNSEEN: Final = 2
"""So many completed calls in a row, of which the record no longer tells what they were, may be
broadcasts (two in a row stand in the real records). Lower: a rank that did not come is taken for
one that went on. Higher: the other way round."""


COPIED_NS: Final = 7_200_000_000_000
"""A record that seems to be written so long after the call was copied since, and its date says
nothing: watchdogs wait 10 to 30 minutes. Lower: a hang with a longer timeout looks undated. Higher:
records of a running job that were copied look like a hang."""


@dataclass(frozen=True, slots=True)
class Transfers:
    """The stream of sends from one rank to another, as one of the two sees it."""

    group: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Standings:
    """The members of one group, side by side: arrays of one length."""

    members: Ints
    """Global ranks, those without a record too."""
    read: Bools
    """Whether the rank's record was read."""
    known: Bools
    """Whether its record tells what it enqueued here, be it nothing."""
    enqueued: Ints
    """Highest sequence it is known to have enqueued; 0: none."""
    head: Ints
    """First unfinished sequence, or NEVER."""
    front: Bools
    """Whether that head is what the rank as a whole is stuck in."""
    passed: Ints
    """Highest sequence that it completed and that nobody completes alone; 0: none."""


@dataclass(frozen=True, slots=True)
class Index:
    """All that the later stages ask about a job."""

    job: Job
    live: Bools
    """By row: unfinished, and still of any interest."""
    groups: Mapping[int, Standings]
    """Groups in which anything is unfinished, or in which completion can be compared."""
    heads: Mapping[int, tuple[int, ...]]
    """Rank -> rows of the heads of its streams, in the order in which it called them."""
    head_rows: Mapping[tuple[int, int, int], tuple[int, ...]]
    """The same by rank, group and sequence id."""
    front: Mapping[int, tuple[int, ...]]
    """Rank -> rows in which it is stuck: one, or the parts of one coalesced operation."""
    hidden: Mapping[int, tuple[int, ...]]
    """Rank -> groups in which its counters show unfinished work that its entries do not."""
    retired: frozenset[int]
    """Groups of generations that somebody has left for a newer one."""

    def op(self, row: int) -> str:
        """The op of an entry, for people."""
        return self.job.payloads[int(self.job.columns["payload"][row])].op

    def site(self, row: int) -> str | None:
        """Where the program called it, when recorded."""
        site = int(self.job.columns["site"][row])
        return None if site == NONE else self.job.sites[site]

    def age_ns(self, row: int) -> int | None:
        """How long before its record was written an entry was enqueued, where that is known."""
        taken_ns = self.job.ranks[int(self.job.columns["rank"][row])].taken_ns
        created_ns = int(self.job.columns["created_ns"][row])
        if NONE in (taken_ns, created_ns) or taken_ns - created_ns >= COPIED_NS:
            return None
        return taken_ns - created_ns

    def stayed_ns(self, row: int) -> int | None:
        """How long a rank was inside an entry that it left, where that is known."""
        created_ns, left_ns = (
            int(self.job.columns[name][row]) for name in ("created_ns", "completed_ns")
        )
        return None if NONE in (created_ns, left_ns) else left_ns - created_ns

    def head_row(self, rank: int, group: int) -> int:
        """The row of the head of a rank's stream of collectives in a group."""
        columns = self.job.columns
        return next(
            row
            for row in self.heads[rank]
            if columns["group"][row] == group and not columns["p2p"][row]
        )

    def transfers(self, row: int) -> Transfers | None:
        """The stream of a point-to-point entry; None where its peer is not recorded."""
        columns = self.job.columns
        rank, peer = int(columns["rank"][row]), int(columns["peer"][row])
        if peer == NONE:
            return None
        source, target = (rank, peer) if self.sends(row) else (peer, rank)
        return Transfers(int(columns["group"][row]), source, target)

    def place(self, row: int) -> Transfers | tuple[int, int] | None:
        """Where an entry meets its peers': a stream of transfers, or (group, sequence)."""
        columns = self.job.columns
        if columns["p2p"][row]:
            return self.transfers(row)
        return int(columns["group"][row]), int(columns["seq"][row])

    def sends(self, row: int) -> bool:
        """Whether a point-to-point entry is the sending side."""
        return "send" in self.op(row)


def build(job: Job) -> Index:
    """The index of a job."""
    columns = job.columns
    retired, current = streams.generations(job)
    unfinished = streams.live(job) & current
    collective = ~columns["p2p"]
    enqueued = streams.highest(job, collective)
    heads_at = streams.collective_heads(job, unfinished & collective)
    rows_of_heads = sorted(
        [*heads_at.values(), *streams.transfer_heads(job, unfinished & columns["p2p"])],
    )
    heads: dict[int, list[int]] = {}
    head_rows: dict[tuple[int, int, int], list[int]] = {}
    for row in rows_of_heads:
        rank, group, seq = (int(columns[name][row]) for name in ("rank", "group", "seq"))
        heads.setdefault(rank, []).append(row)
        head_rows.setdefault((rank, group, seq), []).append(row)
    front = {rank: streams.front_of(job, rows) for rank, rows in heads.items()}
    hidden = _hidden(job, heads)
    sync = synchronising(job)
    facts = _Facts(
        job=job,
        enqueued=enqueued,
        passed=streams.highest(job, collective & _surely_completed(job) & sync),
        heads=heads_at,
        front=front,
        trusted=_trusted_counters(job, enqueued, heads_at),
        whole=_whole(job),
        buffering=frozenset(np.unique(columns["group"][~sync]).tolist()),
    )
    seen: dict[int, list[int]] = {}
    for rank, group in enqueued:
        seen.setdefault(group, []).append(rank)
    groups = {group: _standings(facts, group, tuple(ranks)) for group, ranks in seen.items()}
    return Index(
        job=job,
        live=unfinished,
        groups=groups,
        heads={rank: tuple(rows) for rank, rows in sorted(heads.items())},
        head_rows={place: tuple(rows) for place, rows in head_rows.items()},
        front=front,
        hidden=hidden,
        retired=retired,
    )


def _whole(job: Job) -> frozenset[int]:
    """Ranks whose record holds all that they ever called: each group from its first sequence.

    That nothing was dropped or left out is not enough: it is not always evident that it was.
    """
    columns, some = job.columns, np.ones(len(job), dtype=np.bool_)
    first: dict[int, int] = {}
    for row in streams.firsts(job, some):
        rank = int(columns["rank"][row])
        first[rank] = max(first.get(rank, 0), int(columns["seq"][row]))
    return frozenset(
        rank
        for rank, info in job.ranks.items()
        if first.get(rank, 2) <= 1 and not info.only_active and not info.dropped
    )


def synchronising(job: Job) -> Bools:
    """By row: whether nobody gets out of it before everybody is in."""
    by_payload = np.array([p.op in SYNCHRONISING for p in job.payloads], dtype=np.bool_)
    if not len(job):
        return np.zeros(0, dtype=np.bool_)
    return np.asarray(by_payload[job.columns["payload"]], dtype=np.bool_)


def _surely_completed(job: Job) -> Bools:
    """Rows that ended well: gloo's last one of a group may have ended by an error (facts)."""
    completed = np.asarray(job.columns["state"] == State.COMPLETED, dtype=np.bool_)
    doubtful = [r for r, info in job.ranks.items() if info.backend is not Backend.NCCL]
    if not doubtful:
        return completed
    rows = np.flatnonzero(np.isin(job.columns["rank"], doubtful))
    keys = streams.pairs(job, rows)
    order = np.argsort(keys, kind="stable")
    last = np.flatnonzero(np.diff(keys[order], append=-1))
    completed[rows[order][last]] = False
    return completed


def _trusted_counters(
    job: Job,
    enqueued: Mapping[tuple[int, int], int],
    heads: Mapping[tuple[int, int], int],
) -> frozenset[int]:
    """Groups whose `pg_status` counts collectives and nothing else.

    torch keeps one counter for collectives and transfers: with a send or recv in the group it
    means something else on every rank (seen in the real records: 13998 beside collective 194).
    Where transfers are no longer in the record, an `op_id` that is not the sequence gives them
    away. Gloo's counts what it does not record.
    """
    columns = job.columns
    known = (columns["op_id"] != NONE) & ~columns["p2p"]
    mixed = columns["p2p"] | (known & (columns["op_id"] != columns["seq"]))
    transferring = set(np.unique(columns["group"][mixed]).tolist())
    doubtful = {
        group
        for (rank, group) in heads
        if (status := job.ranks[rank].status.get(group)) is not None
        and status.enqueued != enqueued[rank, group]
    }
    return frozenset(set(range(len(job.groups))) - transferring - doubtful)


def _hidden(job: Job, heads: Mapping[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """Ranks that show no unfinished entry, while their counters say that something is.

    Gloo's sends and recvs are such (facts, section 2).
    """
    found = {}
    for rank, info in job.ranks.items():
        if rank in heads or info.backend is Backend.NCCL:
            continue
        groups = [g for g, s in sorted(info.status.items()) if s.enqueued > max(s.completed, 0)]
        if groups:
            found[rank] = tuple(groups)
    return found


@dataclass(frozen=True, slots=True)
class _Facts:
    """What `_standings` draws on, for all groups."""

    job: Job
    enqueued: Mapping[tuple[int, int], int]
    passed: Mapping[tuple[int, int], int]
    heads: Mapping[tuple[int, int], int]
    front: Mapping[int, tuple[int, ...]]
    trusted: frozenset[int]
    whole: frozenset[int]
    """Ranks whose record goes back to their first calls."""
    buffering: frozenset[int]
    """Groups in which something else than a synchronising collective was seen."""


def _standings(facts: _Facts, group: int, seen: tuple[int, ...]) -> Standings:
    members = facts.job.groups[group].members
    if not members or facts.job.groups[group].inferred:
        members = tuple(sorted({*members, *seen}))
    lines = [_line(facts, group, rank) for rank in members]
    known, enqueued, head, front, passed = zip(*lines, strict=True) if lines else ((),) * 5
    return Standings(
        members=np.array(members, dtype=np.int64),
        read=np.array([rank in facts.job.ranks for rank in members], dtype=np.bool_),
        known=np.array(known, dtype=np.bool_),
        enqueued=np.array(enqueued, dtype=np.int64),
        head=np.array(head, dtype=np.int64),
        front=np.array(front, dtype=np.bool_),
        passed=np.array(passed, dtype=np.int64),
    )


def _line(facts: _Facts, group: int, rank: int) -> tuple[bool, int, int, bool, int]:
    info, key = facts.job.ranks.get(rank), (rank, group)
    row = facts.heads.get(key)
    head = NEVER if row is None else int(facts.job.columns["seq"][row])
    enqueued, passed = facts.enqueued.get(key, 0), facts.passed.get(key, 0)
    if info is None:
        return False, 0, NEVER, False, 0
    known = key in facts.enqueued or rank in facts.whole
    if info.backend is Backend.NCCL:
        status = info.status.get(group)
        if status is not None and group in facts.trusted and key not in facts.enqueued:
            known, enqueued = True, max(status.enqueued, 0)
        if row is not None and group not in facts.buffering:  # a communicator works in order
            passed = max(passed, head - 1 - _UNSEEN)
    return known, enqueued, head, row is not None and row in facts.front[rank], passed
