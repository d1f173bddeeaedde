"""What policy says about an incident: put a group out, or not now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.names import GroupName, Host, IncidentId, ReplicaId


class Guard(StrEnum):
    """What may hold an eviction back, in the order in which it is asked."""

    UNSURE = "unsure"  # the verdict cannot tell the culprit
    SPARED = "spared"  # the verdict itself says why an eviction would not mend it
    ALREADY_GONE = "already_gone"  # the group left by itself
    NOT_WORTH_IT = "not_worth_it"  # a straggler has cost less so far than an eviction would
    POLICY = "policy"  # the operator wants a person for this kind of fault, and no eviction
    CRASH_LOOP = "crash_loop"  # it stops nobody, and came again after an eviction: a program bug
    TRACED = "traced"  # somebody looks at one of its ranks with a debugger
    SELF_DOUBT = "self_doubt"  # the monitor is late, cut off, or cannot write
    LIGHTHOUSE_AWAY = "lighthouse_away"  # nobody sees the quorum, or could confirm without it
    BREAKER = "breaker"  # too much of the fleet is accused at once
    MIN_REPLICAS = "min_replicas"  # too few healthy groups would be left
    IN_FLIGHT = "in_flight"  # another eviction is still under way
    BUDGET = "budget"  # too many evictions within the hour
    GROUP_BUDGET = "group_budget"  # too many evictions of this very group within the hour
    COOL_DOWN = "cool_down"  # too soon after the last one
    MAINTENANCE = "maintenance"  # the policy names this time as one of maintenance
    PAUSED = "paused"  # a person pressed the big red switch
    OBSERVE = "observe"  # the monitor was told to change nothing


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
    keep_out: tuple[GroupName, ...] = ()
    """Names under which it must not come back, whatever its host: the same bug has come again.
    Its launcher's name is among them."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing about this incident now."""

    incident_id: IncidentId
    guard: Guard
    reason: str
    release: str = ""
    """What would lift this guard."""
    would: Evict | None = None
    """The eviction that only observe mode held back: nothing else stood against it."""


Decision = Evict | Hold
