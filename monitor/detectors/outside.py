"""Who is missing, where phases do not tell: by the heads of the process groups.

Theory of operation. A rank that only attached still counts its collectives, and so does one that
says only that it waits. Whoever is in none,
while peers stand in one that it has not entered, is missing there: the wait itself is the witness.
Between replica groups there are two such places: TorchFT's own process group, whose sequence ids
begin again with each quorum, and the quorum, which a rank enters when its Manager begins a step
(`/v1/state` says which step, and whether it has begun). Not every wait can be seen by heads (C++
calls collectives of its own, TorchFT asks managers by gRPC), so records are read before anybody is
accused, see `unphased`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from monitor.detectors.standing import Standing
from monitor.detectors.stuck import Stuck
from monitor.history import History, RankTrack
from monitor.names import RankName
from worker_server.wire import ACROSS, GroupHead, StepState

_QUORUMS = "torchft"
"""Steps told by TorchFT's Manager: one begins when the rank asks for a quorum."""


def inside_across(track: RankTrack) -> bool:
    """Whether the rank is inside a collective that spans replica groups."""
    return track.fresh is not None and any(head.inside > 0 for head in _across(track))


def missed(
    history: History,
    tracks: Sequence[RankTrack],
    standing: Mapping[RankName, Standing],
    stuck: Iterable[Stuck],
) -> dict[RankName, tuple[RankName, ...]]:
    """Ranks that may be in no collective -> those who wait for them there; both sorted."""
    found: dict[RankName, set[RankName]] = {}
    for one in stuck:
        for rank in one.absent:
            if standing[rank] is Standing.UNKNOWN:
                found.setdefault(rank, set()).update(one.joined)
    unknown = [track for track in tracks if _may_be_outside(track, standing[track.rank])]
    if unknown:
        lanes: dict[int, list[RankTrack]] = {}
        for track in tracks:
            lanes.setdefault(track.identity.group_rank, []).append(track)
        for track in unknown:
            if history.in_quorum(track.group) is False:
                continue  # nobody waits for it there, however its quorum id reads
            mates = lanes[track.identity.group_rank]
            still_s = history.config.stall_floor_s / 2
            others = (m for m in mates if m.group != track.group and m.stall_s >= still_s)
            waiting = [mate for mate in others if _waits_for(mate, track)]
            if waiting:
                found.setdefault(track.rank, set()).update(mate.rank for mate in waiting)
    return {rank: tuple(sorted(waiting)) for rank, waiting in sorted(found.items())}


def _may_be_outside(track: RankTrack, standing: Standing) -> bool:
    """Whether it may be in no collective at all: it does not say, or says only that it waits."""
    waits = standing is Standing.WAITING and not inside_across(track)
    return waits or standing is Standing.UNKNOWN


def _across(track: RankTrack) -> Iterable[GroupHead]:
    heads = () if track.report is None else track.report.heads
    return (head for head in heads if head.name.startswith(ACROSS))


def _waits_for(mate: RankTrack, track: RankTrack) -> bool:
    """Whether a rank of another replica group waits for this one across groups."""
    if mate.fresh is None or track.report is None:
        return False
    if any(_not_entered(head, mate, track) for head in _across(mate)):
        return True
    if track.phased:  # it may wait for the quorum, and for the commit vote: heads do not show it
        return False
    ours, theirs = track.step, mate.step
    if ours is None or theirs is None or inside_across(mate):
        return False
    if not ours.source == theirs.source == _QUORUMS:
        return False
    return _place(ours) < _place(theirs)


def _not_entered(head: GroupHead, mate: RankTrack, track: RankTrack) -> bool:
    """Whether the mate is inside a collective across groups that this rank has not entered."""
    if head.inside == 0:
        return False
    known = next((own for own in _across(track) if own.name == head.name), None)
    if known is None or known.enqueued == 0:
        return False  # it is in no such group, or takes the weights first: a new quorum begins at 0
    same = track.step is None or mate.step is None or track.step.quorum_id == mate.step.quorum_id
    return known.enqueued < head.inside if same else not track.phased


def _place(step: StepState) -> int:
    """How far a rank is: a step that is over lies between two that are begun."""
    over = step.attempt == step.commits + step.commit_failures
    return 2 * step.step + over
