"""Who is missing when phases do not show it: by heads, and by TorchFT's own calls. Pure.

Theory of operation. A rank that only attached still counts its collectives, and so does one that
says only that it waits. A rank in none, while peers are in one that it has not entered, is missing
there: the wait itself is the witness. Between replica groups there are two such places: TorchFT's
own process group, whose sequence ids restart with each quorum, and the quorum, which a rank enters
when its Manager begins a step (`/v1/state` says which step, and whether it has begun). Within a
group there is a third, the commit vote. Heads do not show every wait (C++ calls collectives
internally), so records are read and stacks are checked before anybody is accused, see `unphased`.
If all others are seen waiting, the one group that does not wait is missing, wherever that is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lightkeeper.monitor.detect.forming import Team
from lightkeeper.monitor.detect.graph import Stuck
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.intake import HEARTBEAT_TIMEOUT_S
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.verdict import RankStanding
from lightkeeper.worker_server.wire import ACROSS, WAIT_COMMIT, WAIT_QUORUM, GroupHead, StepState

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
            member = history.in_quorum(track.group) is not False  # else the next quorum alone waits
            for mates in lanes.get(track.identity.group_rank, {}).values():
                if (member or mates[0].waits_in == WAIT_QUORUM) and _waits_for(mates[0], track):
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
    waits = (RankStanding.WAITING, RankStanding.HELD)
    still = (track for track in alive if track.stall_s >= history.still_after_s)
    waiting = {track.rank for track in still if standing[track.rank] in waits}
    others = [track for track in alive if track.rank not in waiting]
    groups = {track.group for track in others}
    elsewhere = any(track.rank in waiting and track.group not in groups for track in alive)
    seen = all(standing[t.rank] is RankStanding.UNKNOWN and t.witness is not None for t in others)
    if len(groups) != 1 or not seen or not elsewhere:
        return {}
    return {track.rank: set(waiting) for track in others if not _launched_across(track)}


def _launched_across(track: RankTrack) -> bool:
    return any(head.enqueued > head.completed for head in heads_across(track))


def _reaches_quorums(history: History, track: RankTrack) -> bool:
    """True if quorums wait for its group: it is in the last, or beats and stands still."""
    if history.in_quorum(track.group) is not False:
        return True
    age_s = history.heartbeat_age_s(track.group)
    return track.witness is not None and age_s is not None and age_s < HEARTBEAT_TIMEOUT_S


def _may_be_outside(track: RankTrack, standing: RankStanding) -> bool:
    """True if it may be in no collective at all: it reports nothing, or only that it waits."""
    if standing is RankStanding.WAITING:
        return track.phased and track.waits_in is None and not track.inside_across
    return standing is RankStanding.UNKNOWN or standing is RankStanding.TRACED


def heads_across(track: RankTrack) -> Iterable[GroupHead]:
    """Heads of its process groups that span replica groups."""
    return (head for head in track.heads if head.name.startswith(ACROSS))


_Place = tuple[object, ...]


def _place_across(track: RankTrack) -> _Place:
    """All that `_waits_for` reads of a mate: thousands stand at one place, checked once."""
    step = track.step
    heads = tuple((h.name, h.inside, h.enqueued, h.completed) for h in heads_across(track))
    return (heads, track.waits_in, step and (step.quorum_id, step.source, _place(step)))


def _waits_for(mate: RankTrack, track: RankTrack) -> bool:
    """True if a rank of another replica group waits for this one across groups."""
    if track.report is None:
        return False
    if any(_not_entered(head, mate, track) for head in heads_across(mate)):
        return True
    if track.phased:  # it may wait for the quorum or the commit vote: heads do not show that
        return False
    return not mate.inside_across and _behind(track, mate)


def _waits_within(mate: RankTrack, track: RankTrack) -> bool:
    """True if a rank waits for this one of its own group, in a quorum or a commit vote."""
    ours, theirs = track.step, mate.step
    if mate is track or track.phased or ours is None or theirs is None:
        return False
    if mate.waits_in == WAIT_COMMIT:
        return ours.source == _QUORUMS and _place(ours) <= _place(theirs)
    return mate.waits_in == WAIT_QUORUM and _behind(track, mate)


def _behind(track: RankTrack, mate: RankTrack) -> bool:
    """True if it has not begun the step in which the other waits, both by TorchFT's count."""
    ours, theirs = track.step, mate.step
    if ours is None or theirs is None or not ours.source == theirs.source == _QUORUMS:
        return False
    return _place(ours) < _place(theirs)


def _not_entered(head: GroupHead, mate: RankTrack, track: RankTrack) -> bool:
    """True if the mate is inside a collective across groups that this rank has not entered.

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
    if not step.attempt:  # it makes the local steps before its first vote
        return 2 * step.step - 1
    over = step.attempt == step.commits + step.commit_failures
    return 2 * step.step + over
