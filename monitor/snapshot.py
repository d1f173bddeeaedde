"""What was seen in one tick, frozen: the only input of everything that decides.

Sickness is data: a rank that cannot be reached is an `Unreachable` beside the healthy ones,
a Lighthouse that does not answer is a `LighthouseAway`. Nothing here is ever half filled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from monitor.names import GroupName, IncidentId, RankName, ReplicaId
from worker_server.wire import FlightRecord, Identity, StateReport, StepLog


class Failure(StrEnum):
    """Why a target gave no report; each speaks for a different fault."""

    REFUSED = "refused"  # nobody listens: the sidecar is gone
    TIMEOUT = "timeout"  # host or network stuck, or the sidecar starved
    UNRESOLVED = "unresolved"  # no such host
    HTTP = "http"  # answered with a status other than 200
    GARBAGE = "garbage"  # answered something that is not our schema
    STRANGER = "stranger"  # answered in our schema, as another rank than the one registered


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A target that gave no usable answer within its deadline."""

    reason: Failure
    detail: str


@dataclass(frozen=True, slots=True)
class Observation:
    """One target in one tick."""

    identity: Identity
    """As registered: known even while the target is unreachable."""
    url: str
    outcome: StateReport | Unreachable
    round_trip_s: float

    @property
    def rank(self) -> RankName:
        """Name of the rank observed."""
        return self.identity.rank

    @property
    def report(self) -> StateReport | None:
        """The report, or None when the target was unreachable."""
        return self.outcome if isinstance(self.outcome, StateReport) else None


@dataclass(frozen=True, slots=True)
class Member:
    """A replica group in the Lighthouse's last quorum."""

    replica_id: ReplicaId
    step: int


@dataclass(frozen=True, slots=True)
class LighthouseView:
    """The Lighthouse's own page, parsed."""

    quorum_id: int
    members: tuple[Member, ...]
    heartbeat_ages_s: Mapping[ReplicaId, float]
    """Never pruned by the Lighthouse: holds every replica id it ever heard."""
    status: str
    """Its sentence about the next quorum."""


NO_LIGHTHOUSE: Final = "none configured"
"""Why there is no Lighthouse where the monitor was not told of one: that is no fault."""


@dataclass(frozen=True, slots=True)
class LighthouseAway:
    """No usable answer from the Lighthouse, or none configured."""

    reason: str

    @property
    def missed(self) -> bool:
        """Whether there should be a Lighthouse."""
        return self.reason != NO_LIGHTHOUSE


class Rung(StrEnum):
    """The steps of an eviction, in the order in which they are tried."""

    QUARANTINE = "quarantine"
    EVIDENCE = "evidence"  # what the group says last is saved first
    LIGHTHOUSE_KILL = "lighthouse_kill"
    WORKER_EVICT = "worker_evict"


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """What one rung did, as far as its own answer says; the quorum says what it achieved."""

    rung: Rung
    started_s: float
    finished_s: float | None
    detail: str


@dataclass(frozen=True, slots=True)
class EvictionProgress:
    """An eviction under way or ended, as the evictor sees it at the time of the snapshot."""

    incident_id: IncidentId
    group: GroupName
    replica_id: ReplicaId | None
    asked_s: float
    rungs: tuple[RungOutcome, ...]
    gone_s: float | None = None
    """When every rank process of the group was seen dead."""
    left_quorum_s: float | None = None
    """When a quorum without the replica id was seen."""
    failed: str | None = None
    """Why the evictor gave up; None while it works and when it succeeded."""
    decided_s: float | None = None
    """When it was decided, where that is not when it was asked last: with the incident the name of
    the decision that it carries out."""
    attempt: int = 1
    """More than 1: a monitor that died, or lost the lease, was in the middle of it."""
    ended_s: float | None = None
    """When the evictor was done with it, however that ended."""

    @property
    def of_s(self) -> float:
        """Time of the decision that it carries out."""
        return self.asked_s if self.decided_s is None else self.decided_s

    @property
    def interrupted(self) -> bool:
        """Of a stored one: whether whoever carried it out has left it without an end."""
        return self.ended_s is None and self.gone_s is None and self.failed is None


@dataclass(frozen=True, slots=True)
class Pause:
    """The big red switch, pressed: nobody is evicted but by hand."""

    reason: str
    author: str
    since_s: float
    until_s: float | None
    """None: until a person lets it go on."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the monitor measured of itself in one tick; None: not measured."""

    wall_s: float | None = None
    """The wall clock, which may jump, at the time of the snapshot."""
    starved: float | None = None
    """Largest share of the time since the last tick in which one of its threads was ready to run
    and got no core, 0 to 1."""
    disk: str | None = None
    """Why what it decides cannot be written down; None while it can."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that one tick saw."""

    now_s: float
    """Unix time of the tick, steady: it advances with the monotonic clock and never jumps."""
    tick: int
    lateness_s: float
    """How much later than planned this tick ran; large means that we are the sick one."""
    observations: tuple[Observation, ...]
    """One for each registered target, sorted by rank."""
    lighthouse: LighthouseView | LighthouseAway
    records: Mapping[RankName, FlightRecord | Unreachable] = field(default_factory=dict)
    """Flight records of the ranks that the previous tick asked for (tier 2)."""
    evictions: tuple[EvictionProgress, ...] = ()
    steps: Mapping[RankName, StepLog | Unreachable] = field(default_factory=dict)
    """Steps that ranks made before this monitor saw them, of those that the previous tick asked
    for; only rows that hold a pause (`habits.with_pauses`)."""
    vitals: Vitals = Vitals()
    pause: Pause | None = None
    """The big red switch; None while it is not pressed."""
