"""What decisions are made on, one tick."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.detectors.verdict import Kind
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy.lessons import Lesson
from monitor.snapshot import Pause


@dataclass(frozen=True, slots=True)
class GroupView:
    """One replica group, as far as a decision needs it."""

    group: GroupName
    healthy: bool
    """All its ranks are there and alive, contribute or wait to be let in, and nobody accuses it."""
    alive: tuple[RankName, ...]
    """Ranks whose processes were seen alive in this tick."""
    replica_id: ReplicaId | None = None
    in_quorum: bool | None = None
    heartbeat_age_s: float | None = None
    dead_for_s: float | None = None
    """Since its first dead process died; None when none is dead."""
    hosts: Mapping[RankName, Host] = field(default_factory=dict)
    names: tuple[GroupName, ...] = ()
    """Its own, and its launcher's where that is another."""
    traced: str = ""
    """Who traces one of its ranks now, in words; empty: nobody does."""
    disk_wait: frozenset[RankName] = frozenset()
    """Ranks whose main thread waits in the kernel for a disk or a file server (state D)."""


@dataclass(frozen=True, slots=True)
class PastEviction:
    """An eviction asked for, whatever came of it."""

    incident_id: IncidentId
    group: GroupName
    asked_s: float
    """Last: one that was interrupted is asked again, and is the same eviction."""
    decided_s: float = 0.0
    """With the incident the name of its decision."""


@dataclass(frozen=True, slots=True)
class PastFault:
    """A fault that is over, as far as it speaks of its host."""

    group: GroupName
    kind: Kind
    signature: str
    """Empty: the program's state was not known."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What decisions are made on, one tick."""

    now_s: float
    groups: Mapping[GroupName, GroupView]
    accused: frozenset[GroupName]
    """Groups with a firing or evicting incident."""
    doubt: str | None
    """Why the monitor does not trust itself in this tick (`self_health`); None while it does."""
    lighthouse_away: str | None
    """Why the Lighthouse cannot be seen; None while it can."""
    without_lighthouse: Mapping[IncidentId, str | None] = field(default_factory=dict)
    """Of open incidents, while it cannot be seen: what is missing to judge and confirm an eviction
    without it. None: nothing is."""
    past: tuple[PastEviction, ...] = ()
    cut_short: frozenset[IncidentId] = frozenset()
    """Incidents whose eviction was interrupted: to ask again is the same eviction."""
    in_flight: tuple[GroupName, ...] = ()
    would: tuple[PastEviction, ...] = ()
    """Evictions that observe mode held back: they count where another would be held back."""
    lessons: tuple[Lesson, ...] = ()
    """Of the evictions that ended, oldest first."""
    faults: Mapping[Host, tuple[PastFault, ...]] = field(default_factory=dict)
    """Host -> earlier faults of ranks on it that are over, within the memory of the incidents."""
    waited_for: frozenset[GroupName] = frozenset()
    """Accused groups for which a rank of a group that nobody accuses is seen standing still."""
    dead_hosts: frozenset[Host] = frozenset()
    """Hosts on which no rank lives any more."""
    min_replicas_told: int | None = None
    """The Lighthouse's own flag, as far as its page has told it."""
    pause: Pause | None = None
    """The big red switch; None while it is not pressed."""
