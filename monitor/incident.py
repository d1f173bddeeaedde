"""Incidents: verdicts that last, from pending to resolved, with their story; and their JSON.

How they move is in `tracker`.

pending --held for `hold_s`--> firing --eviction asked--> evicting --group left--> resolved
   |                              |                           |
   +--not seen for `clear_s`------+---------------------------+--> resolved
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from monitor.detectors.verdict import Confidence, Kind, Severity, Verdict
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.severity import severity_of


class IncidentError(ValueError):
    """Stored JSON that is no incident; the message names the key."""


class State(StrEnum):
    """Where an incident stands."""

    PENDING = "pending"
    FIRING = "firing"
    EVICTING = "evicting"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of an incident's story."""

    at_s: float
    to: str
    """A `State`, or the name of a milestone."""
    reason: str


@dataclass(frozen=True, slots=True)
class Milestones:
    """Unix times of what happened after the fault; None is 'not yet'."""

    first_seen_s: float
    firing_s: float | None = None
    evict_asked_s: float | None = None
    left_quorum_s: float | None = None
    """The evicted replica id is in no quorum any more."""
    survivor_commit_s: float | None = None
    """First commit of another group after the eviction was asked (after firing, if nobody
    evicted), the stall being over."""
    rejoined_s: float | None = None
    """First commit of the same group under a new replica id, all its ranks alive."""
    resumed_s: float | None = None
    """First commit of as many groups as before the fault."""


@dataclass(frozen=True, slots=True)
class Strength:
    """How many groups took part in the job's steps."""

    quorums: tuple[int, ...]
    """Ids of the quorums that ranks reported."""
    participants: int
    """The most that any of them reported."""


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault, from first sight to the end."""

    id: IncidentId
    kind: Kind
    fingerprint: str
    """Same kind, same culprits: same incident while it is open."""
    signature: str
    state: State
    culprits: tuple[RankName, ...]
    groups: tuple[GroupName, ...]
    replica_ids: tuple[ReplicaId, ...]
    """Replica ids of `groups` when it was first seen: what an eviction removes."""
    incarnations: tuple[str, ...]
    """Incarnations of the culprits when it was first seen: a restarted rank is another."""
    verdict: Verdict
    """The latest."""
    milestones: Milestones
    story: tuple[Transition, ...]
    last_seen_s: float
    resolution: str | None = None
    """Why it ended; None while open."""
    severity: Severity = Severity.WARNING
    """Of the latest verdict."""
    hosts: tuple[Host, ...] = ()
    """Of the culprits when they were first seen, sorted."""
    before: Strength | None = None
    """When it was first seen; None in a job without TorchFT."""
    lost_steps: int | None = None
    """Attempts of the other groups that did not commit, until the job was whole again; at least.
    None where nobody can tell."""

    @property
    def open(self) -> bool:
        """Whether it still asks for attention."""
        return self.state is not State.RESOLVED


def incident_to_json(incident: Incident) -> dict[str, Any]:
    """Plain JSON types; None stays None. The latest verdict's fields lie flat beside the rest."""
    verdict = incident.verdict
    return {
        "id": incident.id,
        "kind": incident.kind.value,
        "state": incident.state.value,
        "fingerprint": incident.fingerprint,
        "signature": incident.signature,
        "culprits": list(incident.culprits),
        "groups": list(incident.groups),
        "replica_ids": list(incident.replica_ids),
        "incarnations": list(incident.incarnations),
        "hosts": list(incident.hosts),
        "severity": incident.severity.value,
        "reason": verdict.reason,
        "confidence": verdict.confidence.value,
        "since_s": verdict.since_s,
        "victims": list(verdict.victims),
        "evidence": dict(verdict.evidence),
        "lost_s": verdict.lost_s,
        "milestones": asdict(incident.milestones),
        "story": [asdict(line) for line in incident.story],
        "last_seen_s": incident.last_seen_s,
        "resolution": incident.resolution,
        "before": None if incident.before is None else asdict(incident.before),
        "lost_steps": incident.lost_steps,
    }


def incident_from_json(data: Any) -> Incident:
    """Inverse of `incident_to_json`; unknown keys are ignored.

    Raises:
        IncidentError: a key is missing or ill-typed.
    """
    try:
        return _incident(data)
    except KeyError as exc:
        raise IncidentError(f"missing key {exc}") from exc
    except (TypeError, ValueError, AttributeError) as exc:
        raise IncidentError(f"no incident: {exc}") from exc


def _incident(data: Mapping[str, Any]) -> Incident:
    kind = Kind(data["kind"])
    culprits = tuple(RankName(str(rank)) for rank in data["culprits"])
    groups = tuple(GroupName(str(group)) for group in data["groups"])
    signature = str(data["signature"])
    resolution, told = data["resolution"], data.get("severity")  # stores before 0.2 have none
    lost_steps = data.get("lost_steps")
    verdict = Verdict(
        kind=kind,
        culprits=culprits,
        groups=groups,
        reason=str(data["reason"]),
        confidence=Confidence(data["confidence"]),
        since_s=float(data["since_s"]),
        victims=tuple(RankName(str(rank)) for rank in data["victims"]),
        evidence={str(key): str(value) for key, value in data["evidence"].items()},
        lost_s=float(data["lost_s"]),
        signature=signature,
    )
    return Incident(
        id=IncidentId(str(data["id"])),
        kind=kind,
        fingerprint=str(data["fingerprint"]),
        signature=signature,
        state=State(data["state"]),
        culprits=culprits,
        groups=groups,
        replica_ids=tuple(ReplicaId(str(replica)) for replica in data["replica_ids"]),
        incarnations=tuple(str(incarnation) for incarnation in data["incarnations"]),
        verdict=verdict,
        milestones=_milestones(data["milestones"]),
        story=tuple(
            Transition(float(line["at_s"]), str(line["to"]), str(line["reason"]))
            for line in data["story"]
        ),
        last_seen_s=float(data["last_seen_s"]),
        resolution=None if resolution is None else str(resolution),
        severity=severity_of(verdict) if told is None else Severity(told),
        hosts=tuple(Host(str(host)) for host in data.get("hosts", ())),  # none before 0.3
        before=_strength(data.get("before")),
        lost_steps=None if lost_steps is None else int(lost_steps),
    )


def _strength(data: Any) -> Strength | None:
    if data is None:
        return None
    return Strength(tuple(int(number) for number in data["quorums"]), int(data["participants"]))


def _milestones(data: Mapping[str, Any]) -> Milestones:
    known = {field.name: data.get(field.name) for field in fields(Milestones)}
    known["first_seen_s"] = data["first_seen_s"]
    return Milestones(
        **{name: None if value is None else float(value) for name, value in known.items()}  # type: ignore[arg-type]
    )
