"""The last collectives of every rank, as rows of cells on the common axis of `order`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from monitor.analysis.finding import Analysis
from monitor.flight_recorder.job import NONE, Job, State
from monitor.flight_recorder.semantics import POINT_TO_POINT
from monitor.reports.order import BEFORE, Chain, chains, in_order
from monitor.reports.purposes import purposes
from monitor.reports.standing import ORDER, UNFINISHED, Role, roles, rows_of

COLUMNS = 32
_STUCK = (*UNFINISHED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Cell:
    """One collective of one rank."""

    column: int
    row: int
    """In `Job.columns`; of the first rank of a strip."""
    state: State
    marked: bool
    """Whether a finding points at it."""
    op: str
    purpose: str
    """Of its process group."""


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
    entries = dict(chains(job))
    columns = in_order(entries)
    first = _first_column(job, analysis, entries, columns)
    marked = _Marks(job, analysis)
    meant = purposes(job)
    role = roles(job, analysis)
    cells: dict[int, tuple[Cell, ...]] = {}
    later: dict[int, int] = {}
    for rank in role:
        chain = entries.get(rank, [])
        mine = (
            Cell(
                column - first,
                row,
                State(int(job.columns["state"][row])),
                row in marked,
                job.payloads[job.columns["payload"][row]].op,
                meant[job.columns["group"][row]],
            )
            for (_, row), column in zip(chain, columns.get(rank, ()), strict=True)
        )
        cells[rank] = tuple(one for one in mine if 0 <= one.column < COLUMNS)
        last = cells[rank][-1].row if cells[rank] else (chain[0][1] - 1 if chain else NONE)
        later[rank] = 0 if not chain else rows_of(job, rank).stop - 1 - last
    return _fold(role, cells, later, at_most)


class _Marks:
    """Rows at which findings point: where it shows, and where the accused are stuck."""

    def __init__(self, job: Job, analysis: Analysis) -> None:
        self._columns = job.columns
        self._whose: dict[tuple[int | None, int | None, bool], set[int]] = defaultdict(set)
        accused: set[int] = set()
        for one in analysis.findings:
            mine = {*one.culprits, *(rank for side in one.between for rank in side)}
            self._whose[one.group, one.sequence, one.op in POINT_TO_POINT] |= mine
            accused |= mine
        self._stuck = {wait.row for wait in analysis.waits if wait.rank in accused}

    def __contains__(self, row: int) -> bool:
        if row in self._stuck:
            return True
        columns = self._columns
        p2p = bool(columns["p2p"][row])
        whose = self._whose.get((int(columns["group"][row]), int(columns["seq"][row]), p2p))
        if whose is None or not p2p or not whose:
            return whose is not None
        # other pairs of the group use the same numbers
        return not whose.isdisjoint((int(columns["rank"][row]), int(columns["peer"][row])))


def _first_column(
    job: Job, analysis: Analysis, entries: Mapping[int, Chain], columns: Mapping[int, list[int]]
) -> int:
    """So that the places where ranks stand are in the picture, and a little of what was before."""
    told = {wait.row for wait in analysis.waits}
    stuck, waiting, last = [], [], 0
    for rank, chain in entries.items():
        for (_, row), column in zip(chain, columns[rank], strict=True):
            last = max(last, column)
            if row in told:
                stuck.append(column)
            if job.columns["state"][row] in UNFINISHED:
                waiting.append(column)
    at = stuck or waiting
    return max(0, min(at) - BEFORE if at else last + 1 - COLUMNS)


def _fold(
    role: Mapping[int, Role],
    cells: Mapping[int, tuple[Cell, ...]],
    later: Mapping[int, int],
    at_most: int,
) -> tuple[Strip, ...]:
    looks: tuple[dict[int, Hashable], ...] = (
        {r: (role[r], later[r] > 0, _look(cells[r])) for r in role},
        {r: (role[r], _look(tuple(c for c in cells[r] if c.state in _STUCK)[:1])) for r in role},
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


def _look(cells: tuple[Cell, ...]) -> Hashable:
    return tuple((one.column, one.state, one.marked, one.op, one.purpose) for one in cells)
