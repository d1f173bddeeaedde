"""Ranks whose records contradict their peers': they went on afterwards, or lost track of their GPU.

Nobody gets out of a synchronising collective before everybody is in. So what one member completed,
all members have enqueued; and all healthy ones complete it, within milliseconds.
"""

from __future__ import annotations

import numpy as np

from monitor.analysis.index import NEVER, SENDING, SYNCHRONISING, Index, Standings, Transfers
from monitor.flight_recorder.job import NONE, Backend, State


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
            head = int(index.job.columns["seq"][row])
            mine = int(at.enqueued[at.members == rank][0])
            trailing = min(top, mine) - head + 1
            if not gloo and _believed(index, at, head, index.op(row), trailing):
                found[rank] = found.get(rank, 0) + trailing
    return found


def _believed(index: Index, at: Standings, sequence: int, op: str, trailing: int) -> bool:
    """Whether members that are through with a collective show that the others should be.

    One may be through alone because it called something else there, which a record of unfinished
    entries only no longer shows: then most must be through, or with more than that one. Of what
    a root sends, the root gets out first: only the last member that is inside trails the others.
    """
    called = at.read & (at.enqueued >= sequence)
    through = at.members[called & (at.head > sequence)].tolist()
    inside = int((called & (at.head <= sequence)).sum())
    if op in SENDING:
        return inside == 1 and len(through) > 1
    shown = any(not index.job.ranks[rank].only_active for rank in through)
    return op in SYNCHRONISING and (shown or len(through) > inside or trailing > 1)


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


def unbegun(index: Index) -> frozenset[int]:
    """Ranks that have not begun on the GPU what a peer has begun, or is through with.

    Nothing that they launched before is unfinished, so it is their own GPU that does not get
    there. Told only by jobs that record when a kernel starts.
    """
    columns = index.job.columns
    began = (columns["state"] == State.STARTED) | (columns["started_ns"] != NONE)
    if not began.any():
        return frozenset()
    at_front: dict[Transfers | tuple[int, int], list[int]] = {}
    for row in (row for rows in index.front.values() for row in rows):
        place = index.place(row)
        if place is not None:
            at_front.setdefault(place, []).append(row)
    found: set[int] = set()
    for place, rows in at_front.items():
        states = columns["state"][rows]
        late = [row for row, s in zip(rows, states, strict=True) if s == State.SCHEDULED]
        begun = int((states == State.STARTED).sum())
        if not isinstance(place, Transfers):
            at, sequence = index.groups[place[0]], place[1]
            begun += int((at.read & (at.enqueued >= sequence) & (at.head > sequence)).sum())
        if 0 < len(late) <= begun:
            found.update(int(columns["rank"][row]) for row in late)
    return frozenset(found)
