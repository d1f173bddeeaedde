"""The last collectives of every rank on one common axis that needs no clocks.

Ranks' clocks differ by more than a collective takes, and half of the records hold no times. So a
column is a place in the order of the program and not a time: each collective stands in one column
on all of its members, to the right of whatever any of them called before (Lamport, "Time, Clocks,
and the Ordering of Events", 1978). Where members called the same two in different order no such
columns exist; there each rank keeps its own order, and the same two stand crosswise.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from monitor.analysis.finding import Analysis
from monitor.flight_recorder.job import NONE, Job, State
from monitor.flight_recorder.semantics import POINT_TO_POINT
from monitor.reports.standing import ORDER, UNFINISHED, Role, roles, rows_of, unfinished

COLUMNS = 32
_BEFORE = 8
_SPAN = 48

_Key = tuple[int, int, tuple[int, int] | None, int]
"""Group, sequence id, the two sides of a point-to-point operation, which of its parts."""
_Chain = list[tuple[_Key, int]]
"""Keys of the collectives of a rank in its order, each with its row in `Job.columns`."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One collective of one rank."""

    column: int
    row: int
    """In `Job.columns`; of the first rank of a strip."""
    state: State
    marked: bool
    """Whether a finding points at it."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Ranks whose last collectives look alike."""

    ranks: tuple[int, ...]
    role: Role
    cells: tuple[Cell, ...]
    later: int
    """Further entries to the right of what is drawn, of the first rank."""
    same: bool
    """Whether all of the ranks have exactly these cells."""


def strips(job: Job, analysis: Analysis, at_most: int) -> tuple[Strip, ...]:
    """A strip for every rank, those alike together; culprits first."""
    chains = dict(_chains(job))
    columns = _in_order(_with_groups(chains))
    marks = _marks(analysis)
    first = _first_column(job, analysis, chains, columns)
    role = roles(job, analysis)
    cells: dict[int, tuple[Cell, ...]] = {}
    later: dict[int, int] = {}
    for rank in role:
        chain = chains.get(rank, [])
        mine = [
            Cell(
                column - first,
                row,
                State(int(job.columns["state"][row])),
                _marked(job, row, marks),
            )
            for (_, row), column in zip(chain, columns.get(rank, ()), strict=True)
        ]
        cells[rank] = tuple(one for one in mine if 0 <= one.column < COLUMNS)
        last = cells[rank][-1].row if cells[rank] else (chain[0][1] - 1 if chain else NONE)
        later[rank] = 0 if not chain else rows_of(job, rank).stop - 1 - last
    return _fold(job, role, cells, later, at_most)


def _chains(job: Job) -> Iterator[tuple[int, _Chain]]:
    """From each rank the entries round the place where it stands."""
    waiting = unfinished(job)
    for rank in job.ranks:
        begin, end = rows_of(job, rank).start, rows_of(job, rank).stop
        stuck = np.flatnonzero(waiting[begin:end])
        start = begin + int(stuck[0]) - _BEFORE if len(stuck) else end - _SPAN
        start = max(begin, start)
        yield rank, _chain(job, rank, range(start, min(end, start + _SPAN)))


def _chain(job: Job, rank: int, rows: range) -> _Chain:
    columns = job.columns
    seen: dict[tuple[int, int, tuple[int, int] | None], int] = defaultdict(int)
    chain: _Chain = []
    for row in rows:
        peer = int(columns["peer"][row])
        pair = (min(rank, peer), max(rank, peer)) if columns["p2p"][row] else None
        key = (int(columns["group"][row]), int(columns["seq"][row]), pair)
        seen[key] += 1  # the parts of a coalesced operation share their number
        chain.append(((*key, seen[key]), row))
    return chain


def _marks(analysis: Analysis) -> Mapping[tuple[int | None, int | None, bool], set[int]]:
    """Where findings point; for a send or recv also whose, as other pairs use the same numbers."""
    marks: dict[tuple[int | None, int | None, bool], set[int]] = defaultdict(set)
    for one in analysis.findings:
        sides = (rank for side in one.between for rank in side)
        marks[one.group, one.sequence, one.op in POINT_TO_POINT].update(one.culprits, sides)
    return marks


def _marked(
    job: Job, row: int, marks: Mapping[tuple[int | None, int | None, bool], set[int]]
) -> bool:
    columns = job.columns
    p2p = bool(columns["p2p"][row])
    whose = marks.get((int(columns["group"][row]), int(columns["seq"][row]), p2p))
    if whose is None:
        return False
    return (
        not p2p or not whose or bool({int(columns["rank"][row]), int(columns["peer"][row])} & whose)
    )


def _with_groups(chains: Mapping[int, _Chain]) -> dict[int, list[_Key]]:
    """The chains, and one more for each group: its own order, whoever's record begins later."""
    found = {rank: [key for key, _ in chain] for rank, chain in chains.items()}
    by_group: dict[tuple[int, tuple[int, int] | None], set[_Key]] = defaultdict(set)
    for chain in chains.values():
        for key, _ in chain:
            by_group[key[0], key[2]].add(key)
    for index, keys in enumerate(by_group.values()):
        found[-1 - index] = sorted(keys, key=lambda key: (key[1], key[3]))
    return found


def _in_order(chains: Mapping[int, list[_Key]]) -> dict[int, list[int]]:
    """A column for each place of each chain: topological levels, cycles cut where they are met."""
    holders: dict[_Key, int] = defaultdict(int)
    for chain in chains.values():
        for key in chain:
            holders[key] += 1
    columns: dict[int, list[int]] = {rank: [] for rank in chains}
    arrived: dict[_Key, list[int]] = {}
    ready: deque[_Key] = deque()

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


def _first_column(
    job: Job, analysis: Analysis, chains: Mapping[int, _Chain], columns: Mapping[int, list[int]]
) -> int:
    """So that the places where ranks stand are in the picture, and a little of what was before."""
    told = {wait.row for wait in analysis.waits}
    stuck, waiting, last = [], [], 0
    for rank, chain in chains.items():
        for (_, row), column in zip(chain, columns[rank], strict=True):
            last = max(last, column)
            if row in told:
                stuck.append(column)
            if job.columns["state"][row] in UNFINISHED:
                waiting.append(column)
    at = stuck or waiting
    return max(0, min(at) - _BEFORE if at else last + 1 - COLUMNS)


def _fold(
    job: Job,
    role: Mapping[int, Role],
    cells: Mapping[int, tuple[Cell, ...]],
    later: Mapping[int, int],
    at_most: int,
) -> tuple[Strip, ...]:
    looks: tuple[dict[int, Hashable], ...] = (
        {r: (role[r], later[r] > 0, _look(job, cells[r])) for r in role},
        {
            r: (role[r], _look(job, tuple(c for c in cells[r] if c.state in _STUCK)[:1]))
            for r in role
        },
        {r: role[r] for r in role},
    )
    for look in looks:
        by_look: dict[Hashable, list[int]] = defaultdict(list)
        for rank in sorted(role):
            by_look[look[rank]].append(rank)
        if len(by_look) <= at_most:
            break
    made = [
        Strip(
            tuple(ranks),
            role[ranks[0]],
            cells[ranks[0]],
            later[ranks[0]],
            same=look is looks[0] or len(ranks) == 1,
        )
        for ranks in by_look.values()
    ]
    return tuple(sorted(made, key=lambda one: (ORDER.index(one.role), one.ranks)))


_STUCK = (*UNFINISHED, State.FAILED)


def _look(job: Job, cells: tuple[Cell, ...]) -> Hashable:
    return tuple(
        (
            one.column,
            one.state,
            one.marked,
            job.payloads[job.columns["payload"][one.row]].op,
            _like(job, one),
        )
        for one in cells
    )


def _like(job: Job, cell: Cell) -> str:
    return category(job, int(job.columns["group"][cell.row]))


def category(job: Job, group: int) -> str:
    """What groups of one purpose have in common: their description, or their size."""
    one = job.groups[group]
    if one.desc:
        return one.desc
    return f"{len(one.members)} members" if one.members else one.name
