"""Ranks whose records contradict their peers': they went on afterwards, or lost track of their GPU.

Nobody gets out of a synchronising collective before everybody is in. So what one member completed,
all members have enqueued; and all healthy ones complete it, within milliseconds.
"""

from __future__ import annotations

import numpy as np

from monitor.analysis.index import NEVER, SYNCHRONISING, Index, Standings
from monitor.flight_recorder.job import Backend


def moved(index: Index) -> frozenset[int]:
    """Ranks that went on after their dump: peers completed what they had not enqueued."""
    found: set[int] = set()
    for group, at in index.groups.items():
        if group in index.retired or not len(at.passed):
            continue
        found.update(at.members[at.known & (at.enqueued < at.passed.max())].tolist())
    return frozenset(found)


def lost(index: Index) -> dict[int, int]:
    """Ranks with unfinished collectives that their peers completed -> how many such.

    Gloo's records are left out: what one ended by an error looks completed.
    """
    found: dict[int, int] = {}
    for group, at in index.groups.items():
        if group in index.retired:
            continue
        top = finished(at)
        for rank in at.members[at.read & (at.head <= top)].tolist():
            row = index.head_row(rank, group)
            gloo = index.job.ranks[rank].backend is Backend.GLOO
            if gloo or index.op(row) not in SYNCHRONISING:
                continue
            mine = int(at.enqueued[at.members == rank][0])
            head = int(index.job.columns["seq"][row])
            found[rank] = found.get(rank, 0) + min(top, mine) - head + 1
    return found


def finished(at: Standings) -> int:
    """The highest sequence that a member is through with; a communicator works in order."""
    return int(np.minimum(at.enqueued, at.head - 1)[at.read].max(initial=0))


def stopped_short(index: Index, rank: int) -> bool:
    """Whether peers completed exactly what a trailing rank had launched, in every group.

    So it is when its GPU did all of its work and its process lost track of it (a CUDA error, as
    in the real records). A rank of a running job that was merely dumped first has launched more.
    """
    for at in index.groups.values():
        mine = at.members == rank
        if not mine.any() or int(at.head[mine][0]) == NEVER:
            continue
        top = finished(at)
        if int(at.head[mine][0]) <= top < int(at.enqueued[mine][0]):
            return False
    return True
