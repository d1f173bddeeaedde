"""Builds the wait-for graph of one tick from every witness (ALGORITHMS.md sections 2 and 11). Pure.

Theory of operation. Each rank is given one standing. Waiting is a fact, not a phase: a rank inside
an unfinished collective of its own group waits for the members that have not entered it
(`collectives`), one inside a send or receive for its peer, one that creates a process
group for the other ranks (`forming`). A rank waits across groups if TorchFT's own calls show it in
a quorum or a commit vote, if it is inside a collective across groups, if it reports phase
`communication`, or if its stack is in a wait for other ranks: it then waits for its counterparts
(same group rank) elsewhere, and for its own group, by the commit vote. Any other rank is alone:
nothing but itself holds it up. So is a stopped process, one whose interpreter does not run, and one
left behind in a collective that a peer has completed, whatever phase they report. A traced rank is
held up by its tracer, and is no root. A rank alone that stands still for longer than its allowance
is a root. When all pause at once and nobody waits, it is the job that pauses, and no rank. For
ranks that report no phases the heads of their process groups show what they do (`outside`), and
where heads do not move, their records (`recorded`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from lightkeeper.monitor.detect.collectives import stuck_in, transfers_in
from lightkeeper.monitor.detect.forming import Team, forming_waits
from lightkeeper.monitor.detect.graph import (
    PAUSING,
    SELF_HELD,
    By,
    Stuck,
    Wait,
    WaitGraph,
    circles_of,
)
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.outside import missed
from lightkeeper.monitor.detect.patience import (
    FOR_OTHERS,
    Allowance,
    allowance,
    at_work,
    before_they_give_up,
    undeclared,
)
from lightkeeper.monitor.detect.recorded import missed_by_records, quiet_groups
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import WAITING_PHASE, Doing

_QUORUM_PHASE: Final = "quorum"
"""The phase in which a loop waits for TorchFT's quorum itself: for the Lighthouse and the other
groups, whichever is to blame."""


def build_wait_graph(history: History) -> WaitGraph:
    """The graph of this tick. The order matters: each witness sees what those before it have shown.

    Heads, transfers and process groups that are being made; then who is missing there, across
    replica groups too; then records, for groups in which nothing else shows a wait.
    """
    tracks = history.present()
    standing = {track.rank: _standing(history, track) for track in tracks}
    stuck = _stuck(history, standing)
    standing.update((rank, RankStanding.LEFT) for rank in _left(stuck))
    held: tuple[Stuck | Team, ...] = (*stuck, *forming_waits(history))
    missing = missed(history, tracks, standing, held)
    outside = (rank for rank in missing if standing[rank] is not RankStanding.TRACED)
    standing.update(dict.fromkeys(outside, RankStanding.OUTSIDE))
    quiet = quiet_groups(history, standing)
    recorded = missed_by_records(history, quiet, standing)
    standing.update(dict.fromkeys(_waiters(recorded), RankStanding.HELD))
    standing.update(dict.fromkeys(recorded, RankStanding.OUTSIDE))
    missing |= recorded
    held_up = (r for r in _waiters(missing) if standing[r] is RankStanding.UNKNOWN)
    standing.update(dict.fromkeys(held_up, RankStanding.WAITING))
    waits = (
        *(Wait(each.joined, each.absent, each.by) for each in held if each.absent),
        *(Wait(on, (r,), By.RECORDS if r in recorded else By.ACROSS) for r, on in missing.items()),
        *_unanswered(history),
    )
    still_s = history.still_after_s
    stalled = frozenset(t.rank for t in tracks if t.fresh is not None and t.stall_s >= still_s)
    across = [track for track in tracks if standing[track.rank] is RankStanding.WAITING]
    graph = WaitGraph(
        standing=standing,
        roots=(),
        suspects=tuple(r for r in standing if r in stalled and standing[r] in SELF_HELD),
        stuck=stuck,
        fleet_pauses=_fleet_pauses(tracks, standing, stalled),
        quiet=quiet,
        by_records=frozenset(recorded),
        circles=circles_of(waits, stalled),
        waits=waits,
        _stalled=stalled,
        _held_by=_held_by(waits),
        _lanes=grouped((track.identity.group_rank, track.rank) for track in across),
        _groups=grouped((track.group, track.rank) for track in across),
    )
    return _with_roots(history, graph)


def _stuck(history: History, standing: Mapping[RankName, RankStanding]) -> tuple[Stuck, ...]:
    """Collectives and transfers that hold ranks."""
    held = {t.group for t in history.present() if standing[t.rank] is RankStanding.HELD}
    return tuple(
        stuck
        for group, members in history.groups().items()
        if group in held
        for find in (stuck_in, transfers_in)
        for stuck in find(group, members, standing)
    )


def _left(stuck: Iterable[Stuck]) -> Iterable[RankName]:
    """Ranks inside collectives that a peer has completed."""
    for collective in stuck:
        if collective.complete and collective.completed:
            yield from collective.joined


def _unanswered(history: History) -> Iterable[Wait]:
    """Edges to the ranks of hosts from which a rank's kernel gets no answer."""
    for (_, peer), edges in history.links.by_hosts.items():
        there = tuple(t.rank for t in history.present() if t.identity.host == peer)
        if there:
            yield Wait(tuple(dict.fromkeys(edge.rank for edge in edges)), there, By.SOCKET)


def _waiters(missing: Mapping[RankName, Iterable[RankName]]) -> set[RankName]:
    return {waiter for waiting in missing.values() for waiter in waiting}


def _held_by(waits: Iterable[Wait]) -> dict[RankName, tuple[RankName, ...]]:
    """Rank -> those that wait for it, each once."""
    held_by: dict[RankName, dict[RankName, None]] = {}
    for wait in waits:
        for rank in wait.holders:
            held_by.setdefault(rank, {}).update(dict.fromkeys(wait.waiters))
    return {rank: tuple(waiting) for rank, waiting in held_by.items()}


_FOR_A_NEIGHBOUR: Final = frozenset({Doing.LOCK, Doing.SLEEP})


def _with_roots(history: History, graph: WaitGraph) -> WaitGraph:
    """The graph with those of its suspects that have stood still for longer than allowed.

    A lock or a file is waited for as long as a neighbour that is at work may work.
    """
    left_s = {
        rank: patience(history, graph, history.tracks[rank]).span_s - _stood_s(history, graph, rank)
        for rank in graph.suspects
    }
    busy_s: dict[str, float] = {}
    for track in (history.tracks[rank] for rank in left_s):
        if at_work(track):
            host = track.identity.host
            busy_s[host] = max(left_s[track.rank], busy_s.get(host, 0.0))
    for track in (history.tracks[rank] for rank in left_s if busy_s):
        if track.witness is not None and track.witness.doing in _FOR_A_NEIGHBOUR:
            left_s[track.rank] = max(left_s[track.rank], busy_s.get(track.identity.host, 0.0))
    return replace(
        graph,
        roots=tuple(rank for rank, span_s in left_s.items() if span_s <= 0),
        next_root_s=min((span_s for span_s in left_s.values() if span_s > 0), default=math.inf),
    )


def _stood_s(history: History, graph: WaitGraph, rank: RankName) -> float:
    """How long a rank has stood still on its own.

    A rank without phases only while others are seen waiting for it: before, all may have paused. A
    rank left behind only since its peers were seen to have completed: before, it waited for them.
    """
    stall_s = history.tracks[rank].stall_s
    if graph.standing[rank] is RankStanding.LEFT:
        return min(stall_s, history.now_s - history.left_s.get(rank, history.now_s))
    if graph.standing[rank] is not RankStanding.OUTSIDE:
        return stall_s
    waits_s = (history.tracks[waiter].stall_s for waiter in graph._held_by.get(rank, ()))
    return min(stall_s, max(waits_s, default=0.0))


def patience(history: History, graph: WaitGraph, track: RankTrack) -> Allowance:
    """How long a rank that only itself holds up may stand still, all things considered."""
    allowed, longer = allowance(history, track), history.config.unwitnessed_factor
    standing = graph.standing[track.rank]
    if standing in (RankStanding.STOPPED, RankStanding.FROZEN):
        return allowed
    if standing is RankStanding.LEFT:  # its part of the data may still be under way
        return allowed.times(longer, "a peer left the collective")
    floor = undeclared(history, track)
    if floor is not None and floor.span_s > allowed.span_s:
        allowed = floor
    if graph.fleet_pauses:
        budget_s = history.config.long_phase_budget_s
        if budget_s > allowed.span_s:
            return Allowance.flat(budget_s, "when all pause at once")
    if waiters := graph.victims((track.rank,)):
        sooner = before_they_give_up(track, (history.tracks[rank] for rank in waiters))
        if sooner is not None and sooner.span_s < allowed.span_s:
            floor_s = max(sooner.span_s, history.config.stall_floor_s)
            return replace(sooner, span_s=floor_s)
        return allowed
    return allowed.times(longer, "nobody is seen waiting")


def _fleet_pauses(
    tracks: Iterable[RankTrack],
    standing: Mapping[RankName, RankStanding],
    stalled: frozenset[RankName],
) -> bool:
    """True if at least half of the live ranks, and two, may pause on their own, and nobody waits.

    A rank that cannot be seen may be in the pause too; it proves nothing.
    """
    if not stalled:
        return False
    alive = [track.rank for track in tracks if standing[track.rank] is not RankStanding.DEAD]
    waiting = (RankStanding.HELD, RankStanding.WAITING, RankStanding.LEFT)
    if any(standing[rank] in waiting and rank in stalled for rank in alive):
        return False
    pausing = [rank for rank in alive if standing[rank] in PAUSING and rank in stalled]
    silent = sum(standing[rank] is RankStanding.SILENT for rank in alive)
    return bool(pausing) and len(pausing) + silent >= max(2, len(alive) / 2)


def _standing(history: History, track: RankTrack) -> RankStanding:
    report = track.fresh
    if report is None:
        return RankStanding.SILENT if track.died_s is None else RankStanding.DEAD
    process, floor_s = report.process, history.config.stall_floor_s
    if process.state == "T" or not process.alive or process.tracer is not None:
        if not process.alive:
            return RankStanding.DEAD
        return RankStanding.STOPPED if process.tracer is None else RankStanding.TRACED
    frozen_s = process.interpreter_age_s or 0.0
    frozen = frozen_s >= floor_s and frozen_s >= history.hang_after_s(track)
    return RankStanding.FROZEN if frozen else _by_waits(track)


def _by_waits(track: RankTrack) -> RankStanding:
    """What it is seen to wait in, or what it says.

    A rank whose main thread waits for a quorum while TorchFT's thread for that stands in the rank's
    own code waits for nobody else.
    """
    if track.gives_state:
        return RankStanding.ALONE
    if (track.inside or track.held) and track.inside_own:
        return RankStanding.HELD
    across = track.inside and track.inside_across  # most are inside nothing
    if across or track.waits_in is not None or track.forming is not None:
        return RankStanding.WAITING
    if track.phased:
        waits = track.doing in (WAITING_PHASE, _QUORUM_PHASE)
        return RankStanding.WAITING if waits else RankStanding.ALONE
    # what a framework calls a phase may include waiting
    witness = track.witness
    waits = witness is not None and witness.doing in FOR_OTHERS
    return RankStanding.WAITING if waits else RankStanding.UNKNOWN
