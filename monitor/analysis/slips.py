"""A call too many or too few among calls that are all alike: only the call sites tell.

Theory of operation. Where all calls of a group have one signature, nothing differs when a rank
leaves one out or makes one more; the job hangs much later, when one side has no partner left. Then
one side is a single call ahead. From the slip on the call sites of the few are those of the many,
moved by one call. Lines may also differ because the program has one line for each role, so sites
are asked only of a group that hangs in this shape, and only a perfect fit counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from monitor.analysis.calls import Calls
from monitor.analysis.finding import Fault
from monitor.analysis.graph import Graph, Stuck
from monitor.analysis.sequences import Divergence
from monitor.flight_recorder.job import NONE

_FEW: Final = 16
"""Ranks that may have slipped together; more are no minority worth the comparison."""

_Places = dict[int, tuple[int, int]]
"""Sequence -> (site, row) of one rank."""


def slips(graph: Graph, calls: Calls, known: Iterable[Divergence]) -> tuple[Divergence, ...]:
    """Slips that lead to a hang, in groups where nothing else differs."""
    told = {one.group for one in known}
    found = (
        _slip(graph, calls, stuck)
        for stuck in graph.stuck
        if stuck.transfer is None and stuck.group not in told
    )
    return tuple(one for one in found if one is not None)


def _slip(graph: Graph, calls: Calls, stuck: Stuck) -> Divergence | None:
    size = len(graph.index.job.groups[stuck.group].members)
    behind, ahead = stuck.absent, stuck.joined
    if not behind or stuck.silent or not _one_behind(graph, stuck):
        return None
    few, many, by = (behind, ahead, 1) if len(behind) < len(ahead) else (ahead, behind, -1)
    if 2 * len(many) <= size or len(few) > _FEW:
        return None
    right = max((_places(calls, stuck.group, rank) for rank in many[:_FEW]), key=len)
    begins = {_begin(_places(calls, stuck.group, rank), right, by) for rank in few}
    if len(begins) != 1 or (begin := begins.pop()) is None:
        return None
    begun, end = calls.place[stuck.group]
    here = calls.sequence[begun:end] == begin
    here &= calls.site[begun:end] == right[begin][0]
    if 2 * int(np.isin(calls.rank[begun:end][here], many).sum()) <= size:
        return None
    rows = right[begin][1], _places(calls, stuck.group, few[0])[begin][1]
    return Divergence(
        kind=Fault.SKIPPED if by > 0 else Fault.EXTRA,
        group=stuck.group,
        sequence=begin,
        sides=(many, few),
        rows=rows,
        said=tuple(str(calls.signatures[int(calls.by_row[row])]) for row in rows),
        culprits=few,
        live=True,
    )


def _one_behind(graph: Graph, stuck: Stuck) -> bool:
    """Whether all who have not come are exactly one call short of it."""
    at = graph.index.groups[stuck.group]
    short = at.enqueued[np.isin(at.members, stuck.absent)]
    return bool(np.all(short == stuck.sequence - 1))


def _places(calls: Calls, group: int, rank: int) -> _Places:
    begin, end = calls.place[group]
    mine = begin + np.flatnonzero(calls.rank[begin:end] == rank)
    values = zip(calls.site[mine].tolist(), calls.row[mine].tolist(), strict=True)
    return dict(zip(calls.sequence[mine].tolist(), values, strict=True))


def _begin(mine: _Places, theirs: _Places, by: int) -> int | None:
    """Where the sites part for good, if from there they fit when moved by one; else None."""
    both = sorted(mine.keys() & theirs.keys())
    begin = next((s for s in both if mine[s][0] != theirs[s][0]), None)
    if begin is None:
        return None
    first = begin if by > 0 else begin + 1  # the call too many itself has no partner
    pairs = [(mine[s][0], theirs[s + by][0]) for s in mine if s >= first and s + by in theirs]
    fits = bool(pairs) and all(a == b != NONE for a, b in pairs)
    return begin if fits else None
