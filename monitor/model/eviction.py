"""What the policy says about an incident: an `Eviction`, or a `Hold`. Pure.

An eviction is one value from its decision to its end: it is stored, journalled, shown, and resumed
after a takeover; `decide.escalation` moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar, Final

from lightkeeper.monitor.model.incident import Incident
from lightkeeper.monitor.model.names import GroupName, Host, IncidentId, RankName, ReplicaId
from lightkeeper.monitor.model.plain import Moment, readable, to_plain
from lightkeeper.monitor.model.run import Run, TrendPoint
from lightkeeper.monitor.model.work import WorkRow

# -- decisions ---------------------------------------------------------------------------------


KEEPER: Final = "lightkeeper"
"""The author of whatever no person asked for."""


class Guard(StrEnum):
    """What may hold an eviction back, in the order of checking."""

    WATCH_ONLY = "watch_only"  # there is no Lighthouse: nobody is evicted but by hand
    UNSURE = "unsure"  # the verdict cannot single out the culprit
    SPARED = "spared"  # the verdict itself says why an eviction would not fix it
    ALREADY_GONE = "already_gone"  # the group left by itself
    NOT_WORTH_IT = "not_worth_it"  # a straggler has cost less so far than an eviction would
    POLICY = "policy"  # the operator wants a person for this kind of fault, and no eviction
    CRASH_LOOP = "crash_loop"  # it stops nobody, and recurred after an eviction: a program bug
    TRACED = "traced"  # a debugger is attached to one of its ranks
    SELF_DOUBT = "self_doubt"  # the monitor is late, cut off, or cannot write
    LIGHTHOUSE_AWAY = "lighthouse_away"  # nobody sees the quorum, or could confirm without it
    BREAKER = "breaker"  # too much of the fleet is accused at once
    MIN_REPLICAS = "min_replicas"  # too few healthy groups would be left
    IN_FLIGHT = "in_flight"  # another eviction is still under way
    BUDGET = "budget"  # too many evictions within the hour
    GROUP_BUDGET = "group_budget"  # too many evictions of this very group within the hour
    COOL_DOWN = "cool_down"  # too soon after the last one
    PAUSED = "paused"  # a person pressed the big red switch
    OBSERVE = "observe"  # the monitor is set to change nothing


class Rung(StrEnum):
    """The steps of an eviction, in the order in which they are tried."""

    EVIDENCE = "evidence"  # the group's last state is saved first
    QUARANTINE = "quarantine"
    GATE = "gate"  # refuses its heartbeats and quorum requests
    LIGHTHOUSE_KILL = "lighthouse_kill"
    WORKER_EVICT = "worker_evict"
    SCHEDULER = "scheduler"  # removes the pod, or the job step
    PAGE = "page"  # nothing helped: a person is needed


@readable
@dataclass(frozen=True, slots=True)
class EndManner:
    """How the WorkerServers end the processes of a group."""

    way: str = "abort"
    """`park`: they train, so each comes to the end of its step; `abort`: they stand; empty: each
    WorkerServer looks."""
    gently_s: float = 0.0
    """Time for that, before SIGTERM; 0: SIGTERM at once."""
    grace_s: float = 1.0
    """Between SIGTERM and SIGKILL. Longer lets a checkpoint finish, shorter frees the fleet."""

    @property
    def more_s(self) -> float:
        """How much longer it takes than the shortest."""
        return self.gently_s + max(0.0, self.grace_s - 1.0)


_UNKNOWN: Final = Host("")


@dataclass(frozen=True, slots=True)
class Accused:
    """One rank process that may be signalled: this incarnation and no other."""

    rank: RankName
    incarnation: str
    url: str = ""
    host: Host = _UNKNOWN
    place: Mapping[str, str] = field(default_factory=dict)
    """Where its scheduler put it (`Identity.place`)."""


# -- eviction ----------------------------------------------------------------------------------


ASKING: Final = frozenset({Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER})
"""Rungs that ask somebody to remove the group: once recorded, it was not called off."""
_ORDER: Final = {rung: number for number, rung in enumerate(Rung)}


class RungResult(StrEnum):
    """How a rung ended, as far as is known."""

    WORKED = "worked"
    FAILED = "failed"
    SKIPPED = "skipped"  # it could not have worked, or was no longer needed
    UNKNOWN = "unknown"  # its answer proves nothing


@dataclass(frozen=True, slots=True)
class RungOutcome:
    """What one rung did, by its own answer; the quorum shows the effect."""

    rung: Rung
    started_s: Moment
    finished_s: Moment | None
    detail: str
    result: RungResult | None = None
    """None while it is under way."""
    deadline_s: float | None = None
    """Time limit in seconds."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Who was asked by a rung, and what they said."""

    rung: Rung
    whom: str
    """Rank or scheduler; empty where a rung asks only one party."""
    asked_s: float
    """Last."""
    said: str | None = None
    """Last; None: nothing so far."""
    waits: bool = True
    """True if the last request has no answer yet."""
    done: bool | None = None
    """True if they report it done; None: they do not say."""


class EvictionState(StrEnum):
    """How far an eviction got. The last three are ends."""

    DECIDED = "decided"  # recorded or about to be, and no evictor has it
    PREPARING = "preparing"  # the evictor has it: evidence is saved, nobody is asked yet
    ASKING = "asking"
    INTERRUPTED = "interrupted"  # its monitor is gone: the next one decides again or ends it
    CONFIRMED = "confirmed"  # the accused were seen gone, or out of sight with a dead heartbeat
    FAILED = "failed"
    ABANDONED = "abandoned"  # deliberately: it was no longer needed


@readable
@dataclass(frozen=True, slots=True)
class Eviction:
    """One decision to evict, and how far it got."""

    action: ClassVar = "evict"
    guard: ClassVar = None
    release: ClassVar = ""

    incident_id: IncidentId
    group: GroupName
    replica_id: ReplicaId | None
    """None when the group never joined a quorum: only its processes can be ended."""
    asked_s: Moment
    """When the evictor last got it; before that, when it was last decided."""
    rungs: tuple[RungOutcome, ...] = ()
    """In their order."""
    gone_s: Moment | None = None
    """When every rank process of the group was seen dead."""
    left_quorum_s: Moment | None = None
    """When a quorum without the replica id was seen."""
    failed: str | None = None
    """Why it was given up; None while it continues and when it succeeded."""
    unseen_s: Moment | None = None
    """When processes not seen dead were given up: their host is out of sight, the heartbeat of the
    replica id is dead, and it is in no quorum."""
    confirmed: str | None = None
    """What shows that the group is out, for a person; None before."""
    decided_s: Moment | None = None
    """When it was first decided, if not `asked_s`: with the incident, its key."""
    attempt: int = 1
    """More than 1: a monitor died, or lost the lease, in the middle of it."""
    ended_s: Moment | None = None
    """When the evictor was done with it, whatever the result."""
    state: EvictionState = EvictionState.ASKING
    reason: str = ""
    author: str = KEEPER
    epoch: int = 0
    """Epoch of the lease under which it was last taken up; 0: no lease."""
    quarantine: tuple[Host, ...] = ()
    """Hosts to which the group must not return; empty when the host is not to blame."""
    keep_out: tuple[GroupName, ...] = ()
    """Names under which it must not return, on any host: the same bug has recurred. Includes its
    launcher's name."""
    manner: EndManner = EndManner()
    lost: Mapping[Host, bool] = field(default_factory=dict)
    """Hosts with which ranks of it are out of sight: its schedulers end it. Whether such a host
    goes into quarantine if its scheduler holds it to be down."""
    accused: tuple[Accused, ...] = ()
    """Every rank of the group, as the deciding tick saw it, later the tick that handed it over."""
    stood: Mapping[RankName, int] = field(default_factory=dict)
    """Culprits that stood still at the handover, and how many phases they had changed."""
    taken_up: bool = True
    """True if an evictor ever had it: somebody may have been asked."""
    asks: tuple[Ask, ...] = ()
    """Requests of this attempt."""
    asking_s: float | None = None
    """When the clock of this attempt's rungs started."""
    workers_turn_s: float | None = None
    """Since when all WorkerServers are asked, not only the stuck ones."""
    shown: tuple[str, ...] = ()
    """What shows so far that it is out."""
    interrupted_s: float | None = None
    """When it was found with nobody carrying it out; None while somebody does."""
    outcome: str = ""
    """The result, once it has ended."""

    @property
    def out(self) -> bool:
        """True if the group is evicted: out of the quorum, and its processes are gone (or out of
        sight with a dead heartbeat). A group that never joined has no quorum to leave.
        """
        out_of_quorum = self.left_quorum_s is not None or self.replica_id is None
        return out_of_quorum and (self.gone_s is not None or self.unseen_s is not None)

    @property
    def at_s(self) -> float:
        """Time of the decision that it carries out."""
        return self.asked_s if self.decided_s is None else self.decided_s

    @property
    def key(self) -> tuple[IncidentId, float]:
        return self.incident_id, self.at_s

    @property
    def open(self) -> bool:
        """True if it has no end yet."""
        ends = (EvictionState.CONFIRMED, EvictionState.FAILED, EvictionState.ABANDONED)
        return self.state not in ends

    @property
    def under_way(self) -> bool:
        """True if the evictor is working on it."""
        return self.state in (EvictionState.PREPARING, EvictionState.ASKING)

    @property
    def by_hand(self) -> bool:
        """True if a person asked for it, and not an incident."""
        return self.author != KEEPER

    def rung(self, rung: Rung) -> RungOutcome | None:
        """What a rung did in this attempt."""
        since_s = self.asked_s if self.asking_s is None else self.asking_s
        outcomes = (
            outcome
            for outcome in self.rungs
            if outcome.rung is rung and outcome.started_s >= since_s
        )
        return next(outcomes, None)

    def with_rung(self, outcome: RungOutcome) -> Eviction:
        """A copy with the outcome of one rung."""
        others = (other for other in self.rungs if other.rung is not outcome.rung)
        return replace(self, rungs=tuple(sorted((*others, outcome), key=lambda o: _ORDER[o.rung])))

    def ask(self, rung: Rung, whom: str = "") -> Ask | None:
        """The request to somebody in this attempt and its answer, if there was one."""
        return next((ask for ask in self.asks if (ask.rung, ask.whom) == (rung, whom)), None)

    def asks_by(self, rung: Rung) -> list[Ask]:
        return [ask for ask in self.asks if ask.rung is rung]

    def with_ask(self, ask: Ask) -> Eviction:
        """A copy with this request or its answer."""
        others = (other for other in self.asks if (other.rung, other.whom) != (ask.rung, ask.whom))
        return replace(self, asks=(*others, ask))


@readable
@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing about this incident now."""

    author: ClassVar = KEEPER
    attempt: ClassVar = 1
    state: ClassVar = "held"
    ended_s: ClassVar = None
    outcome: ClassVar = ""

    incident_id: IncidentId
    guard: Guard
    reason: str
    release: str = ""
    """What would lift this guard."""
    would: Eviction | None = None
    """The eviction that only observe mode held back: all other guards passed."""
    at_s: float = 0.0
    """When it was written; not yet: 0."""
    epoch: int = 0
    """Epoch of the lease under which it was written; 0: no lease."""

    @property
    def action(self) -> str:
        return "hold" if self.would is None else "would_evict"


@readable
@dataclass(frozen=True, slots=True)
class Release:
    """End the exchange in which others wait for a group that is gone."""

    action: ClassVar = "release"
    author: ClassVar = KEEPER
    attempt: ClassVar = 1
    guard: ClassVar = None
    release: ClassVar = ""

    incident_id: IncidentId
    group: GroupName
    """The one that is gone."""
    quorum_id: int
    """The last one that it was in."""
    survivors: tuple[Accused, ...]
    """Ranks that wait for it: nobody accuses them."""
    addresses: tuple[str, ...]
    """Addresses of the job's hosts; not kept in the store."""
    reason: str
    at_s: float = 0.0
    """When it was written; not yet: 0."""
    epoch: int = 0
    """Epoch of the lease under which it was written; 0: no lease."""
    state: str = "carried_out"
    ended_s: float | None = None
    outcome: str = ""
    """What the ranks said."""


Ruling = Eviction | Hold
"""About an incident, by the guards."""
Decision = Ruling | Release
"""A line of the list of decisions that people read."""


_SHOWN: Final = (
    "incident_id", "group", "replica_id", "asked_s", "rungs", "gone_s", "left_quorum_s", "failed",
    "unseen_s", "confirmed", "decided_s", "attempt", "ended_s",
)  # fmt: skip


def eviction_to_json(eviction: Eviction) -> dict[str, Any]:
    """What `/v1` shows of it: the rest is in its decision."""
    plain = to_plain(eviction)
    return {name: plain[name] for name in _SHOWN}


def rulings(rows: Iterable[Decision]) -> list[Ruling]:
    """Those about the accused, not about others that wait for it."""
    return [row for row in rows if not isinstance(row, Release)]


def taken_up(rows: Iterable[Decision]) -> tuple[Eviction, ...]:
    """Evictions that an evictor had: somebody may have been asked."""
    return tuple(row for row in rows if isinstance(row, Eviction) and row.taken_up)


# -- quarantine --------------------------------------------------------------------------------


class Scope(StrEnum):
    """What is kept out."""

    HOST = "host"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Fence:
    """The writer: writes only while the lease's row names it in the same transaction."""

    holder: str
    epoch: int


@readable
@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """A host to which no group may return, or a replica group that may not return at all."""

    name: str
    """The host's, or the group's if `scope` says so."""
    reason: str
    author: str
    """`KEEPER`, or who asked for it, as they name themselves: shown, never trusted."""
    since_s: float
    until_s: float | None
    """None: until a person releases it."""
    incident_id: IncidentId | None
    scope: Scope = Scope.HOST
    kind: str | None = None
    """The incident's, if there is one."""
    findings: str = ""
    """What the verdict was based on, in one line."""
    note: str = ""
    """Why it lasts this long: the host's record; empty when there is nothing to say."""

    @property
    def host(self) -> Host:
        """The name, if the scope is a host."""
        return Host(self.name)


class Change(StrEnum):
    """What happened to a host or a group."""

    ADDED = "added"  # to the quarantine
    EXTENDED = "extended"
    SHORTENED = "shortened"
    RELEASED = "released"  # by a person
    EXPIRED = "expired"
    ACCUSED = "accused"  # an incident fired whose culprit ran there
    EVICTED = "evicted"  # eviction of the culprit's group was requested


@readable
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
    """The incident's."""
    wide: bool = False
    """True if the incident held up other replica groups than the culprit's."""
    testified: str = ""
    """What its machine testified about it, if that blamed the host."""

    @property
    def id(self) -> str:
        """Equal for the same event: an incident accuses or evicts a host only once."""
        once = self.change in (Change.ACCUSED, Change.EVICTED)
        what = self.incident_id if once else f"{self.at_s:.3f}"
        return f"{self.scope}/{self.name}/{self.change}/{what}"


# -- remembered --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything that an earlier monitor left."""

    incidents: tuple[Incident, ...] = ()
    """Newest first."""
    decisions: tuple[Decision, ...] = ()
    """Oldest first."""
    quarantine: tuple[QuarantineEntry, ...] = ()
    """Hosts and groups."""
    quarantine_events: tuple[QuarantineEvent, ...] = ()
    """Oldest first."""
    targets: tuple[Mapping[str, Any], ...] = ()
    notices: tuple[tuple[str, str, Mapping[str, Any]], ...] = ()
    """Sink, key, and what was sent to it."""
    runs: tuple[Run, ...] = ()
    """Newest first."""
    work: tuple[WorkRow, ...] = ()
    """Oldest first."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Name -> latest setting."""
    trend: tuple[tuple[str, TrendPoint], ...] = ()
    """Resolution and point of the job's past pace."""

    @property
    def evictions(self) -> tuple[Eviction, ...]:
        """Including those that no evictor had yet."""
        return tuple(row for row in self.decisions if isinstance(row, Eviction))
