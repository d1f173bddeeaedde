"""What was seen in one tick, frozen: the only input of everything that decides.

Failures are data: a rank that cannot be reached is an `Unreachable` beside the healthy ones, a
Lighthouse that does not answer is a `LighthouseAway`. Nothing here is ever half filled.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from operator import is_
from typing import Any, Final

from msgspec import Struct

from lightkeeper.monitor.model.eviction import Eviction
from lightkeeper.monitor.model.names import Host, RankName, ReplicaId, group_of_replica
from lightkeeper.monitor.model.plain import readable
from lightkeeper.monitor.model.run import Run
from lightkeeper.worker_server.wire import (
    LONG_PHASES,
    WAITING_PHASE,
    Ending,
    FlightRecord,
    Identity,
    Process,
    StateReport,
    StepLog,
    StepState,
    Testimony,
)

NO_ANSWER: Final = "no full answer within "
"""Said of a peer that took the connection: its port accepts."""


class Failure(StrEnum):
    """Why a target gave no report; each points to a different fault."""

    REFUSED = "refused"  # nobody listens: the sidecar is gone
    TIMEOUT = "timeout"  # host or network stuck, or the sidecar starved
    UNRESOLVED = "unresolved"  # no such host
    HTTP = "http"  # answered with a status other than 200
    GARBAGE = "garbage"  # answered something that is not our schema
    UNASKED = "unasked"  # the sweep ended before its turn; it is among the first of the next
    STRANGER = "stranger"  # answered in our schema, as another rank than the one registered
    RENAMED = "renamed"  # the registered process answered, by a name that it has not registered yet


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A target that gave no usable answer within its deadline."""

    reason: Failure
    detail: str


class Observation(Struct, frozen=True, gc=False):
    identity: Identity
    """As registered: known even while the target is unreachable."""
    url: str
    outcome: StateReport | Unreachable
    round_trip_s: float
    bringer: str = ""
    """Who registered it, by address; empty: not known."""
    trained_as: ReplicaId | None = None
    """Its replica id, if it trained for an earlier monitor, and this one has not heard it, though
    it has heard others of that time; its work was not done by what is known."""

    @property
    def rank(self) -> RankName:
        return self.identity.rank

    @property
    def report(self) -> StateReport | None:
        """The report, or None when the target was unreachable."""
        return self.outcome if isinstance(self.outcome, StateReport) else None

    @property
    def step(self) -> StepState | None:
        """What the rank reports about itself, if anything."""
        return self.outcome.step if isinstance(self.outcome, StateReport) else None


def stopped(process: Process, ending: Ending | None) -> bool:
    """True if SIGTERM or Ctrl-C ended it, and no error of its own before; the sender is unknown."""
    raised = "" if ending is None else ending.raised
    by_signal = process.exit_signal in ("SIGTERM", "SIGINT")
    return (by_signal and not raised) or raised == "KeyboardInterrupt"


@dataclass(frozen=True, slots=True)
class Member:
    """A replica group in the Lighthouse's last quorum."""

    replica_id: ReplicaId
    step: int
    address: str | None = None
    """Its manager's."""
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
    """Its text about the next quorum."""
    expired: frozenset[ReplicaId] = frozenset()
    """Ids whose heartbeat is older than this Lighthouse's own timeout, by its page."""
    requests: int | None = None
    """How many groups' requests for the next quorum it has; None: its page does not say."""

    @property
    def ids(self) -> frozenset[ReplicaId]:
        """Replica ids of the last quorum."""
        return frozenset(member.replica_id for member in self.members)

    def anew(self, before: LighthouseView) -> bool:
        """True if another process answers than the one that gave `before`: its quorum count
        restarted, or it has forgotten a heartbeat, which no Lighthouse does.
        """
        forgotten = before.heartbeat_ages_s.keys() - self.heartbeat_ages_s.keys()
        return self.quorum_id < before.quorum_id or bool(forgotten)

    def out(self, replica_id: ReplicaId, dead_s: float) -> bool | None:
        """True if a replica id is in no quorum; None while that is unknown.

        A Lighthouse that has formed no quorum yet, such as one just restarted, shows it out when
        the id has no heartbeat younger than `dead_s`.
        """
        if self.members:
            return replica_id not in self.ids
        age_s = self.heartbeat_ages_s.get(replica_id)
        return True if self.heartbeat_ages_s and (age_s is None or age_s > dead_s) else None


NO_LIGHTHOUSE: Final = "none configured"
"""Reason when the monitor has no Lighthouse configured: that is no fault."""


@dataclass(frozen=True, slots=True)
class LighthouseAway:
    """No usable answer from the Lighthouse, or none configured."""

    reason: str

    @property
    def missed(self) -> bool:
        """True if there should be a Lighthouse."""
        return self.reason != NO_LIGHTHOUSE


@readable
@dataclass(frozen=True, slots=True)
class Pause:
    """The big red switch, pressed: only a person can evict."""

    reason: str
    author: str
    since_s: float
    until_s: float | None
    """None: until a person lifts it."""
    ended_s: float | None = None
    ended_by: str = ""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the monitor measured about itself in one tick; None: not measured."""

    wall_s: float | None = None
    """The wall clock, which may jump, at the time of the snapshot."""
    starved: float | None = None
    """Largest share of the last tick, or second, in which one of its threads was runnable and
    got no core, 0 to 1."""
    disk: str | None = None
    """Why its decisions cannot be written down; None while they can."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that one tick saw."""

    now_s: float
    """Unix time of the tick, steady: it advances with the monotonic clock and never jumps."""
    tick: int
    lateness_s: float
    """How much later than planned this tick ran; large: the monitor is the sick one."""
    observations: tuple[Observation, ...]
    """One for each registered target, sorted by rank."""
    lighthouse: LighthouseView | LighthouseAway
    records: Mapping[RankName, FlightRecord | Unreachable] = field(default_factory=dict)
    """Flight records of the ranks that the previous tick asked for (tier 2)."""
    records_asked_s: Mapping[RankName, float] = field(default_factory=dict)
    """Unix time at which those were requested that came later than in their tick."""
    evictions: tuple[Eviction, ...] = ()
    steps: Mapping[RankName, StepLog | Unreachable] = field(default_factory=dict)
    """Steps from before this monitor saw the ranks, for those that the previous tick asked for;
    only rows that hold a pause (`habits.with_pauses`)."""
    vitals: Vitals = Vitals()
    gate_up: bool = False
    """True if a gate answers: it refuses an evicted replica id whatever the Lighthouse does."""
    schedulers: bool = False
    """True if there are any, which can end a group that is out of sight."""
    gate_began_s: float | None = None
    """Unix time at which the gate began to serve, by the last look; None: not known."""
    run: Run | None = None
    """That of the ranks; the last one while there are none."""
    pause: Pause | None = None
    """None while the big red switch is not pressed."""
    cluster: Mapping[Host, tuple[Testimony, ...]] = field(default_factory=dict)
    """What schedulers, clouds and Prometheus say of hosts, by the names that ranks report."""

    ends: Mapping[RankName, Testimony] = field(default_factory=dict)
    """What schedulers say of the end of ranks that left or fell silent."""

    @property
    def alone(self) -> bool:
        """True if there is neither Lighthouse nor gate: nobody is evicted but by hand."""
        away = self.lighthouse
        return isinstance(away, LighthouseAway) and not away.missed and not self.gate_up

    @cached_property
    def machines(self) -> Mapping[Host, tuple[Testimony, ...]]:
        """What is said against each host, by its own witnesses and by the cluster; each once."""
        said: dict[Host, dict[tuple[str, str, str], Testimony]] = {
            host: {(row.witness, row.code, row.text): row for row in rows}
            for host, rows in self.cluster.items()
        }
        for observation in self.observations:
            for row in () if observation.report is None else observation.report.machine:
                of_host = said.setdefault(observation.identity.host, {})
                of_host[row.witness, row.code, row.text] = row
        return {host: tuple(rows.values()) for host, rows in said.items()}

    @cached_property
    def by_rank(self) -> Mapping[RankName, Observation]:
        """The observations by name, in the same order."""
        return {observation.identity.rank: observation for observation in self.observations}

    @cached_property
    def reports(self) -> Mapping[RankName, StateReport]:
        """Reports of the ranks that answered, by name, in that order."""
        return {
            observation.identity.rank: observation.outcome
            for observation in self.observations
            if isinstance(observation.outcome, StateReport)
        }


def missing_ranks(
    before: Mapping[RankName, object], now: Mapping[RankName, object]
) -> Set[RankName]:
    """Ranks that are known and not here: in most ticks none, and then both have the same order."""
    if len(before) == len(now) and all(map(is_, before, now)):
        return frozenset()
    return before.keys() - now.keys()


PAUSE_S: Final = 1.0
"""Shorter stretches in a phase are not reported; half the smallest useful floor."""


def with_pauses(log: StepLog) -> StepLog:
    """The log without the rows in which nothing lasted: of thousands, a few remain."""
    rows = (
        row
        for row in log.rows
        if any(
            name in LONG_PHASES or (name != WAITING_PHASE and spent_s >= PAUSE_S)
            for name, spent_s in row.seconds.items()
        )
    )
    return replace(log, rows=tuple(rows))


# -- The Lighthouse over time: how old its last view is, its restarts, its quorums. Pure ----------
# Theory of operation. A Lighthouse that restarts counts its quorums from 0 and has no heartbeats;
# a running one never forgets a heartbeat. So an id that goes back, or a missing heartbeat, means
# another process. Counters start with the monitor, as Prometheus expects.


@dataclass(frozen=True, slots=True)
class LighthouseRecord:
    """What is known of a Lighthouse beyond its current page."""

    view: LighthouseView | None = None
    """The last one, however old."""
    view_s: float | None = None
    """Unix time of that view."""
    away: LighthouseAway | None = None
    """Why it does not answer now; None while it does."""
    away_since_s: float | None = None
    restarts: int = 0
    """As seen by this monitor."""
    restarted_s: float | None = None
    """Unix time at which the last of them was seen."""
    quorum_changes: int = 0
    """Quorums formed since this monitor started, also in an absence if countable."""
    formed_s: float | None = None
    """Unix time at which the last quorum was first seen; None before there was one."""

    def after(self, seen: LighthouseView | LighthouseAway, now_s: float) -> LighthouseRecord:
        """The record after one more look."""
        if isinstance(seen, LighthouseAway):
            since_s = now_s if self.away is None else self.away_since_s
            return replace(self, away=seen, away_since_s=since_s)
        restarts, changes, restarted_s = self.restarts, self.quorum_changes, self.restarted_s
        if self.view is not None:
            anew = seen.anew(self.view)
            changes += seen.quorum_id - (0 if anew else self.view.quorum_id)
            if anew:
                restarts, restarted_s = restarts + 1, now_s
        formed_s = self.formed_s
        other = self.view is None or seen.quorum_id != self.view.quorum_id
        if other or formed_s is None or restarts > self.restarts:
            formed_s = now_s
        return LighthouseRecord(
            view=seen,
            view_s=now_s,
            restarts=restarts,
            restarted_s=restarted_s,
            quorum_changes=max(changes, self.quorum_changes),
            formed_s=formed_s if seen.members else None,
        )


def lighthouse_to_json(lighthouse: LighthouseView | LighthouseAway) -> dict[str, Any]:
    if isinstance(lighthouse, LighthouseAway):
        return {"up": False, "reason": lighthouse.reason}
    return {
        "up": True,
        "quorum_id": lighthouse.quorum_id,
        "status": lighthouse.status,
        "members": [
            {
                "replica_id": member.replica_id,
                "group": group_of_replica(member.replica_id),
                "step": member.step,
            }
            for member in lighthouse.members
        ],
        "heartbeat_ages_s": {
            replica_id: round(age_s, 3)
            for replica_id, age_s in sorted(lighthouse.heartbeat_ages_s.items())
        },
    }
