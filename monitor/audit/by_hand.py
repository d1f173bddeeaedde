"""Evictions that a person asked for, as incidents that accuse nobody: for their accounts. Pure.

Theory of operation. The tracker knows nothing of them, for no detector saw a fault. Their decision
and the evictor's progress are remembered as those of any other; what nobody could tell later (who
committed again, and when) is noted while it happens (`Aftermath`), and the incident is made from
these whenever somebody looks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from monitor.audit.aftermath import Aftermath
from monitor.audit.books import Books
from monitor.audit.case import is_time
from monitor.detectors.verdict import Confidence, Kind, Severity, Verdict
from monitor.incident import Incident, Milestones, State, Transition
from monitor.names import MANUAL, GroupName, IncidentId, ReplicaId
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow, DecisionState

KEPT: Final = 200
"""Newest that are shown."""


def with_by_hand(
    incidents: Sequence[Incident],
    decisions: Mapping[IncidentId, Sequence[DecisionRow]],
    books: Books,
) -> tuple[Incident, ...]:
    """Incidents, and evictions by hand among them, newest first."""
    ids = [incident_id for incident_id in decisions if incident_id.startswith(MANUAL)]
    if not ids:
        return tuple(incidents)
    made = [by_hand(one, decisions[one], books) for one in ids]
    found = sorted((one for one in made if one is not None), key=_newest)[:KEPT]
    return tuple(sorted((*incidents, *found), key=_newest))


def _newest(one: Incident) -> tuple[float, str]:
    return -one.milestones.first_seen_s, one.id


def by_hand(incident_id: IncidentId, rows: Sequence[DecisionRow], books: Books) -> Incident | None:
    """One eviction by hand; None where the store holds no decision with a time and a group."""
    decided = [row for row in rows if row.action == "evict" and is_time(row.at_s)]
    if not decided or not isinstance(decided[-1].body.get("group"), str):
        return None
    row = decided[-1]
    evictions = [one for one in books.evictions.get(incident_id, ()) if is_time(one.asked_s)]
    progress = evictions[-1] if evictions else None
    group, facts = GroupName(row.body["group"]), books.facts.get(incident_id)
    marks = _milestones(row, progress, books.aftermaths.get(incident_id))
    resolution = _resolution(row, progress)
    story = _story(row, marks, resolution)
    replica_id = row.body.get("replica_id")
    within = None if facts is None else facts.within
    return Incident(
        id=incident_id,
        kind=Kind.BY_HAND,
        fingerprint=f"{Kind.BY_HAND}:{group}",
        signature="",
        state=State.EVICTING if resolution is None else State.RESOLVED,
        culprits=(),
        groups=(group,),
        replica_ids=() if replica_id is None else (ReplicaId(str(replica_id)),),
        incarnations=(),
        verdict=Verdict(
            kind=Kind.BY_HAND,
            culprits=(),
            groups=(group,),
            reason=f"{row.author} asked for it: {row.reason}",
            confidence=Confidence.UNSURE,
            since_s=row.at_s,
            evidence={} if within is None else {"at that time": f"{within} accused it"},
        ),
        milestones=marks,
        story=story,
        last_seen_s=max(line.at_s for line in story),
        resolution=resolution,
        severity=Severity.INFO,
        hosts=()
        if facts is None
        else tuple(sorted({h for on in facts.hosts.values() for h in on})),
    )


def _milestones(
    row: DecisionRow, progress: EvictionProgress | None, after: Aftermath | None
) -> Milestones:
    return Milestones(
        first_seen_s=row.at_s,
        firing_s=row.at_s,
        evict_asked_s=None if progress is None else progress.asked_s,
        left_quorum_s=None if progress is None else progress.left_quorum_s,
        survivor_commit_s=None if after is None else after.survivors_s,
        rejoined_s=None if after is None else after.rejoined_s,
    )


def _resolution(row: DecisionRow, progress: EvictionProgress | None) -> str | None:
    match row.state:
        case DecisionState.CONFIRMED:
            confirmed = None if progress is None else progress.confirmed
            return f"evicted: {confirmed or row.outcome}"
        case DecisionState.FAILED | DecisionState.ABANDONED:
            return f"{row.state}: {row.outcome}"
        case DecisionState.DECIDED | DecisionState.CARRIED_OUT | DecisionState.HELD:
            return None


def _story(row: DecisionRow, marks: Milestones, resolution: str | None) -> tuple[Transition, ...]:
    ended_s = row.ended_s if is_time(row.ended_s) else row.at_s
    moments = (
        (marks.evict_asked_s, str(State.EVICTING), "the evictor began"),
        (marks.left_quorum_s, "left_quorum", "a quorum without it is seen"),
        (marks.survivor_commit_s, "survivor_commit", "another group commits"),
        (marks.rejoined_s, "rejoined", "the group commits again"),
        (None if resolution is None else ended_s, str(State.RESOLVED), resolution or ""),
    )
    told = [Transition(at_s, to, why) for at_s, to, why in moments if is_time(at_s)]
    first = Transition(row.at_s, "asked", f"by {row.author}")
    return (first, *sorted(told, key=lambda line: line.at_s))
