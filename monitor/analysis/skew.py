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
from monitor.analysis.lost import moved
from monitor.flight_recorder.job import NONE

_YOUNG_NS = 1_000_000_000
"""Whoever waits for less than a second is not stuck, whatever the records look like. Lower: a
healthy job that is asked often gets accused. Higher: nothing is lost but that second."""

_COPIED_NS = 7_200_000_000_000
"""A record that seems to be written so long after the call was copied since, and its date says
nothing: watchdogs wait 10 to 30 minutes. Lower: a hang with a longer timeout looks undated. Higher:
records of a running job that were copied look like a hang."""
_CLOCKS_NS = 10_000_000_000
"""By so much a file's date and a rank's clock may differ before the date is not believed."""


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
    return bool(ages) and all(-_CLOCKS_NS < age < _YOUNG_NS for age in ages)


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
    ages = [info.taken_ns - ns for ns in created if ns != NONE]
    return [age for age in ages if age < _COPIED_NS]
