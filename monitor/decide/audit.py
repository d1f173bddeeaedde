"""The audit: records of every incident, manual evictions as incidents, lines of the audit log.

Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from monitor.decide.accounts import AuditedIncident, FleetFacts, all_hosts
from monitor.decide.rules import Reload
from monitor.model.config import KeeperConfig
from monitor.model.eviction import (
    Change,
    DecisionRow,
    DecisionState,
    Eviction,
    QuarantineEvent,
    Remembered,
    Scope,
)
from monitor.model.incident import Incident, Milestones, State, Transition, newest_first
from monitor.model.names import MANUAL, GroupName, IncidentId, ReplicaId
from monitor.model.observation import Observation, Pause, Snapshot
from monitor.model.plain import from_plain, readable
from monitor.model.verdict import Confidence, Kind, Severity, Verdict
from monitor.store.audit_log import OURSELVES, Line, line

# -- records -----------------------------------------------------------------------------------

# What follows a manual eviction: who commits again, when the group is back.
#
# The tracker does the same for incidents, with its whole history; this uses one tick.


@readable
@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was seen since a person asked for an eviction."""

    survivors_s: float | None = None
    """First commit of another group seen after this one was gone: an earlier commit was made
    together with it."""
    rejoined_s: float | None = None
    """When it was seen to commit again, all its ranks being new processes, and alive."""

    @property
    def over(self) -> bool:
        """Whether nothing is left to watch for."""
        return self.survivors_s is not None and self.rejoined_s is not None


def followed(after: Aftermath, snapshot: Snapshot, eviction: Eviction) -> Aftermath:
    """`after`, updated by this tick."""
    moments = (eviction.gone_s, eviction.unseen_s, eviction.left_quorum_s)
    out_s = min((at_s for at_s in moments if at_s is not None), default=None)
    if out_s is None:
        return after
    others: list[Observation] = []
    own: list[Observation] = []
    for seen in snapshot.observations:
        (own if seen.identity.group == eviction.group else others).append(seen)
    if after.survivors_s is None:
        commits_s = [_commit_s(seen, snapshot.now_s) for seen in others]
        commits = [at_s for at_s in commits_s if at_s is not None and at_s > out_s]
        after = replace(after, survivors_s=min(commits, default=None))
    if after.rejoined_s is None:
        ran = {culprit.incarnation for culprit in eviction.accused}
        after = replace(after, rejoined_s=_rejoined_s(ran, own, snapshot.now_s))
    return after


def _rejoined_s(ran: Collection[str], own: list[Observation], now_s: float) -> float | None:
    if not own or len(own) < own[0].identity.world_size:
        return None
    if any(seen.identity.incarnation in ran for seen in own):
        return None
    commits = [_commit_s(seen, now_s) for seen in own]
    seen_s = [at_s for at_s in commits if at_s is not None]
    return max(seen_s) if len(seen_s) == len(commits) else None


def _commit_s(seen: Observation, now_s: float) -> float | None:
    """When a live rank last committed."""
    report = seen.report
    if report is None or report.step is None or not report.process.alive:
        return None
    age_s = report.step.last_commit_age_s
    return None if age_s is None or report.step.commits < 1 else now_s - age_s


FACTS: Final = "facts"
AFTERMATH: Final = "aftermath"
"""Parts of an incident's audit in the store."""


@dataclass(frozen=True, slots=True)
class IncidentAudit:
    """The records, by incident."""

    facts: Mapping[IncidentId, FleetFacts] = field(default_factory=dict)
    aftermaths: Mapping[IncidentId, Aftermath] = field(default_factory=dict)
    """Of manual evictions."""
    evictions: Mapping[IncidentId, Sequence[Eviction]] = field(default_factory=dict)
    """All of each incident; the view has only the latest."""
    config: KeeperConfig = field(default_factory=KeeperConfig)

    def case(
        self, incident: Incident, decisions: Sequence[DecisionRow], now_s: float
    ) -> AuditedIncident:
        """One incident with its records."""
        return AuditedIncident(
            incident=incident,
            now_s=now_s,
            decisions=tuple(sorted(decisions, key=lambda row: row.at_s)),
            evictions=tuple(
                sorted(self.evictions.get(incident.id, ()), key=lambda eviction: eviction.asked_s)
            ),
            facts=self.facts.get(incident.id),
            config=self.config,
        )


def audit_of(remembered: Remembered, config: KeeperConfig) -> IncidentAudit:
    """The records in the store; a part that cannot be read is left out."""
    facts: dict[IncidentId, FleetFacts] = {}
    aftermaths: dict[IncidentId, Aftermath] = {}
    for incident_id, part, body in remembered.audit:
        with contextlib.suppress(ValueError):
            if part == FACTS:
                facts[incident_id] = from_plain(FleetFacts, body)
            elif part == AFTERMATH:
                aftermaths[incident_id] = from_plain(Aftermath, body)
    return IncidentAudit(facts, aftermaths, by_incident(remembered.taken_up), config)


def by_incident(
    evictions: Iterable[Eviction],
) -> dict[IncidentId, tuple[Eviction, ...]]:
    by_id: dict[IncidentId, list[Eviction]] = {}
    for eviction in evictions:
        by_id.setdefault(eviction.incident_id, []).append(eviction)
    return {incident_id: tuple(same_incident) for incident_id, same_incident in by_id.items()}


# -- by hand -----------------------------------------------------------------------------------

KEPT: Final = 200
"""How many are shown: the newest."""


def with_by_hand(
    incidents: Sequence[Incident],
    decisions: Mapping[IncidentId, Sequence[DecisionRow]],
    audit: IncidentAudit,
) -> tuple[Incident, ...]:
    """Incidents and manual evictions, newest first."""
    ids = [incident_id for incident_id in decisions if incident_id.startswith(MANUAL)]
    if not ids:
        return tuple(incidents)
    candidates = [by_hand(incident_id, decisions[incident_id], audit) for incident_id in ids]
    newest = sorted(filter(None, candidates), key=newest_first)[:KEPT]
    return tuple(sorted((*incidents, *newest), key=newest_first))


def by_hand(
    incident_id: IncidentId, rows: Sequence[DecisionRow], audit: IncidentAudit
) -> Incident | None:
    """One manual eviction as an incident that accuses nobody, for its account; None where the store
    holds no decision with a group.

    Theory of operation. The tracker does not know these evictions, for no detector saw a fault.
    Their decision and the evictor's progress are stored like any other's. What cannot be found out
    later (who committed again, and when) is noted while it happens (`Aftermath`). The incident is
    built from these on demand.
    """
    decided = [row for row in rows if row.action == "evict"]
    if not decided or not isinstance(decided[-1].body.get("group"), str):
        return None
    row = decided[-1]
    evictions = audit.evictions.get(incident_id, ())
    progress = evictions[-1] if evictions else None
    group, facts = GroupName(row.body["group"]), audit.facts.get(incident_id)
    marks = _milestones(row, progress, audit.aftermaths.get(incident_id, Aftermath()))
    resolution = _resolution(row, progress)
    story = _story(row, marks, resolution)
    replica_id = row.body.get("replica_id")
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
        ),
        milestones=marks,
        story=story,
        last_seen_s=max(line.at_s for line in story),
        resolution=resolution,
        severity=Severity.INFO,
        hosts=() if facts is None else all_hosts(facts.hosts),
    )


def _milestones(row: DecisionRow, progress: Eviction | None, after: Aftermath) -> Milestones:
    return Milestones(
        first_seen_s=row.at_s,
        firing_s=row.at_s,
        evict_asked_s=None if progress is None else progress.asked_s,
        left_quorum_s=None if progress is None else progress.left_quorum_s,
        survivor_commit_s=after.survivors_s,
        rejoined_s=after.rejoined_s,
    )


def _resolution(row: DecisionRow, progress: Eviction | None) -> str | None:
    match row.state:
        case DecisionState.CONFIRMED:
            confirmed = None if progress is None else progress.confirmed
            return f"evicted: {confirmed or row.outcome}"
        case DecisionState.FAILED | DecisionState.ABANDONED:
            return f"{row.state}: {row.outcome}"
        case DecisionState.DECIDED | DecisionState.CARRIED_OUT | DecisionState.HELD:
            return None


def _story(row: DecisionRow, marks: Milestones, resolution: str | None) -> tuple[Transition, ...]:
    ended_s = row.at_s if row.ended_s is None else row.ended_s
    moments = (
        (marks.evict_asked_s, str(State.EVICTING), "the evictor began"),
        (marks.left_quorum_s, "left_quorum", "a quorum without it is seen"),
        (marks.survivor_commit_s, "survivor_commit", "another group commits"),
        (marks.rejoined_s, "rejoined", "the group commits again"),
        (None if resolution is None else ended_s, str(State.RESOLVED), resolution or ""),
    )
    lines = [Transition(at_s, to, why) for at_s, to, why in moments if at_s is not None]
    first = Transition(row.at_s, "asked", f"by {row.author}")
    return (first, *sorted(lines, key=lambda line: line.at_s))


# -- lines --------------------------------------------------------------------------------------

# Who did what, when and why. Every line has `at` (UTC), `at_s`, `event`, `by`, `what`, `why` and
# `incident` (null where there is none); some have more. Keys may be added.

_PROBLEMS_KEPT: Final = 20
"""Of a refused policy: the file may be a large one of another kind."""


def decision(row: DecisionRow, group: str) -> Iterator[Line]:
    """What was decided, and the outcome."""
    what, details = f"{row.action} {group}".strip(), {"guard": row.guard, "attempt": row.attempt}
    by, why, incident = row.author, row.reason, row.incident_id
    match row.state:
        case DecisionState.HELD | DecisionState.DECIDED:
            yield line(row.at_s, "decision", by, what, why, incident=incident, **details)
        case DecisionState.CARRIED_OUT:  # its rungs say so
            return
        case DecisionState.CONFIRMED | DecisionState.FAILED | DecisionState.ABANDONED:
            at_s = row.at_s if row.ended_s is None else row.ended_s
            what, why = f"{what} {row.state}", row.outcome or why
            yield line(at_s, "decision", by, what, why, incident=incident, **details)


def moves(before: Incident | None, after: Incident) -> Iterator[Line]:
    """States that an incident entered: firing and resolved."""
    before_steps = set() if before is None else {(step.at_s, step.to) for step in before.story}
    for step in after.story:
        if (step.at_s, step.to) not in before_steps and step.to in (State.FIRING, State.RESOLVED):
            what = f"{after.kind} {', '.join(after.groups) or 'nobody'} {step.to}"
            yield line(step.at_s, "incident", OURSELVES, what, step.reason, incident=after.id)


def rungs(before: Eviction | None, after: Eviction, now_s: float) -> Iterator[Line]:
    """Rungs that began or ended, and how the eviction ended."""
    write = partial(line, by=after.author, incident=after.incident_id)
    earlier = before or Eviction(after.incident_id, after.group, after.replica_id, after.asked_s)
    began = {(rung.rung, rung.started_s): rung for rung in earlier.rungs}
    for rung in after.rungs:
        old, over_s = began.get((rung.rung, rung.started_s)), rung.finished_s
        if old is None or (old.finished_s is None and over_s is not None):
            at_s, how = (rung.started_s, "began") if over_s is None else (over_s, "ended")
            what, result = f"{rung.rung} {after.group} {how}", rung.result and str(rung.result)
            yield write(at_s, "rung", what=what, why=rung.detail, result=result)
    if after.gone_s is not None and earlier.gone_s is None:
        what, why = f"{after.group} gone", "every accused process is gone"
        yield write(after.gone_s, "eviction", what=what, why=why)
    if after.left_quorum_s is not None and earlier.left_quorum_s is None:
        what, why = f"{after.group} left", "a quorum without it is seen"
        yield write(after.left_quorum_s, "eviction", what=what, why=why)
    if after.failed not in (None, earlier.failed):
        what, why = f"eviction of {after.group} failed", after.failed
        yield write(now_s, "eviction", what=what, why=why)


def quarantine(event: QuarantineEvent) -> Iterator[Line]:
    """A change of the list; accusations and evictions of a host are logged with the incident."""
    if event.change not in (Change.ACCUSED, Change.EVICTED):
        group = "group " if event.scope is Scope.GROUP else ""
        what = f"quarantine {group}{event.name} {event.change}"
        yield line(
            event.at_s, "quarantine", event.author, what, event.reason,
            incident=event.incident_id, until_s=event.until_s,
        )  # fmt: skip


def paused(before: Pause | None, after: Pause | None, now_s: float) -> Iterator[Line]:
    """Evictions were paused or resumed."""
    if before == after:
        return
    if after is not None:
        yield line(
            after.since_s, "pause", after.author, "paused", after.reason, until_s=after.until_s
        )
    elif before is not None:
        expired = before.until_s is not None and before.until_s <= now_s
        by, why = (OURSELVES, "its time is over") if expired else ("a person", "resumed")
        yield line(now_s, "pause", by, "resumed", why)


def reload(seen: Reload) -> Line:
    """The policy was reloaded, or the reload was refused."""
    file = "no file" if seen.path is None else str(seen.path)
    load: dict[str, Any] = {"file": file, "load": seen.number}
    if seen.problems:
        why = f"{len(seen.problems)} wrong: " + "; ".join(seen.problems[:_PROBLEMS_KEPT])
        return line(seen.at_s, "policy", seen.by, "reload refused", why, changed=None, **load)
    keys = ", ".join(seen.changed) or "nothing changed"
    return line(seen.at_s, "policy", seen.by, "reloaded", keys, changed=dict(seen.changed), **load)
