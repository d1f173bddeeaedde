"""The order of the program over all ranks: a column for each collective, without clocks.

Ranks' clocks differ by more than a collective takes, and half of the records hold no times. So a
column is a place in the order of the program and not a time: each collective stands in one column
on all of its members, to the right of whatever any of them called before (Lamport, "Time, Clocks,
and the Ordering of Events", 1978). Where members called the same two in different order no such
columns exist; there each rank keeps its own order, and the same two stand crosswise.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from monitor.flight_recorder.job import Job
from monitor.reports.standing import rows_of, unfinished

BEFORE = 8
"""Entries drawn before the first unfinished one."""
_SPAN = 48

Key = tuple[int, int, tuple[int, int] | None, int]
"""Group, sequence id, the two sides of a point-to-point operation, which of its parts."""
Chain = list[tuple[Key, int]]
"""Keys of the collectives of a rank in its order, each with its row in `Job.columns`."""


def chains(job: Job) -> Iterator[tuple[int, Chain]]:
    """From each rank the entries round the place where it stands."""
    waiting = unfinished(job)
    for rank in job.ranks:
        begin, end = rows_of(job, rank).start, rows_of(job, rank).stop
        stuck = np.flatnonzero(waiting[begin:end])
        start = begin + int(stuck[0]) - BEFORE if len(stuck) else end - _SPAN
        start = max(begin, start)
        yield rank, _chain(job, rank, range(start, min(end, start + _SPAN)))


def _chain(job: Job, rank: int, rows: range) -> Chain:
    columns = job.columns
    seen: dict[tuple[int, int, tuple[int, int] | None], int] = defaultdict(int)
    chain: Chain = []
    for row in rows:
        peer = int(columns["peer"][row])
        pair = (min(rank, peer), max(rank, peer)) if columns["p2p"][row] else None
        key = (int(columns["group"][row]), int(columns["seq"][row]), pair)
        seen[key] += 1  # the parts of a coalesced operation share their number
        chain.append(((*key, seen[key]), row))
    return chain


def in_order(chains_: Mapping[int, Chain]) -> dict[int, list[int]]:
    """A column for each place of each rank's chain."""
    every = _with_groups(chains_)
    return {rank: columns for rank, columns in _levels(every).items() if rank >= 0}


def _with_groups(chains: Mapping[int, Chain]) -> dict[int, list[Key]]:
    """The chains, and one more for each group: its own order, whoever's record begins later."""
    found = {rank: [key for key, _ in chain] for rank, chain in chains.items()}
    by_group: dict[tuple[int, tuple[int, int] | None], set[Key]] = defaultdict(set)
    for chain in chains.values():
        for key, _ in chain:
            by_group[key[0], key[2]].add(key)
    for index, keys in enumerate(by_group.values()):
        found[-1 - index] = sorted(keys, key=lambda key: (key[1], key[3]))
    return found


def _levels(chains: Mapping[int, list[Key]]) -> dict[int, list[int]]:
    """A column for each place of each chain: topological levels, cycles cut where they are met."""
    holders: dict[Key, int] = defaultdict(int)
    for chain in chains.values():
        for key in chain:
            holders[key] += 1
    columns: dict[int, list[int]] = {rank: [] for rank in chains}
    arrived: dict[Key, list[int]] = {}
    ready: deque[Key] = deque()

    def arrive(rank: int) -> None:
        chain, at = chains[rank], len(columns[rank])
        if at < len(chain):
            here = arrived.setdefault(chain[at], [])
            here.append(rank)
            if len(here) == holders[chain[at]]:
                ready.append(chain[at])

    for rank in sorted(chains):
        arrive(rank)
    while arrived:
        key = ready.popleft() if ready else max(arrived, key=lambda one: _cut(arrived[one]))
        here = arrived.pop(key)
        holders[key] -= len(here)
        column = max(columns[rank][-1] + 1 if columns[rank] else 0 for rank in here)
        for rank in here:
            columns[rank].append(column)
            arrive(rank)
    return columns


def _cut(here: Sequence[int]) -> tuple[int, int]:
    """Where a cycle is cut: where most ranks stand already, then at the lowest rank."""
    ranks = [rank for rank in here if rank >= 0]
    return len(ranks), -min(ranks, default=0)
