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

from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.lost import CLOCKS_NS, YOUNG_NS, moved


def settled(graph: Graph, scene: Iterable[Stuck], culprits: Iterable[int]) -> bool:
    """Whether what is seen around these collectives can be one moment, but for the culprits.

    A culprit may have lost track of its GPU; it may not have moved, for then it did come.
    """
    restless = moved(graph.index) | (frozenset(graph.lost) - frozenset(culprits))
    around = {rank for one in scene for rank in (*one.joined, *one.absent)}
    return not (restless & around)


def young(graph: Graph, scene: Iterable[Stuck]) -> bool:
    """Whether it is known of all who wait that they have only just begun to."""
    ages = [age for one in scene for rank in one.inside for age in _ages(graph, one, rank)]
    return bool(ages) and all(-CLOCKS_NS < age < YOUNG_NS for age in ages)


def old(graph: Graph, scene: Iterable[Stuck], at_least_ns: int) -> bool:
    """Whether it is known of somebody who waits that it does so for long."""
    return any(
        age >= at_least_ns
        for one in scene
        for rank in one.inside
        for age in _ages(graph, one, rank)
    )


def _ages(graph: Graph, stuck: Stuck, rank: int) -> list[int]:
    rows = graph.index.head_rows.get((rank, stuck.group, stuck.sequence), ())
    return [age for row in rows if (age := graph.index.age_ns(row)) is not None]
