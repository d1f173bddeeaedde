"""Whether the records show one moment: those of a running job do not, and accuse nobody.

Theory of operation. Ranks are not dumped at one moment. In a hang that does not matter, for
nothing moves between the dumps. In a running job it makes ranks look absent or behind that were
merely dumped first. Two things are impossible while nothing moves, and so give it away:

- somebody completed a collective that another has not even enqueued, although nobody gets out of
  such a one before all are in: the other moved after its dump;
- ranks that are not to blame are at different points of one communicator: what one of them
  completed, the healthy complete too, within milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from monitor.analysis.graph import Graph, Stuck, synchronises
from monitor.analysis.index import NEVER, Index
from monitor.flight_recorder.job import NONE

_YOUNG_NS = 1_000_000_000
"""Whoever waits for less than a second is not stuck, whatever the records look like. Lower: a
healthy job that is asked often gets accused. Higher: nothing is lost but that second."""


def moved(index: Index) -> frozenset[int]:
    """Ranks that went on after their dump: peers completed what they had not enqueued."""
    found: set[int] = set()
    for group, at in index.groups.items():
        if group in index.retired or not len(at.passed):
            continue
        found.update(at.members[at.known & (at.enqueued < at.passed.max())].tolist())
    return frozenset(found)


def trailing(graph: Graph) -> dict[int, int]:
    """Ranks with unfinished entries that peers completed -> how many such entries."""
    index = graph.index
    found: dict[int, int] = {}
    for stuck in graph.stuck:
        if stuck.group in index.retired or not synchronises(index, stuck):
            continue
        at = index.groups[stuck.group]
        top = int(at.passed.max())
        if top < stuck.sequence:
            continue
        for rank in stuck.inside:
            mine = int(at.enqueued[at.members == rank][0])
            found[rank] = found.get(rank, 0) + min(top, mine) - stuck.sequence + 1
    return found


def stopped_short(graph: Graph, rank: int) -> bool:
    """Whether peers completed exactly what a trailing rank had launched, in every group.

    So it is when its GPU did all of its work and its process lost track of it (a CUDA error, as
    in the real records). A rank of a running job that was merely dumped first has launched more.
    """
    index = graph.index
    for at in index.groups.values():
        mine = at.members == rank
        if not mine.any() or int(at.head[mine][0]) == NEVER:
            continue
        top = int(at.passed.max())
        if int(at.head[mine][0]) <= top < int(at.enqueued[mine][0]):
            return False
    return True


def settled(graph: Graph, scene: Iterable[Stuck], culprits: Iterable[int]) -> bool:
    """Whether what is seen around these collectives can be one moment, but for the culprits."""
    restless = (moved(graph.index) | frozenset(trailing(graph))) - frozenset(culprits)
    around = {rank for one in scene for rank in (*one.joined, *one.absent)}
    return not (restless & around)


def young(graph: Graph, scene: Iterable[Stuck]) -> bool:
    """Whether it is known of all who wait that they have only just begun to."""
    ages = [age for one in scene for rank in one.inside for age in _ages(graph, one, rank)]
    return bool(ages) and all(0 <= age < _YOUNG_NS for age in ages)


def old(graph: Graph, scene: Iterable[Stuck], at_least_ns: int) -> bool:
    """Whether it is known of somebody who waits that it does so for long."""
    return any(
        age >= at_least_ns
        for one in scene
        for rank in one.inside
        for age in _ages(graph, one, rank)
    )


def _ages(graph: Graph, stuck: Stuck, rank: int) -> list[int]:
    info, columns = graph.index.job.ranks[rank], graph.index.job.columns
    if info.taken_ns == NONE:
        return []
    rows = [
        row
        for row in graph.index.heads[rank]
        if columns["group"][row] == stuck.group and columns["seq"][row] == stuck.sequence
    ]
    created = [int(columns["created_ns"][row]) for row in rows]
    return [info.taken_ns - ns for ns in created if ns != NONE]


def last_activity_ns(index: Index, rank: int) -> int:
    """The latest time in a rank's record, of its own clock; NONE: it has none."""
    columns = index.job.columns
    rows = np.flatnonzero(columns["rank"] == rank)
    times = [columns[name][rows].max(initial=NONE) for name in ("created_ns", "completed_ns")]
    return int(max(times))
