"""When a job trains in parallel again as before a fault, and how many steps it lost. Pure.

Theory of operation. How many groups took part is what the ranks report of their last attempts
(TorchFT's participants: a group that heals is none yet); the size before the fault is the most that
any rank reported when the fault was first seen, a rank that has died by then included. The job is
whole again with the first commit of that many groups, in a quorum that was not there when the fault
was first seen; in the same one only where the fault stopped them all, and ended by itself.

A lost step is an attempt that did not commit: TorchFT makes it again. All groups
try the same step, so the surviving rank that lost most says how many were lost at least.
"""

from __future__ import annotations

from monitor.history import History, RankTrack
from monitor.incident import Incident, Strength


def strength(history: History) -> Strength | None:
    """How many groups take part in which quorums; None in a job without TorchFT."""
    steps = [track.step for track in history.present() if track.step is not None]
    quorums = {step.quorum_id for step in steps if step.quorum_id is not None}
    counts = [step.participants for step in steps if step.participants is not None]
    return Strength(tuple(sorted(quorums)), max(counts)) if quorums and counts else None


def resumed_s(history: History, incident: Incident, since_s: float) -> float | None:
    """When the first commit of as many groups as before the fault was made; None: not yet."""
    before, marks = incident.before, incident.milestones
    if before is None:
        return None
    passed = incident.verdict.stops and not incident.open and marks.evict_asked_s is None
    commits = (
        track.last_commit_s
        for track in history.present()
        if track.last_commit_s is not None and _whole(history, track, before, same=passed)
    )
    return min((at_s for at_s in commits if at_s > since_s), default=None)


def _whole(history: History, track: RankTrack, before: Strength, *, same: bool) -> bool:
    """Whether a rank's last commit was one of as many groups as before.

    Participants are those of the last attempt: one that failed since the former look says nothing
    of the last commit.
    """
    step = track.step
    if track.fresh is None or step is None or step.participants is None:
        return False
    failed = bool(track.failed) and track.failed[-1][0] >= history.now_s
    another = step.quorum_id not in before.quorums
    return not failed and step.participants >= before.participants and (another or same)


def lost_steps(history: History, incident: Incident) -> int | None:
    """Attempts without a commit since the fault began, at least; None where nobody can tell."""
    if incident.before is None:
        return None
    counts = [
        sum(count for at_s, count in track.failed if at_s > incident.verdict.since_s)
        for track in history.present()
        if track.group not in incident.groups and track.step is not None
    ]
    return max(*counts, incident.lost_steps or 0) if counts else incident.lost_steps
