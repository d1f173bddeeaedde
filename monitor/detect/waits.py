"""Who waits for whom: the wait-for graph over ranks (ALGORITHMS.md section 2).

Theory of operation. Each rank is given one standing. Waiting is a fact, not a phase: a rank inside
an unfinished collective of its own group waits for the members that have not entered it (ring
heads). A rank waits across groups if TorchFT's own calls show it in a quorum or a commit vote, if
it is inside a collective across groups, if it reports phase `communication`, or if its stack is in
a wait for other ranks: it then waits for its counterparts (same group rank) elsewhere, and for its
own group, by the commit vote. Any other rank is alone: nothing but itself holds it up. So is a
stopped process, one whose interpreter does not run, and one left behind in a collective that a peer
has completed, whatever phase they report. A traced rank is held up by its tracer, and is no root. A
rank alone that stands still for longer than its allowance is a root. A rank that reaches a root is
its victim. Edges may name too many ranks, never too few: an edge to a rank that moves accuses
nobody. When all pause at once and nobody waits, it is the job that pauses, and no rank. For ranks
that report no phases the heads of their process groups show what they do, see `outside`, and where
heads do not move, their records, see `recorded_wait`. (Source of the closed form: FT-HSDP, arXiv
2602.00277; Mycroft, SOSP'25.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from operator import itemgetter
from typing import Final

from monitor.detect.forming import Team, forming_waits
from monitor.detect.history import Held, History
from monitor.detect.intake import HEARTBEAT_TIMEOUT_S
from monitor.detect.patience import (
    FOR_OTHERS,
    Allowance,
    allowance,
    before_they_give_up,
    undeclared,
)
from monitor.detect.recorded import missed_by_records, quiet_groups
from monitor.detect.track import RankTrack, of_own_group
from monitor.model.names import GroupName, RankName, split_rank_name
from monitor.model.verdict import RankStanding
from monitor.records.waits import components
from worker_server.wire import (
    ACROSS,
    WAIT_COMMIT,
    WAIT_QUORUM,
    WAITING_PHASE,
    GroupHead,
    StepState,
    TransferHead,
)

# -- stuck -------------------------------------------------------------------------------------


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
    """A send or receive between two of them: only its two ends are members, and `seq` counts those
    of this pair and tag."""

    @property
    def complete(self) -> bool:
        """Whether every member is or was inside: nobody is waited for."""
        return not self.absent

    @property
    def members(self) -> tuple[RankName, ...]:
        """Members inside or missing, sorted."""
        return tuple(sorted((*self.joined, *self.absent)))


def stuck_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> Iterable[Stuck]:
    """Each collective that holds a member of the group, by process group and sequence."""
    joined: dict[tuple[str, int], list[RankTrack]] = {}
    for track in members:
        if standing[track.rank] is RankStanding.HELD:
            for head in track.inside:
                if of_own_group(head, track):
                    joined.setdefault((head.name, head.inside), []).append(track)
    if not joined:
        return
    heads = {track.rank: {head.name: head for head in track.heads} for track in members}
    for (name, seq), inside in sorted(joined.items(), key=itemgetter(0)):
        entered = {rank: by_name[name] for rank, by_name in heads.items() if name in by_name}
        first = entered[inside[0].rank]
        pool = [track.rank for track in members]
        if len(entered) >= first.size:
            pool = [rank for rank in pool if rank in entered]
        yield Stuck(
            group=group,
            process_group=name,
            seq=seq,
            size=first.size,
            ops=tuple(sorted({entered[track.rank].op for track in inside})),
            joined=tuple(track.rank for track in inside),
            absent=tuple(r for r in pool if r not in entered or entered[r].enqueued < seq),
            completed=tuple(r for r in pool if r in entered and entered[r].completed >= seq),
            stall_s=min(track.stall_s for track in inside),
            recorded=first.read_age_s is not None,
        )


def transfers_in(
    group: GroupName, members: tuple[RankTrack, ...], standing: Mapping[RankName, RankStanding]
) -> Iterable[Stuck]:
    """Each send and receive that holds a member of the group; the two ends count alike.

    A receive from any sender waits for nobody in particular, so it is no edge.
    """
    tracks = {track.identity.group_rank: track for track in members}
    for track in members:
        if standing[track.rank] is not RankStanding.HELD:
            continue
        for own in track.held:
            peer = tracks.get(own.peer)
            if peer is None or peer is track:
                continue
            there = _counterpart(own, track, peer)
            both = there is not None and there.held == own.held
            if both and peer.identity.group_rank < track.identity.group_rank:
                continue  # yielded as the peer's
            posted = there is not None and there.posted >= own.held
            yield Stuck(
                group=group,
                process_group=own.group,
                seq=own.held,
                size=2,
                joined=(track.rank, peer.rank) if both else (track.rank,),
                absent=() if posted else (peer.rank,),
                ops=("send" if own.sends else "recv",),
                stall_s=min(track.stall_s, peer.stall_s) if both else track.stall_s,
                transfer=True,
            )


def _counterpart(own: TransferHead, track: RankTrack, peer: RankTrack) -> TransferHead | None:
    """The peer's side of the same stream of transfers."""
    sides = () if peer.report is None else peer.report.transfers
    key = (own.group, track.identity.group_rank, own.tag, own.sends)
    return next((t for t in sides if (t.group, t.peer, t.tag, not t.sends) == key), None)


# -- outside -----------------------------------------------------------------------------------
# Who is missing, where phases do not show it: by the heads of the process groups.
#
# Theory of operation. A rank that only attached still counts its collectives, and so does one that
# says only that it waits. A rank in none, while peers are in one that it has not entered, is
# missing there: the wait itself is the witness. Between replica groups there are two such places:
# TorchFT's own process group, whose sequence ids restart with each quorum, and the quorum, which a
# rank enters when its Manager begins a step (`/v1/state` says which step, and whether it has
# begun). Within a group there is a third, the commit vote. Heads do not show every wait (C++ calls
# collectives internally), so records are read and stacks are checked before anybody is accused,
# see `unphased`. If all others are seen waiting, the one group that does not wait is missing,
# wherever that is.

_QUORUMS: Final = "torchft"
"""Steps reported by TorchFT's Manager: one begins when the rank asks for a quorum."""


def missed(
    history: History,
    tracks: Sequence[RankTrack],
    standing: Mapping[RankName, RankStanding],
    stuck: Iterable[Stuck | Team],
) -> dict[RankName, tuple[RankName, ...]]:
    """Ranks that may be in no collective -> those waiting for them there; both sorted.

    A rank that itself waits for another is left out: it is a victim, even if others wait for it.
    """
    awaited: dict[RankName, set[RankName]] = {}
    for collective in stuck:
        for rank in collective.absent:
            if standing[rank] in (RankStanding.UNKNOWN, RankStanding.TRACED):
                awaited.setdefault(rank, set()).update(collective.joined)
    looked_at: set[GroupName] = set()
    if RankStanding.TRACED in standing.values():
        looked_at = {t.group for t in tracks if standing[t.rank] is RankStanding.TRACED}
    unknown = [
        track
        for track in tracks
        if _may_be_outside(track, standing[track.rank])
        # beside a traced rank it may wait for it, in a backward pass that looks like work
        and (track.group not in looked_at or standing[track.rank] is RankStanding.TRACED)
    ]
    for track, waiting in _awaited(history, tracks, unknown):
        awaited.setdefault(track.rank, set()).update(mate.rank for mate in waiting)
    awaited = awaited or _by_elimination(history, tracks, standing)
    victims = {waiter for waiting in awaited.values() for waiter in waiting}
    return {
        rank: tuple(sorted(waiting))
        for rank, waiting in sorted(awaited.items())
        if rank not in victims
    }


def _awaited(
    history: History, tracks: Iterable[RankTrack], unknown: Sequence[RankTrack]
) -> Iterable[tuple[RankTrack, list[RankTrack]]]:
    """Ranks seen to be waited for by other groups, or by their own; with those that wait."""
    still_s = history.still_after_s
    lanes: dict[int, dict[_Place, list[RankTrack]]] = {}
    for track in tracks if unknown else ():
        if track.fresh is not None and track.stall_s >= still_s:
            lane = lanes.setdefault(track.identity.group_rank, {})
            lane.setdefault(_place_across(track), []).append(track)
    for track in unknown:
        waiting: list[RankTrack] = []
        # else nobody waits for it there, whatever its quorum id
        if _reaches_quorums(history, track):
            for mates in lanes.get(track.identity.group_rank, {}).values():
                if _waits_for(mates[0], track):
                    waiting += (mate for mate in mates if mate.group != track.group)
        own = history.groups()[track.group]
        waiting += [m for m in own if m.stall_s >= still_s and _waits_within(m, track)]
        if waiting:
            yield track, waiting


def _by_elimination(
    history: History, tracks: Sequence[RankTrack], standing: Mapping[RankName, RankStanding]
) -> dict[RankName, set[RankName]]:
    """Ranks of the only group that does not wait while all others are seen waiting."""
    if RankStanding.UNKNOWN not in standing.values():
        return {}
    alive = [track for track in tracks if standing[track.rank] is not RankStanding.DEAD]
    still_s = history.still_after_s
    waits = (RankStanding.WAITING, RankStanding.HELD)
    waiting = {t.rank for t in alive if standing[t.rank] in waits and t.stall_s >= still_s}
    others = [track for track in alive if track.rank not in waiting]
    outside = [
        t for t in others if standing[t.rank] is RankStanding.UNKNOWN and t.witness is not None
    ]
    groups = {track.group for track in others}
    elsewhere = {t.rank for t in alive if t.rank in waiting and t.group not in groups}
    if len(groups) != 1 or len(outside) < len(others) or not elsewhere:
        return {}
    return {
        track.rank: set(waiting)
        for track in outside
        if not any(h.enqueued > h.completed for h in heads_across(track))
    }


def _reaches_quorums(history: History, track: RankTrack) -> bool:
    """Whether quorums wait for its group: it is in the last, or beats and stands still."""
    if history.in_quorum(track.group) is not False:
        return True
    age_s = history.heartbeat_age_s(track.group)
    return track.witness is not None and age_s is not None and age_s < HEARTBEAT_TIMEOUT_S


def _may_be_outside(track: RankTrack, standing: RankStanding) -> bool:
    """Whether it may be in no collective at all: it reports nothing, or only that it waits."""
    says_so = standing is RankStanding.WAITING and track.phased
    waits = says_so and not track.inside_across and track.waits_in is None
    return waits or standing in (RankStanding.UNKNOWN, RankStanding.TRACED)


def heads_across(track: RankTrack) -> Iterable[GroupHead]:
    """Heads of its process groups that span replica groups."""
    return (head for head in track.heads if head.name.startswith(ACROSS))


_Place = tuple[object, ...]


def _place_across(track: RankTrack) -> _Place:
    """All that `_waits_for` reads of a mate: thousands stand at one place, checked once."""
    step = track.step
    heads = tuple((h.name, h.inside, h.enqueued, h.completed) for h in heads_across(track))
    return (heads, step and (step.quorum_id, step.source, _place(step)))


def _waits_for(mate: RankTrack, track: RankTrack) -> bool:
    """Whether a rank of another replica group waits for this one across groups."""
    if track.report is None:
        return False
    if any(_not_entered(head, mate, track) for head in heads_across(mate)):
        return True
    if track.phased:  # it may wait for the quorum or the commit vote: heads do not show that
        return False
    return not mate.inside_across and _behind(track, mate)


def _waits_within(mate: RankTrack, track: RankTrack) -> bool:
    """Whether a rank waits for this one of its own group, in a quorum or a commit vote."""
    ours, theirs = track.step, mate.step
    if mate is track or track.phased or ours is None or theirs is None:
        return False
    if mate.waits_in == WAIT_COMMIT:
        return ours.source == _QUORUMS and _place(ours) <= _place(theirs)
    return mate.waits_in == WAIT_QUORUM and _behind(track, mate)


def _behind(track: RankTrack, mate: RankTrack) -> bool:
    """Whether it has not begun the step in which the other waits, both by TorchFT's count."""
    ours, theirs = track.step, mate.step
    if ours is None or theirs is None or not ours.source == theirs.source == _QUORUMS:
        return False
    return _place(ours) < _place(theirs)


def _not_entered(head: GroupHead, mate: RankTrack, track: RankTrack) -> bool:
    """Whether the mate is inside a collective across groups that this rank has not entered.

    A launched and unfinished collective also counts: TorchFT's DDP waits for it in C++, unseen.
    """
    reached = head.inside or (head.enqueued if head.enqueued > head.completed else 0)
    own = next((h for h in heads_across(track) if h.name == head.name), None)
    if reached == 0 or own is None or own.enqueued == 0:
        return False  # it is in no such group, or takes the weights first: a new quorum begins at 0
    same = track.step is None or mate.step is None or track.step.quorum_id == mate.step.quorum_id
    return own.enqueued < reached if same else not track.phased


def _place(step: StepState) -> int:
    """Progress of a rank: a completed step lies between two begun ones."""
    over = step.attempt == step.commits + step.commit_failures
    return 2 * step.step + over


# -- waits -------------------------------------------------------------------------------------

_QUORUM_PHASE: Final = "quorum"
"""Name of this phase in loops that wait for TorchFT's quorum themselves: a wait for the Lighthouse
and the other groups, whichever is to blame."""


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
"""Of ranks that others wait for: no wait of their own is seen."""
_LEAVES_S: Final = 3.0
"""A rank that gives up moves once more, seen a poll or two later; one that goes on moves after."""
_PAUSING = frozenset({RankStanding.FROZEN, RankStanding.ALONE, RankStanding.OUTSIDE})


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
    """Whether most ranks stand still on their own at once and nobody waits."""
    quiet: tuple[GroupName, ...] = ()
    """Replica groups that stand still, and only their records can show why; sorted."""
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
        return frozenset(rank for rank in self.suspects if self.standing[rank] in _PAUSING)

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
        holders: dict[RankName, list[RankName]] = {}
        ends = {*self.suspects, *(r for r in self._held_by if self.standing[r] in _ENDS)}
        for end in sorted(ends):
            for waiter in self.victims((end,)):
                holders.setdefault(waiter, []).append(end)
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
        culprits = set(of)
        victims: set[RankName] = set()
        frontier = sorted(culprits)
        lanes: set[int] = set()
        groups: set[GroupName] = set()
        while frontier:
            rank = frontier.pop()
            waiters = list(self._held_by.get(rank, ()))
            group, lane = split_rank_name(rank)
            if lane not in lanes:
                lanes.add(lane)
                waiters += self._lanes.get(lane, ())
            if group not in groups:
                groups.add(group)
                waiters += self._groups.get(group, ())
            new = [w for w in waiters if w not in victims and w not in culprits]
            victims.update(new)
            frontier += new
        return tuple(sorted(victims & self._stalled))


def build(history: History) -> WaitGraph:
    tracks = history.present()
    standing = {track.rank: _standing(history, track) for track in tracks}
    stuck = tuple(
        stuck
        for group, members in history.groups().items()
        for find in (stuck_in, transfers_in)
        for stuck in find(group, members, standing)
    )
    for collective in stuck:
        if collective.complete and collective.completed:
            standing.update(dict.fromkeys(collective.joined, RankStanding.LEFT))
    forming = forming_waits(history)
    missing = missed(history, tracks, standing, (*stuck, *forming))
    outside = (rank for rank in missing if standing[rank] is not RankStanding.TRACED)
    standing.update(dict.fromkeys(outside, RankStanding.OUTSIDE))
    quiet = quiet_groups(history, standing)
    recorded = missed_by_records(history, quiet)
    standing.update(
        {waiter: RankStanding.HELD for waiting in recorded.values() for waiter in waiting}
    )
    standing.update(dict.fromkeys(recorded, RankStanding.OUTSIDE))
    missing |= recorded
    waiters = {waiter for waiting in missing.values() for waiter in waiting}
    held_up = (rank for rank in waiters if standing[rank] is RankStanding.UNKNOWN)
    standing.update(dict.fromkeys(held_up, RankStanding.WAITING))
    still_s = history.still_after_s
    stalled = frozenset(t.rank for t in tracks if t.fresh is not None and t.stall_s >= still_s)
    lanes: dict[int, list[RankName]] = {}
    groups: dict[GroupName, list[RankName]] = {}
    for track in tracks:
        if standing[track.rank] is RankStanding.WAITING:
            lanes.setdefault(track.identity.group_rank, []).append(track.rank)
            groups.setdefault(track.group, []).append(track.rank)
    waits = (
        *(
            Wait(one.joined, one.absent, By.TRANSFER if one.transfer else By.COLLECTIVE)
            for one in stuck
            if one.absent
        ),
        *(Wait(team.joined, team.absent, By.GROUP) for team in forming),
        *(
            Wait(waiting, (rank,), By.RECORDS if rank in recorded else By.ACROSS)
            for rank, waiting in missing.items()
        ),
    )
    held_by: dict[RankName, list[RankName]] = {}
    for wait in waits:
        for rank in wait.holders:
            waiting = held_by.setdefault(rank, [])
            waiting.extend(waiter for waiter in wait.waiters if waiter not in waiting)
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
        circles=_circles(waits, stalled),
        waits=waits,
        _stalled=stalled,
        _held_by=held_by,
        _lanes=lanes,
        _groups=groups,
    )
    left_s = {
        rank: patience(history, graph, history.tracks[rank]).span_s - _stood_s(history, graph, rank)
        for rank in graph.suspects
    }
    return replace(
        graph,
        roots=tuple(rank for rank, span_s in left_s.items() if span_s <= 0),
        next_root_s=min((span_s for span_s in left_s.values() if span_s > 0), default=math.inf),
    )


def _still_keeps(history: History, track: RankTrack, held: Held) -> bool:
    """Whether a rank that is not seen to wait any more may still end for that wait.

    It left it by an error then, and its interpreter takes its time.
    """
    if track.died_s is not None or track.fresh is None:
        return True
    went_on = track.moved_s is not None and track.moved_s > held.seen_s + _LEAVES_S
    return not went_on and history.now_s - held.seen_s < history.config.ending_s


def _circles(
    waits: Sequence[Wait], stalled: frozenset[RankName]
) -> tuple[tuple[RankName, ...], ...]:
    """Strongly connected parts that no edge leaves, of more ranks than one, all standing still."""
    inside = {rank for wait in waits for rank in wait.waiters}
    if not any(rank in inside for wait in waits for rank in wait.holders):
        return ()
    ranks = sorted({rank for wait in waits for rank in (*wait.waiters, *wait.holders)})
    place = {rank: node for node, rank in enumerate(ranks)}
    edges: list[list[int]] = [[] for _ in range(len(ranks) + len(waits))]
    for node, wait in enumerate(waits, len(ranks)):
        for rank in wait.waiters:
            edges[place[rank]].append(node)
        edges[node] = [place[rank] for rank in wait.holders]
    circles = []
    for part in components(edges):
        members = sorted(ranks[node] for node in part if node < len(ranks))
        closed = all(target in part for node in part for target in edges[node])
        if len(members) > 1 and closed and stalled.issuperset(members):
            circles.append(tuple(members))
    return tuple(sorted(circles))


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
    """Whether at least half of the live ranks, and two, may pause on their own, and nobody waits.

    A rank that cannot be seen may be in the pause too; it proves nothing.
    """
    if not stalled:
        return False
    alive = [track.rank for track in tracks if standing[track.rank] is not RankStanding.DEAD]
    waiting = (RankStanding.HELD, RankStanding.WAITING, RankStanding.LEFT)
    if any(standing[rank] in waiting and rank in stalled for rank in alive):
        return False
    pausing = [rank for rank in alive if standing[rank] in _PAUSING and rank in stalled]
    silent = sum(standing[rank] is RankStanding.SILENT for rank in alive)
    return bool(pausing) and len(pausing) + silent >= max(2, len(alive) / 2)


def _standing(history: History, track: RankTrack) -> RankStanding:  # noqa: PLR0911
    report = track.fresh
    if report is None:
        return RankStanding.SILENT
    if not report.process.alive:
        return RankStanding.DEAD
    if report.process.tracer is not None:
        return RankStanding.TRACED
    if report.process.state == "T":
        return RankStanding.STOPPED
    frozen_s = report.process.interpreter_age_s
    at_least_s = history.config.stall_floor_s
    if frozen_s is not None and frozen_s >= at_least_s and frozen_s >= history.hang_after_s(track):
        return RankStanding.FROZEN
    if (track.inside or track.held) and track.inside_own:
        return RankStanding.HELD
    waits_in = None if track.step is None else track.step.waits_in
    if waits_in is not None or track.forming or (track.inside and track.inside_across):
        return RankStanding.WAITING
    if not track.phased:  # what a framework calls a phase may include waiting
        witness = track.witness
        waits = witness is not None and witness.doing in FOR_OTHERS
        return RankStanding.WAITING if waits else RankStanding.UNKNOWN
    waits = track.doing in (WAITING_PHASE, _QUORUM_PHASE)
    return RankStanding.WAITING if waits else RankStanding.ALONE
