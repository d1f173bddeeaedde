"""What comes after a fault: who commits again, and when the group is back. Pure.

Milestones are awaited beyond the end of the incident.
"""

from __future__ import annotations

from dataclasses import replace

from monitor.config import KeeperConfig
from monitor.history import History
from monitor.incident import Incident
from monitor.tracker.ending import out_of_quorum
from monitor.tracker.resuming import lost_steps, resumed_s
from monitor.tracker.story import noted


def followed(history: History, incident: Incident, config: KeeperConfig) -> Incident:
    """The incident with the milestones that this tick shows."""
    since_s = incident.milestones.evict_asked_s
    if since_s is None and not incident.open:
        since_s = incident.milestones.firing_s
    if since_s is None or history.now_s - since_s > config.follow_s:
        return incident
    if incident.groups:  # else nobody's fault, nobody to come back
        incident = _going_and_coming(history, incident, since_s)
    if incident.milestones.resumed_s is None:
        incident = _resuming(history, incident, since_s)
    return incident


def _going_and_coming(history: History, incident: Incident, since_s: float) -> Incident:
    """The incident with what its groups and the others do."""
    marks, now_s = incident.milestones, history.now_s
    asked = marks.evict_asked_s is not None
    if asked and marks.left_quorum_s is None and out_of_quorum(history, incident):
        marks = replace(marks, left_quorum_s=now_s)
        incident = noted(incident, now_s, "left_quorum", "a quorum without it is seen")
    if marks.survivor_commit_s is None:
        commits = (
            track.last_commit_s
            for track in history.present()
            if track.group not in incident.groups and track.last_commit_s is not None
        )
        first_s = min((at_s for at_s in commits if at_s > since_s), default=None)
        if first_s is not None:
            marks = replace(marks, survivor_commit_s=first_s)
            incident = noted(incident, first_s, "survivor_commit", "another group commits")
    if marks.rejoined_s is None:
        back_s = _rejoined_s(history, incident)
        if back_s is not None:
            marks = replace(marks, rejoined_s=back_s)
            incident = noted(incident, back_s, "rejoined", "the group commits again")
    return replace(incident, milestones=marks)


def _resuming(history: History, incident: Incident, since_s: float) -> Incident:
    """The incident with what it cost in steps so far, and with the end of that when it is there."""
    incident = replace(incident, lost_steps=lost_steps(history, incident))
    at_s = resumed_s(history, incident, since_s)
    if at_s is None or incident.before is None:
        return incident
    marks = replace(incident.milestones, resumed_s=at_s)
    groups, lost = incident.before.participants, incident.lost_steps
    told = "" if lost is None else f"; {lost} step{'' if lost == 1 else 's'} lost"
    reason = f"a commit of {groups} group{'' if groups == 1 else 's'}, as before{told}"
    return noted(replace(incident, milestones=marks), at_s, "resumed", reason)


def _rejoined_s(history: History, incident: Incident) -> float | None:
    """When a group committed again, its culprits being other processes and all ranks alive."""
    first_s: list[float] = []
    for group in incident.groups:
        members = history.groups().get(group, ())
        if not members or len(members) < members[0].identity.world_size:
            return None
        for track in members:
            fresh = track.fresh
            if fresh is None or not fresh.process.alive or track.commits < 1:
                return None
            if (
                track.rank in incident.culprits
                and track.identity.incarnation in incident.incarnations
            ):
                return None
            if track.identity.incarnation not in incident.incarnations:
                first_s.append(track.first_commit_s or track.last_commit_s or history.now_s)
    return max(first_s, default=None)
