"""What is remembered, as frozen values, and their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final

from monitor.incident import Incident
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.snapshot import EvictionProgress, Rung, RungOutcome, RungResult


class DecisionState(StrEnum):
    """How far a decision came. The last four are ends."""

    DECIDED = "decided"  # written, and nobody asked yet
    CARRIED_OUT = "carried_out"  # the evictor has it: somebody may have been asked
    CONFIRMED = "confirmed"  # the accused were seen gone
    FAILED = "failed"
    ABANDONED = "abandoned"  # knowingly: after a restart it was not called for any more
    HELD = "held"  # a hold is carried out by doing nothing


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """A decision as it is remembered; with its eviction it shares incident and time."""

    incident_id: IncidentId
    at_s: float
    action: str
    """`evict`, `hold`, or `would_evict`: held back by observe mode alone."""
    guard: str | None
    reason: str
    state: DecisionState = DecisionState.HELD
    author: str = "lightkeeper"
    epoch: int = 0
    """Of the lease under which it was last taken up; 0: there was none."""
    attempt: int = 1
    """More than 1: a monitor that died, or lost the lease, was in the middle of it."""
    ended_s: float | None = None
    outcome: str = ""
    """What came of it, once it has ended."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Of an eviction: group, replica id, hosts to quarantine, and the accused incarnations; of a
    hold what would release it; of one by observe mode both, and the rungs it would have climbed."""

    @property
    def open(self) -> bool:
        """Whether it has no end yet."""
        return self.state in (DecisionState.DECIDED, DecisionState.CARRIED_OUT)

    @property
    def accused(self) -> Mapping[RankName, str]:
        """Rank -> incarnation that may be ended; empty when an earlier version wrote it."""
        return {RankName(rank): str(one) for rank, one in self.body.get("accused", {}).items()}


KEEPER: Final = "lightkeeper"
"""The author of what no person asked for."""


class Scope(StrEnum):
    """What is held out."""

    HOST = "host"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Fence:
    """Who writes: only while the lease's row says so in the same transaction."""

    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A host to which no group may come back, or a replica group that may not come back at all."""

    name: str
    """Of the host, or of the group where `scope` says so."""
    reason: str
    author: str
    """`KEEPER`, or who asked for it, by their own account: shown, and trusted for nothing."""
    since_s: float
    until_s: float | None
    """None: until a person releases it."""
    incident_id: IncidentId | None
    scope: Scope = Scope.HOST
    kind: str | None = None
    """Of the incident, where there is one."""
    findings: str = ""
    """What the verdict rested on, in one line."""
    note: str = ""
    """Why for so long: the host's record; empty when there is nothing to say."""

    @property
    def host(self) -> Host:
        """The name, of those whose scope is a host."""
        return Host(self.name)


class Change(StrEnum):
    """What happened to a host or a group."""

    ADDED = "added"  # to the quarantine
    EXTENDED = "extended"
    SHORTENED = "shortened"
    RELEASED = "released"  # by a person
    EXPIRED = "expired"
    ACCUSED = "accused"  # an incident fired whose culprit ran there
    EVICTED = "evicted"  # the culprit's group was asked out


@dataclass(frozen=True, slots=True)
class QuarantineEvent:
    """One line of the history of a host or a group."""

    at_s: float
    change: Change
    name: str
    reason: str
    author: str = KEEPER
    scope: Scope = Scope.HOST
    until_s: float | None = None
    incident_id: IncidentId | None = None
    kind: str | None = None
    findings: str = ""
    signature: str = ""
    """Of the incident."""
    wide: bool = False
    """Whether the incident held up other replica groups than the culprit's."""

    @property
    def id(self) -> str:
        """The same for the same thing: what an incident says of a host is told once."""
        once = self.change in (Change.ACCUSED, Change.EVICTED)
        told = self.incident_id if once else f"{self.at_s:.3f}"
        return f"{self.scope}/{self.name}/{self.change}/{told}"


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything that an earlier monitor left."""

    incidents: tuple[Incident, ...] = ()
    """Newest first."""
    decisions: tuple[DecisionRow, ...] = ()
    evictions: tuple[EvictionProgress, ...] = ()
    quarantine: tuple[QuarantineEntry, ...] = ()
    """Hosts and groups."""
    quarantine_events: tuple[QuarantineEvent, ...] = ()
    """Oldest first."""
    targets: tuple[Mapping[str, Any], ...] = ()
    notices: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """Sink, key, and what it was told."""
    audit: tuple[tuple[IncidentId, str, Mapping[str, Any]], ...] = ()
    """Incident, part (`keeper.auditor`), and what was noted."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Name -> what was last said."""


def eviction_to_json(progress: EvictionProgress) -> dict[str, Any]:
    """An eviction in plain JSON types, for the store and the API."""
    return {
        "incident_id": progress.incident_id,
        "group": progress.group,
        "replica_id": progress.replica_id,
        "asked_s": progress.asked_s,
        "decided_s": progress.decided_s,
        "attempt": progress.attempt,
        "ended_s": progress.ended_s,
        "rungs": [
            {
                "rung": str(rung.rung),
                "started_s": rung.started_s,
                "finished_s": rung.finished_s,
                "detail": rung.detail,
                "result": None if rung.result is None else str(rung.result),
                "deadline_s": rung.deadline_s,
            }
            for rung in progress.rungs
        ],
        "gone_s": progress.gone_s,
        "left_quorum_s": progress.left_quorum_s,
        "failed": progress.failed,
        "unseen_s": progress.unseen_s,
        "confirmed": progress.confirmed,
    }


def eviction_from_json(body: Mapping[str, Any]) -> EvictionProgress:
    """Inverse of `eviction_to_json`."""
    replica_id = body["replica_id"]
    return EvictionProgress(
        incident_id=IncidentId(body["incident_id"]),
        group=GroupName(body["group"]),
        replica_id=None if replica_id is None else ReplicaId(replica_id),
        asked_s=body["asked_s"],
        decided_s=body.get("decided_s"),
        attempt=body.get("attempt", 1),
        ended_s=body.get("ended_s"),
        rungs=tuple(
            RungOutcome(
                rung=Rung(rung["rung"]),
                started_s=rung["started_s"],
                finished_s=rung["finished_s"],
                detail=rung["detail"],
                result=None if rung.get("result") is None else RungResult(rung["result"]),
                deadline_s=rung.get("deadline_s"),
            )
            for rung in body["rungs"]
        ),
        gone_s=body["gone_s"],
        left_quorum_s=body["left_quorum_s"],
        failed=body["failed"],
        unseen_s=body.get("unseen_s"),
        confirmed=body.get("confirmed"),
    )


def entry_from_row(body: Mapping[str, Any]) -> QuarantineEntry:
    """From its fields as JSON; unknown keys are ignored.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    known = {one.name: body[one.name] for one in fields(QuarantineEntry) if one.name in body}
    return QuarantineEntry(**{**known, "scope": Scope(body["scope"])})


def event_from_row(body: Mapping[str, Any]) -> QuarantineEvent:
    """From its fields as JSON; unknown keys are ignored.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    known = {one.name: body[one.name] for one in fields(QuarantineEvent) if one.name in body}
    scope, change = Scope(body["scope"]), Change(body["change"])
    return QuarantineEvent(**{**known, "scope": scope, "change": change})
