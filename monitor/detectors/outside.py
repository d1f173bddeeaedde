"""Who is missing, where phases do not tell: by the heads of the process groups.

Theory of operation. A rank that only attached still counts its collectives, and so does one that
says only that it waits. Whoever is in none,
while peers stand in one that it has not entered, is missing there: the wait itself is the witness.
Between replica groups there are two such places: TorchFT's own process group, whose sequence ids
begin again with each quorum, and the quorum, which a rank enters when its Manager begins a step
(`/v1/state` says which step, and whether it has begun). Within a group there is a third, the commit
vote. Not every wait can be seen by heads (C++ calls collectives of its own), so records are read
and stacks are looked at before anybody is accused, see `unphased`. Where all others are seen
waiting, the one group that does not wait is missing, wherever that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from monitor.detectors.standing import Standing
from monitor.detectors.stuck import Stuck
from monitor.history import History, RankTrack
from monitor.history.turnout import HEARTBEAT_TIMEOUT_S
from monitor.names import RankName
from worker_server.wire import ACROSS, WAIT_COMMIT, WAIT_QUORUM, GroupHead, StepState

_QUORUMS: Final = "torchft"
"""Steps told by TorchFT's Manager: one begins when the rank asks for a quorum."""


def inside_across(track: RankTrack) -> bool:
    """Whether the rank is inside a collective that spans replica groups."""
    return track.fresh is not None and any(head.inside > 0 for head in across(track))


def missed(
    history: History,
    tracks: Sequence[RankTrack],
    standing: Mapping[RankName, Standing],
    stuck: Iterable[Stuck],
) -> dict[RankName, tuple[RankName, ...]]:
    """Ranks that may be in no collective -> those who wait for them there; both sorted.

    Who waits for another one itself is left out: it is a victim, whoever waits for it.
    """
    found: dict[RankName, set[RankName]] = {}
    for one in stuck:
        for rank in one.absent:
            if standing[rank] in (Standing.UNKNOWN, Standing.TRACED):
                found.setdefault(rank, set()).update(one.joined)
    looked_at = {track.group for track in tracks if standing[track.rank] is Standing.TRACED}
    unknown = [
        track
        for track in tracks
        if _may_be_outside(track, standing[track.rank])
        # beside one that is traced it may wait for it, in a backward pass that looks like work
        and (track.group not in looked_at or standing[track.rank] is Standing.TRACED)
    ]
    for track, waiting in _awaited(history, tracks, unknown):
        found.setdefault(track.rank, set()).update(mate.rank for mate in waiting)
    found = found or _by_elimination(history, tracks, standing)
    victims = {waiter for waiting in found.values() for waiter in waiting}
    return {
        rank: tuple(sorted(waiting))
        for rank, waiting in sorted(found.items())
        if rank not in victims
    }


def _awaited(
    history: History, tracks: Iterable[RankTrack], unknown: Sequence[RankTrack]
) -> Iterable[tuple[RankTrack, list[RankTrack]]]:
    """Those for whom ranks of other groups, or of their own, are seen waiting; with these."""
    still_s = history.config.stall_floor_s / 2
    lanes: dict[int, dict[_Place, list[RankTrack]]] = {}
    for track in tracks if unknown else ():
        if track.fresh is not None and track.stall_s >= still_s:
            lane = lanes.setdefault(track.identity.group_rank, {})
            lane.setdefault(_place_across(track), []).append(track)
    for track in unknown:
        waiting: list[RankTrack] = []
        # else nobody waits for it there, however its quorum id reads
        if _reaches_quorums(history, track):
            for mates in lanes.get(track.identity.group_rank, {}).values():
                if _waits_for(mates[0], track):
                    waiting += (mate for mate in mates if mate.group != track.group)
        own = history.groups()[track.group]
        waiting += [m for m in own if m.stall_s >= still_s and _waits_within(m, track)]
        if waiting:
            yield track, waiting


def _by_elimination(
    history: History, tracks: Sequence[RankTrack], standing: Mapping[RankName, Standing]
) -> dict[RankName, set[RankName]]:
    """Ranks of the one group that does not wait where all others are seen waiting."""
    there = [track for track in tracks if standing[track.rank] is not Standing.DEAD]
    still_s = history.config.stall_floor_s / 2
    waits = (Standing.WAITING, Standing.HELD)
    waiting = {t.rank for t in there if standing[t.rank] in waits and t.stall_s >= still_s}
    rest = [track for track in there if track.rank not in waiting]
    outside = [t for t in rest if standing[t.rank] is Standing.UNKNOWN and t.witness is not None]
    groups = {track.group for track in rest}
    elsewhere = {t.rank for t in there if t.rank in waiting and t.group not in groups}
    if len(groups) != 1 or len(outside) < len(rest) or not elsewhere:
        return {}
    return {track.rank: set(waiting) for track in outside if not _launched(track)}


def _reaches_quorums(history: History, track: RankTrack) -> bool:
    """Whether its group is waited for by quorums: it is in the last, or beats and stands still."""
    if history.in_quorum(track.group) is not False:
        return True
    age_s = history.heartbeat_age_s(track.group)
    return track.witness is not None and age_s is not None and age_s < HEARTBEAT_TIMEOUT_S


def _may_be_outside(track: RankTrack, standing: Standing) -> bool:
    """Whether it may be in no collective at all: it does not say, or says only that it waits."""
    says_so = standing is Standing.WAITING and track.phased
    waits = says_so and not inside_across(track) and track.waits_in is None
    return waits or standing in (Standing.UNKNOWN, Standing.TRACED)


def across(track: RankTrack) -> Iterable[GroupHead]:
    """Heads of its process groups that span replica groups."""
    heads = () if track.report is None else track.report.heads
    return (head for head in heads if head.name.startswith(ACROSS))


def _launched(track: RankTrack) -> bool:
    """Whether a collective across groups that it has launched is under way."""
    return any(head.enqueued > head.completed for head in across(track))


_Place = tuple[object, ...]


def _place_across(track: RankTrack) -> _Place:
    """All that `_waits_for` asks of a mate: thousands stand at one place, asked about once."""
    step = track.step
    heads = tuple((h.name, h.inside, h.enqueued, h.completed) for h in across(track))
    return (heads, step and (step.quorum_id, step.source, _place(step)))


def _waits_for(mate: RankTrack, track: RankTrack) -> bool:
    """Whether a rank of another replica group waits for this one across groups."""
    if track.report is None:
        return False
    if any(_not_entered(head, mate, track) for head in across(mate)):
        return True
    if track.phased:  # it may wait for the quorum, and for the commit vote: heads do not show it
        return False
    return not inside_across(mate) and _behind(track, mate)


def _waits_within(mate: RankTrack, track: RankTrack) -> bool:
    """Whether a rank waits for this one of its own group, in a quorum or a commit vote."""
    ours, theirs = track.step, mate.step
    if mate is track or track.phased or ours is None or theirs is None:
        return False
    if mate.waits_in == WAIT_COMMIT:
        return ours.source == _QUORUMS and _place(ours) <= _place(theirs)
    return mate.waits_in == WAIT_QUORUM and _behind(track, mate)


def _behind(track: RankTrack, mate: RankTrack) -> bool:
    """Whether it has not begun the step in which the other waits, both by TorchFT's own count."""
    ours, theirs = track.step, mate.step
    if ours is None or theirs is None or not ours.source == theirs.source == _QUORUMS:
        return False
    return _place(ours) < _place(theirs)


def _not_entered(head: GroupHead, mate: RankTrack, track: RankTrack) -> bool:
    """Whether the mate is inside a collective across groups that this rank has not entered.

    What was launched and is not over counts as well: TorchFT's DDP waits for it in C++, unseen.
    """
    reached = head.inside or (head.enqueued if head.enqueued > head.completed else 0)
    known = next((own for own in across(track) if own.name == head.name), None)
    if reached == 0 or known is None or known.enqueued == 0:
        return False  # it is in no such group, or takes the weights first: a new quorum begins at 0
    same = track.step is None or mate.step is None or track.step.quorum_id == mate.step.quorum_id
    return known.enqueued < reached if same else not track.phased


def _place(step: StepState) -> int:
    """How far a rank is: a step that is over lies between two that are begun."""
    over = step.attempt == step.commits + step.commit_failures
    return 2 * step.step + over
