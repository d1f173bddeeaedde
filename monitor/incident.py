"""Incidents: verdicts that last, from pending to resolved, with their story.

pending --held for `hold_s`--> firing --eviction asked--> evicting --group left--> resolved
   |                              |                           |
   +--not seen for `clear_s`------+---------------------------+--> resolved
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from monitor.detectors.verdict import Kind, Verdict
from monitor.names import GroupName, IncidentId, RankName, ReplicaId


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

    @property
    def open(self) -> bool:
        """Whether it still asks for attention."""
        return self.state is not State.RESOLVED
