"""What is remembered, as frozen values, and an eviction as JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from monitor.incident import Incident
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import PastEviction
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


@dataclass(frozen=True, slots=True)
class Fence:
    """Who writes: only while the lease's row says so in the same transaction."""

    holder: str
    epoch: int


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A host to which no group may come back."""

    host: Host
    reason: str
    author: str
    """`lightkeeper`, or who asked for it."""
    since_s: float
    until_s: float | None
    """None: until a person releases it."""
    incident_id: IncidentId | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything that an earlier monitor left."""

    incidents: tuple[Incident, ...] = ()
    """Newest first."""
    decisions: tuple[DecisionRow, ...] = ()
    evictions: tuple[EvictionProgress, ...] = ()
    quarantine: tuple[QuarantineEntry, ...] = ()
    targets: tuple[Mapping[str, Any], ...] = ()
    notices: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """Sink, key, and what it was told."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Name -> what was last said."""

    def would(self) -> tuple[PastEviction, ...]:
        """Evictions that observe mode had held back, oldest first."""
        return tuple(
            PastEviction(row.incident_id, GroupName(str(row.body["group"])), row.at_s)
            for row in self.decisions
            if row.action == "would_evict" and "group" in row.body
        )


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
