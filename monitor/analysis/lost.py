"""Ranks whose records contradict their peers': they went on afterwards, or lost track of their GPU.

Nobody gets out of a synchronising collective before everybody is in. So what one member completed,
all members have enqueued; and all healthy ones complete it, within milliseconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from monitor.analysis import streams
from monitor.analysis.index import (
    COPIED_NS,
    NEVER,
    SENDING,
    SYNCHRONISING,
    Index,
    Standings,
    Transfers,
    synchronising,
)
from monitor.flight_recorder.job import NONE, Backend, State

_MOMENTS: Final = ("created_ns", "started_ns", "completed_ns")
_DOUBT_NS: Final = 5_000_000_000
"""What is less apart on two hosts, or on one and in a file's date, has no order. Lower: who came
late to a running job's collective is said to be missing. Higher: short timeouts stay unsolved."""
CLOCKS_NS: Final = 10_000_000_000
"""By so much a file's date and a rank's clock may differ before the date is not believed."""
YOUNG_NS: Final = 1_000_000_000
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


def timed_out(index: Index) -> list[int]:
    """Rows that look completed and cannot be: a member had not entered while its peers were inside.

    An abort ends the kernel, and NCCL calls that completed; gloo calls everything over that ended,
    and so does a program that swallows an error. Only where the member's record is younger than
    what its peers entered: an older one is of a rank that came later (`moved`).
    """
    job, columns = index.job, index.job.columns
    over = (columns["state"] == State.COMPLETED) & ~columns["p2p"]
    top: dict[int, int] = {}
    for (_, group), last in streams.highest(job, over & synchronising(job)).items():
        top[group] = max(last, top.get(group, 0))
    low = np.full(len(job.groups), NEVER)
    missing: dict[int, list[tuple[int, int]]] = {}
    for group in set(top) - index.retired:
        at = index.groups[group]
        short = at.known & (at.head == NEVER) & (at.enqueued < top[group])
        for rank, enqueued in zip(at.members[short], at.enqueued[short], strict=True):
            missing.setdefault(group, []).append((int(rank), int(enqueued) + 1))
            low[group] = min(low[group], enqueued + 1)
    rows = np.flatnonzero(over & (columns["seq"] >= low[columns["group"]])) if missing else ()
    by_group: dict[int, list[int]] = {}
    for row in rows:
        by_group.setdefault(int(columns["group"][row]), []).append(int(row))
    found: list[int] = []
    for group, candidates in missing.items():
        firsts = [
            first
            for rank, first in candidates
            if _never_came(
                index,
                rank,
                [row for row in by_group[group] if columns["seq"][row] == first],
                last=first == top[group],
            )
        ]
        found += [
            row for row in by_group[group] if columns["seq"][row] >= min(firsts, default=NEVER)
        ]
    return found


def _never_came(index: Index, rank: int, rows: Sequence[int], *, last: bool) -> bool:
    """Whether a rank's record shows that it was not in what its peers left, in these rows.

    It has to be younger than their entry by more than the clocks' doubt, and what then remained
    until they left no longer than that. A file's date may be that of a copy of a running job's: it
    counts only for what was left after more than a moment, or is the last that anybody left.
    """
    columns, ranks = index.job.columns, index.job.ranks
    entered_ns = max((int(columns["created_ns"][row]) for row in rows), default=NONE)
    if entered_ns == NONE:
        return False
    mine = slice(*np.searchsorted(columns["rank"], [rank, rank + 1]))
    own_ns = max(int(columns[name][mine].max(initial=NONE)) for name in _MOMENTS)
    taken_ns = ranks[rank].taken_ns if ranks[rank].taken_ns - entered_ns < COPIED_NS else NONE
    left = [int(columns["completed_ns"][row]) for row in rows]
    left_ns = min((ns for ns in left if ns != NONE), default=NONE)
    dated = ranks[rank].alive is not None or own_ns - entered_ns > _DOUBT_NS
    if not dated and not (last if left_ns == NONE else left_ns - entered_ns >= YOUNG_NS):
        return False
    if left_ns == NONE:
        left_ns = min(ranks[int(columns["rank"][row])].taken_ns for row in rows)
    waited_ns = max(own_ns, taken_ns) - entered_ns
    return waited_ns > _DOUBT_NS and left_ns - entered_ns <= 2 * waited_ns
