"""Who waits for whom: the wait-for graph over ranks (ALGORITHMS.md section 2).

Theory of operation. Each rank is given one standing. Waiting is a fact, not a phase: a rank inside
an unfinished collective of its own group waits for the members that have not entered it (ring
heads). One that TorchFT's own calls show in a quorum or a commit vote, that is inside a collective
across groups, that reports phase `communication`, or whose stack stands in a wait for other ranks,
waits across groups: for its counterparts (same group rank) elsewhere, and for its own group, by the
commit vote. Any other rank is alone: nothing but itself holds it up. So is a stopped process, one
whose interpreter does not run, and one left behind in a collective that a peer has completed,
whatever phase they report. One that somebody traces is held up by who looks, and is no root.
A rank alone that stands still for longer than its allowance is a root. Whoever reaches a root is
its victim. Edges may name too many ranks, never too few: an edge to a rank that moves accuses
nobody. When all pause at once and nobody waits, it is the job that pauses, and no rank. What ranks
that report no phases of their own are doing follows from the heads of their process groups, see
`outside`, and where heads do not move from their records, see `recorded_wait`.
(Source of the closed form: FT-HSDP, arXiv 2602.00277; Mycroft, SOSP'25.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from monitor.detectors.outside import inside_across, missed
from monitor.detectors.patience import Allowance, allowance, undeclared
from monitor.detectors.recorded_wait import missed_by_records, quiet_groups
from monitor.detectors.standing import Standing
from monitor.detectors.stuck import Stuck, stuck_in
from monitor.history import History, RankTrack, inside_own_group
from monitor.names import GroupName, RankName
from worker_server.wire import WAITING_PHASE, Doing

__all__ = ["SELF_HELD", "Standing", "WaitGraph", "build", "patience"]

_QUORUM_PHASE: Final = "quorum"
"""What loops that wait for TorchFT's quorum by itself call it: a wait for the Lighthouse and for
the other groups, whoever is to blame."""


SELF_HELD = frozenset(
    {Standing.STOPPED, Standing.FROZEN, Standing.LEFT, Standing.ALONE, Standing.OUTSIDE}
)
_PAUSING = frozenset({Standing.FROZEN, Standing.ALONE, Standing.OUTSIDE})


@dataclass(frozen=True, slots=True)
class WaitGraph:
    """The standing of every rank in one tick, and what follows from it."""

    standing: Mapping[RankName, Standing]
    roots: tuple[RankName, ...]
    """Alone and still for longer than allowed; sorted."""
    suspects: tuple[RankName, ...]
    """Alone and still for at least half the stall floor, allowed or not; holds the roots."""
    stuck: tuple[Stuck, ...]
    fleet_pauses: bool
    """Whether most ranks stand still by themselves at once and nobody waits."""
    quiet: tuple[GroupName, ...] = ()
    """Replica groups that stand still, and only their records can tell why; sorted."""
    next_root_s: float = math.inf
    """In so many seconds the next of the suspects has stood still for longer than allowed."""
    by_records: frozenset[RankName] = frozenset()
    """Ranks that are missing somewhere by their group's records alone."""
    _stalled: frozenset[RankName] = frozenset()
    _held_by: Mapping[RankName, tuple[RankName, ...]] = field(default_factory=dict)
    _lanes: Mapping[int, tuple[RankName, ...]] = field(default_factory=dict)
    _groups: Mapping[GroupName, tuple[RankName, ...]] = field(default_factory=dict)
    _place: Mapping[RankName, tuple[GroupName, int]] = field(default_factory=dict)

    @property
    def pausing(self) -> frozenset[RankName]:
        """Suspects who may be in a pause of their own; if they go on, it was one."""
        return frozenset(rank for rank in self.suspects if self.standing[rank] in _PAUSING)

    def left_since(self, history: History) -> dict[RankName, float]:
        """Ranks whose peers are through with the collective that they are in -> first seen so."""
        gone = (Standing.LEFT, Standing.SILENT)
        before = {r: at_s for r, at_s in history.left_s.items() if self.standing.get(r) in gone}
        now = (rank for rank, standing in self.standing.items() if standing is Standing.LEFT)
        return dict.fromkeys(now, history.now_s) | before

    @property
    def all_in(self) -> frozenset[RankName]:
        """Ranks that stand in a collective from which nobody is missing."""
        return frozenset(
            rank
            for one in self.stuck
            if one.complete and not one.completed
            for rank in one.joined
            if rank in self._stalled
        )

    def victims(self, of: Iterable[RankName]) -> tuple[RankName, ...]:
        """Ranks that stand still because they wait, directly or not, for one of `of`; sorted."""
        culprits = set(of)
        found: set[RankName] = set()
        frontier = sorted(culprits)
        lanes: set[int] = set()
        groups: set[GroupName] = set()
        while frontier:
            rank = frontier.pop()
            waiters = list(self._held_by.get(rank, ()))
            group, lane = self._place[rank]
            if lane not in lanes:
                lanes.add(lane)
                waiters += self._lanes.get(lane, ())
            if group not in groups:
                groups.add(group)
                waiters += self._groups.get(group, ())
            new = [w for w in waiters if w not in found and w not in culprits]
            found.update(new)
            frontier += new
        return tuple(sorted(found & self._stalled))


def build(history: History) -> WaitGraph:
    """The wait-for graph of the latest tick."""
    tracks = history.present()
    standing = {track.rank: _standing(history, track) for track in tracks}
    stuck = tuple(
        found
        for group, members in history.groups().items()
        for found in stuck_in(group, members, standing)
    )
    for found in stuck:
        if found.complete and found.completed:
            standing.update(dict.fromkeys(found.joined, Standing.LEFT))
    missing = missed(history, tracks, standing, stuck)
    outside = (rank for rank in missing if standing[rank] is not Standing.TRACED)
    standing.update(dict.fromkeys(outside, Standing.OUTSIDE))
    quiet = quiet_groups(history, standing)
    recorded = missed_by_records(history, quiet)
    standing.update({held: Standing.HELD for waiting in recorded.values() for held in waiting})
    standing.update(dict.fromkeys(recorded, Standing.OUTSIDE))
    missing |= recorded
    waiters = {waiter for waiting in missing.values() for waiter in waiting}
    held_up = (rank for rank in waiters if standing[rank] is Standing.UNKNOWN)
    standing.update(dict.fromkeys(held_up, Standing.WAITING))
    floor_s = history.config.stall_floor_s / 2
    stalled = frozenset(t.rank for t in tracks if t.fresh is not None and t.stall_s >= floor_s)
    lanes: dict[int, list[RankName]] = {}
    groups: dict[GroupName, list[RankName]] = {}
    for track in tracks:
        if standing[track.rank] is Standing.WAITING:
            lanes.setdefault(track.identity.group_rank, []).append(track.rank)
            groups.setdefault(track.group, []).append(track.rank)
    held_by: dict[RankName, list[RankName]] = {}
    for found in stuck:
        for rank in found.absent:
            held_by.setdefault(rank, []).extend(found.joined)
    for rank, waiting in missing.items():
        known = held_by.setdefault(rank, [])
        known.extend(waiter for waiter in waiting if waiter not in known)
    graph = WaitGraph(
        standing=standing,
        roots=(),
        suspects=tuple(
            track.rank
            for track in tracks
            if standing[track.rank] in SELF_HELD and track.rank in stalled
        ),
        stuck=stuck,
        fleet_pauses=_fleet_pauses(tracks, standing, stalled),
        quiet=quiet,
        by_records=frozenset(recorded),
        _stalled=stalled,
        _held_by={rank: tuple(holders) for rank, holders in held_by.items()},
        _lanes={lane: tuple(ranks) for lane, ranks in lanes.items()},
        _groups={group: tuple(ranks) for group, ranks in groups.items()},
        _place={track.rank: (track.group, track.identity.group_rank) for track in tracks},
    )
    return _with_roots(history, graph)


def _with_roots(history: History, graph: WaitGraph) -> WaitGraph:
    left_s = {
        rank: patience(history, graph, history.tracks[rank]).span_s - _stood_s(history, graph, rank)
        for rank in graph.suspects
    }
    return replace(
        graph,
        roots=tuple(rank for rank, span_s in left_s.items() if span_s <= 0),
        next_root_s=min((span_s for span_s in left_s.values() if span_s > 0), default=math.inf),
    )


def _stood_s(history: History, graph: WaitGraph, rank: RankName) -> float:
    """How long a rank stands still by itself.

    One without phases only while somebody is seen waiting for it: what it did before they came
    nobody knows, all may have paused. One left behind since its peers were seen to be through:
    before, it waited for them.
    """
    stall_s = history.tracks[rank].stall_s
    if graph.standing[rank] is Standing.LEFT:
        return min(stall_s, history.now_s - history.left_s.get(rank, history.now_s))
    if graph.standing[rank] is not Standing.OUTSIDE:
        return stall_s
    waits_s = (history.tracks[waiter].stall_s for waiter in graph._held_by.get(rank, ()))
    return min(stall_s, max(waits_s, default=0.0))


def patience(history: History, graph: WaitGraph, track: RankTrack) -> Allowance:
    """How long a rank that nothing but itself holds up may stand still, all things considered."""
    allowed, longer = allowance(history, track), history.config.unwitnessed_factor
    standing = graph.standing[track.rank]
    if standing in (Standing.STOPPED, Standing.FROZEN):
        return allowed
    if standing is Standing.LEFT:  # its part of the data may still be under way
        return allowed.times(longer, "a peer left the collective")
    floor = undeclared(history, track)
    if floor is not None and floor.span_s > allowed.span_s:
        allowed = floor
    if graph.fleet_pauses:
        budget_s = history.config.long_phase_budget_s
        if budget_s > allowed.span_s:
            return Allowance(budget_s, f"{budget_s:g} s when all pause at once")
    if graph.victims((track.rank,)):
        return allowed
    return allowed.times(longer, "nobody is seen waiting")


def _fleet_pauses(
    tracks: Iterable[RankTrack],
    standing: Mapping[RankName, Standing],
    stalled: frozenset[RankName],
) -> bool:
    """Whether at least half of the ranks alive, and two, may pause by themselves, and nobody waits.

    A rank that cannot be seen may be in the pause too; what it does is no witness.
    """
    alive = [track.rank for track in tracks if standing[track.rank] is not Standing.DEAD]
    waiting = (Standing.HELD, Standing.WAITING, Standing.LEFT)
    if any(standing[rank] in waiting and rank in stalled for rank in alive):
        return False
    pausing = [rank for rank in alive if standing[rank] in _PAUSING and rank in stalled]
    silent = sum(standing[rank] is Standing.SILENT for rank in alive)
    return bool(pausing) and len(pausing) + silent >= max(2, len(alive) / 2)


def _standing(history: History, track: RankTrack) -> Standing:  # noqa: PLR0911
    report = track.fresh
    if report is None:
        return Standing.SILENT
    if not report.process.alive:
        return Standing.DEAD
    if track.tracer is not None:
        return Standing.TRACED
    if history.stopped(track):
        return Standing.STOPPED
    frozen_s = report.process.interpreter_age_s
    if frozen_s is not None and frozen_s >= history.hang_after_s(track):
        return Standing.FROZEN
    if any(inside_own_group(head, track) for head in report.heads):
        return Standing.HELD
    if track.waits_in is not None or inside_across(track):
        return Standing.WAITING
    if not track.phased:  # what a framework calls a phase may hold waiting inside
        witness = track.witness
        waits = witness is not None and witness.doing is Doing.COLLECTIVE
        return Standing.WAITING if waits else Standing.UNKNOWN
    waits = track.doing in (WAITING_PHASE, _QUORUM_PHASE)
    return Standing.WAITING if waits else Standing.ALONE
