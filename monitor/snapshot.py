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
    UNASKED = "unasked"  # the sweep was over before its turn; it is among the next one's first
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
    address: str | None = None
    """Of its manager."""
    store_address: str | None = None
    world_size: int | None = None
    recovering: bool = False
    """Behind the others: it takes their weights."""


@dataclass(frozen=True, slots=True)
class LighthouseView:
    """The Lighthouse's own page, parsed."""

    quorum_id: int
    members: tuple[Member, ...]
    heartbeat_ages_s: Mapping[ReplicaId, float]
    """Never pruned by the Lighthouse: holds every replica id it ever heard."""
    status: str
    """Its sentence about the next quorum."""

    @property
    def ids(self) -> frozenset[ReplicaId]:
        """Replica ids of the last quorum."""
        return frozenset(member.replica_id for member in self.members)

    def anew(self, before: LighthouseView) -> bool:
        """Whether another process answers than gave `before`: its quorums are counted anew, or it
        has forgotten a heartbeat, which no Lighthouse does.
        """
        forgotten = before.heartbeat_ages_s.keys() - self.heartbeat_ages_s.keys()
        return self.quorum_id < before.quorum_id or bool(forgotten)

    def out(self, replica_id: ReplicaId, dead_s: float) -> bool | None:
        """Whether a replica id is in no quorum; None while that cannot be told.

        A Lighthouse that has formed no quorum yet, such as one that has started anew, shows it out
        when it hears no heartbeat of it that is younger than `dead_s`.
        """
        if self.members:
            return replica_id not in self.ids
        age_s = self.heartbeat_ages_s.get(replica_id)
        return True if self.heartbeat_ages_s and (age_s is None or age_s > dead_s) else None


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

    EVIDENCE = "evidence"  # what the group says last is saved first
    QUARANTINE = "quarantine"
    GATE = "gate"  # refuses its heartbeats and quorum requests
    LIGHTHOUSE_KILL = "lighthouse_kill"
    WORKER_EVICT = "worker_evict"
    SCHEDULER = "scheduler"  # removes the pod, or the job step
    PAGE = "page"  # nothing helped: a person is needed


class RungResult(StrEnum):
    """How a rung ended, as far as can be told."""

    WORKED = "worked"
    FAILED = "failed"
    SKIPPED = "skipped"  # it could not have worked, or was not needed any more
    UNKNOWN = "unknown"  # it gave no answer that proves anything


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """What one rung did, as far as its own answer says; the quorum says what it achieved."""

    rung: Rung
    started_s: float
    finished_s: float | None
    detail: str
    result: RungResult | None = None
    """None while it is under way."""
    deadline_s: float | None = None
    """Seconds that it is given."""


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
    unseen_s: float | None = None
    """When processes not seen dead were let go: their host is out of sight, the heartbeat of the
    replica id is dead, and it is in no quorum."""
    confirmed: str | None = None
    """What shows that the group is out, for a person; None before."""
    decided_s: float | None = None
    """When it was decided, where that is not when it was asked last: with the incident the name of
    the decision that it carries out."""
    attempt: int = 1
    """More than 1: a monitor that died, or lost the lease, was in the middle of it."""
    ended_s: float | None = None
    """When the evictor was done with it, however that ended."""

    @property
    def out(self) -> bool:
        """Whether the group is evicted: out of the quorum, and its processes are gone (or out of
        sight with a dead heartbeat). One that never joined a quorum has none to leave.
        """
        left = self.left_quorum_s is not None or self.replica_id is None
        return left and (self.gone_s is not None or self.unseen_s is not None)

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
    gate_up: bool = False
    """Whether a gate answers: it refuses an evicted replica id whatever the Lighthouse does."""
    pause: Pause | None = None
    """The big red switch; None while it is not pressed."""
