"""What a verdict makes of an incident: a new one, or another sight of the same fault. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace

from monitor.detectors.verdict import Verdict
from monitor.history import History
from monitor.incident import Incident, Milestones, State, Transition
from monitor.names import IncidentId, RankName
from monitor.severity import severity_of
from monitor.tracker.resuming import strength
from monitor.tracker.story import noted


def opened(history: History, verdict: Verdict, taken: Container[IncidentId]) -> Incident:
    """A pending incident under an id that is not taken."""
    now_s = history.now_s
    subject = (*verdict.culprits, *verdict.groups, "job")[0]
    name = f"{verdict.kind.value}-{subject}-{int(now_s * 1000)}"
    number = 1
    while IncidentId(name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    replica_ids = (history.replica_id(group) for group in verdict.groups)
    return Incident(
        id=IncidentId(name if number == 1 else f"{name}-{number}"),
        kind=verdict.kind,
        fingerprint=_fingerprint(verdict),
        signature=verdict.signature,
        state=State.PENDING,
        culprits=verdict.culprits,
        groups=verdict.groups,
        replica_ids=tuple(replica for replica in replica_ids if replica is not None),
        incarnations=_incarnations(history, verdict.culprits),
        verdict=verdict,
        milestones=Milestones(first_seen_s=now_s),
        story=(Transition(now_s, State.PENDING.value, verdict.reason),),
        last_seen_s=now_s,
        severity=severity_of(verdict, history.config.eviction_cost_s),
        hosts=history.hosts(verdict.culprits),
        before=strength(history),
    )


def seen_again(history: History, incident: Incident, verdict: Verdict) -> Incident:
    """The incident with what is seen now; processes of other culprits are other ones."""
    same = incident.culprits == verdict.culprits
    return replace(
        incident,
        culprits=verdict.culprits,
        groups=verdict.groups,
        fingerprint=_fingerprint(verdict),
        signature=verdict.signature,
        incarnations=incident.incarnations if same else _incarnations(history, verdict.culprits),
        hosts=incident.hosts if same else history.hosts(verdict.culprits),
        verdict=replace(verdict, victims=_victims(incident, verdict)),
        last_seen_s=history.now_s,
    )


def weighed(incident: Incident, verdict: Verdict, now_s: float, eviction_cost_s: float) -> Incident:
    """The incident with the severity of what is seen now; the story tells when it changed."""
    severity = severity_of(verdict, eviction_cost_s)
    if severity is incident.severity:
        return incident
    incident = replace(incident, severity=severity)
    if incident.milestones.firing_s is None:
        return incident
    return noted(incident, now_s, "severity", f"now {severity.value}: {verdict.reason}")


def _victims(incident: Incident, verdict: Verdict) -> tuple[RankName, ...]:
    """All who ever waited: a victim that TorchFT's timeout has ended since waits no more."""
    everyone = {*incident.verdict.victims, *verdict.victims}
    return tuple(sorted(everyone - set(verdict.culprits)))


def _fingerprint(verdict: Verdict) -> str:
    return f"{verdict.kind.value}:{','.join(verdict.culprits or verdict.groups)}"


def _incarnations(history: History, culprits: Iterable[str]) -> tuple[str, ...]:
    return tuple(t.identity.incarnation for t in history.tracks.values() if t.rank in culprits)
