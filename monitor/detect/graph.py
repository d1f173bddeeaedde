"""The wait-for graph: ranks, who waits for whom by which witness, and what follows from that. Pure.

A wait is an edge that says who is waited for; each witness makes its own (`waits` builds them). The
graph does not know how a wait was seen. One that is waited for and waits for nobody is a root; who
reaches a root is its victim; ranks that wait for each other and for nobody else are a circle, in
which nobody is to blame. Edges may name too many ranks, never too few: an edge to a rank that moves
accuses nobody. (Source of the closed form: FT-HSDP, arXiv 2602.00277; Mycroft, SOSP'25.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.detect.history import Held, History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName, split_rank_name
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.monitor.records.waits import closed

SELF_HELD = frozenset(
    {
        RankStanding.STOPPED,
        RankStanding.FROZEN,
        RankStanding.LEFT,
        RankStanding.ALONE,
        RankStanding.OUTSIDE,
    }
)
_ENDS = frozenset({RankStanding.DEAD, RankStanding.TRACED, RankStanding.UNKNOWN})
"""Ranks in these have no wait of their own that can be seen; others may wait for them."""
_LEAVES_S: Final = 3.0
"""A rank that gives up moves once more, seen a poll or two later; a sound one keeps moving."""
PAUSING = frozenset({RankStanding.FROZEN, RankStanding.ALONE, RankStanding.OUTSIDE})


class By(StrEnum):
    """The witness of a wait."""

    COLLECTIVE = "collective"
    """Heads: inside a collective that others have not entered."""
    TRANSFER = "transfer"
    """Inside a send or receive that the peer has not posted."""
    GROUP = "group"
    """Creates a process group whose other members do not."""
    ACROSS = "across"
    """In a quorum, a commit vote or a collective across replica groups."""
    RECORDS = "records"
    """Flight records alone show the wait."""
    SOCKET = "socket"
    """Its kernel gets no answer from the host that they are on."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Edges of the graph: each of the waiters waits for each of the holders."""

    waiters: tuple[RankName, ...]
    holders: tuple[RankName, ...]
    by: By


@dataclass(frozen=True, slots=True)
class Stuck:
    """An unfinished collective, or a transfer, of one replica group's process group."""

    group: GroupName
    process_group: str
    seq: int
    size: int
    joined: tuple[RankName, ...]
    """Inside it now."""
    absent: tuple[RankName, ...] = ()
    """Known members that have not entered it."""
    completed: tuple[RankName, ...] = ()
    """Members that have completed it."""
    ops: tuple[str, ...] = ()
    """The operations by which its members entered it, sorted."""
    stall_s: float = math.inf
    """Least time without a move by anyone inside: an older record shows another moment."""
    recorded: bool = False
    """From heads of torch's recorder: no ring has its entries."""
    transfer: bool = False
    """A send or receive: its two ends alone are members, and `seq` counts for this pair and tag."""

    @property
    def by(self) -> By:
        """The witness of the wait."""
        return By.TRANSFER if self.transfer else By.COLLECTIVE

    @property
    def complete(self) -> bool:
        """True if every member is or was inside: nobody is waited for."""
        return not self.absent

    def hangs(self, history: History) -> bool:
        """True if its members stand there for longer than they may."""
        return self.stall_s >= history.hang_after_s(history.tracks[self.joined[0]])

    @property
    def members(self) -> tuple[RankName, ...]:
        """Members inside or missing, sorted."""
        return tuple(sorted((*self.joined, *self.absent)))


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The standing of every rank in one tick, and what follows from it."""

    standing: Mapping[RankName, RankStanding]
    roots: tuple[RankName, ...]
    """Alone and still for longer than allowed; sorted."""
    suspects: tuple[RankName, ...]
    """Alone and still for at least half the stall floor, allowed or not; includes the roots."""
    stuck: tuple[Stuck, ...]
    fleet_pauses: bool
    """True if most ranks stand still on their own at once and nobody waits."""
    quiet: tuple[Stuck, ...] = ()
    """Replica groups that stand still, and only their records can show why; sorted. All of a group
    count as inside, in a collective that is not known."""
    next_root_s: float = math.inf
    """Seconds until the next suspect has stood still for longer than allowed."""
    by_records: frozenset[RankName] = frozenset()
    """Ranks missing somewhere by their group's records alone."""
    circles: tuple[tuple[RankName, ...], ...] = ()
    """Ranks that stand still, wait for each other and for nobody else, each circle sorted: by what
    their threads are in, so that records have to confirm it where a rank has several threads."""
    waits: tuple[Wait, ...] = ()
    """The edges that name who is waited for. A rank that waits across replica groups also waits for
    all of its lane and of its own group: those are followed in `victims`, and not listed."""
    _stalled: frozenset[RankName] = frozenset()
    _held_by: Mapping[RankName, Sequence[RankName]] = field(default_factory=dict)
    _lanes: Mapping[int, Sequence[RankName]] = field(default_factory=dict)
    _groups: Mapping[GroupName, Sequence[RankName]] = field(default_factory=dict)

    @property
    def pausing(self) -> frozenset[RankName]:
        """Suspects that may be in a pause of their own; if they continue, it was one."""
        return frozenset(rank for rank in self.suspects if self.standing[rank] in PAUSING)

    def left_since(self, history: History) -> dict[RankName, float]:
        """Ranks whose peers have completed the collective that they are in -> first seen so."""
        apart = (RankStanding.LEFT, RankStanding.SILENT)
        before = {r: at_s for r, at_s in history.left_s.items() if self.standing.get(r) in apart}
        now = (rank for rank, standing in self.standing.items() if standing is RankStanding.LEFT)
        return dict.fromkeys(now, history.now_s) | before

    def held_since(self, history: History) -> dict[RankName, Held]:
        """Ranks that wait -> for whom in the end; those that ended keep what was seen before."""
        held = {
            rank: before
            for rank, before in history.held.items()
            if rank in self.standing and _still_keeps(history, history.tracks[rank], before)
        }
        ends = {*self.suspects, *(r for r in self._held_by if self.standing[r] in _ENDS)}
        holders = grouped((waiter, end) for end in sorted(ends) for waiter in self.victims((end,)))
        for waiter, of in holders.items():
            since_s = history.now_s - history.tracks[waiter].stall_s
            held[waiter] = Held(tuple(of), since_s, history.now_s)
        return held

    @property
    def all_in(self) -> frozenset[RankName]:
        """Ranks in a collective that nobody is missing from."""
        return frozenset(
            rank
            for collective in self.stuck
            if collective.complete and not collective.completed and not collective.transfer
            for rank in collective.joined
            if rank in self._stalled
        )

    def victims(self, of: Iterable[RankName]) -> tuple[RankName, ...]:
        """Ranks that stand still because they wait, directly or not, for one of `of`; sorted."""
        return tuple(sorted({waiter for waiter, _ in self.paths_to(of)} & self._stalled))

    def paths_to(self, of: Iterable[RankName]) -> Iterator[tuple[RankName, RankName]]:
        """Each rank that waits, directly or not, for one of `of`, and the next rank on its way
        there; the nearest first.
        """
        reached = dict.fromkeys(sorted({*of}))
        frontier = deque(reached)
        lanes: set[int] = set()
        groups: set[GroupName] = set()
        while frontier:
            rank = frontier.popleft()
            waiters = list(self._held_by.get(rank, ()))
            group, lane = split_rank_name(rank)
            if lane not in lanes:
                lanes.add(lane)
                waiters += self._lanes.get(lane, ())
            if group not in groups:
                groups.add(group)
                waiters += self._groups.get(group, ())
            new = dict.fromkeys(waiter for waiter in waiters if waiter not in reached)
            reached |= new
            frontier += new
            yield from ((waiter, rank) for waiter in new)


def circles_of(
    waits: Sequence[Wait], stalled: frozenset[RankName]
) -> tuple[tuple[RankName, ...], ...]:
    """Strongly connected parts that no edge leaves, of more ranks than one, all standing still."""
    inside = set[RankName]().union(*(wait.waiters for wait in waits))
    holders = set[RankName]().union(*(wait.holders for wait in waits))
    if inside.isdisjoint(holders):
        return ()  # by far the most common
    ranks = sorted(inside | holders)
    place = {rank: node for node, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + len(waits))]
    for node, wait in enumerate(waits, len(ranks)):
        edges[node] = [place[rank] for rank in wait.holders]
        for rank in wait.waiters:
            edges[place[rank]].append(node)
    circles = (tuple(sorted(ranks[n] for n in part if n < len(ranks))) for part in closed(edges))
    return tuple(sorted(c for c in circles if len(c) > 1 and stalled.issuperset(c)))


def _still_keeps(history: History, track: RankTrack, held: Held) -> bool:
    """True if a rank that is not seen to wait any more may still end for that wait.

    It left it by an error then, and its interpreter takes its time.
    """
    if track.died_s is not None or track.fresh is None:
        return True
    went_on = track.moved_s is not None and track.moved_s > held.seen_s + _LEAVES_S
    return not went_on and history.now_s - held.seen_s < history.config.ending_s
