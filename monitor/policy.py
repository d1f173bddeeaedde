"""Policy: what to do about a firing incident. Pure; every "no" carries its reason.

The guards, in the order in which they are asked, are in `Guard`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.names import GroupName, Host, IncidentId, ReplicaId


class Guard(StrEnum):
    """What may hold an eviction back."""

    OBSERVE = "observe"  # the monitor was told to change nothing
    UNSURE = "unsure"  # the verdict cannot tell the culprit
    SELF_DOUBT = "self_doubt"  # the monitor is late or cut off from too many targets
    LIGHTHOUSE_AWAY = "lighthouse_away"  # cannot see the quorum, so cannot confirm either
    BREAKER = "breaker"  # too much of the fleet is accused at once
    MIN_REPLICAS = "min_replicas"  # too few healthy groups would be left
    IN_FLIGHT = "in_flight"  # another eviction is still under way
    BUDGET = "budget"  # too many evictions within the hour
    COOL_DOWN = "cool_down"  # too soon after the last one
    CRASH_LOOP = "crash_loop"  # the same signature again after an eviction: a program bug
    NOT_WORTH_IT = "not_worth_it"  # a straggler has cost less so far than an eviction would
    ALREADY_GONE = "already_gone"  # the group left by itself


@dataclass(frozen=True, slots=True)
class Evict:
    """Put this replica group out."""

    incident_id: IncidentId
    group: GroupName
    replica_id: ReplicaId | None
    """None when the group never joined a quorum: only its processes can be ended."""
    quarantine: tuple[Host, ...]
    """Hosts to which the group must not come back; empty when the host is not to blame."""
    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing about this incident now."""

    incident_id: IncidentId
    guard: Guard
    reason: str


Decision = Evict | Hold
