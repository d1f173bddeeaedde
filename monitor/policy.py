"""Policy: what to do about a firing incident. Pure; every "no" carries its reason.

The guards, in the order in which they are asked, are in `Guard`: first what speaks against
the verdict itself, then what makes an eviction pointless, then whether the monitor can be
trusted, then what protects the fleet, last what the operator asked for, so that observe
mode says "would evict" only when nothing else stood against it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Confidence, Kind
from monitor.detectors.wording import listed, seconds
from monitor.incident import Incident
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId


class Guard(StrEnum):
    """What may hold an eviction back, in the order in which it is asked."""

    UNSURE = "unsure"  # the verdict cannot tell the culprit
    SPARED = "spared"  # the verdict itself says why an eviction would not mend it
    ALREADY_GONE = "already_gone"  # the group left by itself
    NOT_WORTH_IT = "not_worth_it"  # a straggler has cost less so far than an eviction would
    CRASH_LOOP = "crash_loop"  # the same signature again after an eviction: a program bug
    SELF_DOUBT = "self_doubt"  # the monitor is late, cut off, or cannot write
    LIGHTHOUSE_AWAY = "lighthouse_away"  # cannot see the quorum, so cannot confirm either
    BREAKER = "breaker"  # too much of the fleet is accused at once
    MIN_REPLICAS = "min_replicas"  # too few healthy groups would be left
    IN_FLIGHT = "in_flight"  # another eviction is still under way
    BUDGET = "budget"  # too many evictions within the hour
    COOL_DOWN = "cool_down"  # too soon after the last one
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


@dataclass(frozen=True, slots=True)
class Hold:
    """Do nothing about this incident now."""

    incident_id: IncidentId
    guard: Guard
    reason: str


Decision = Evict | Hold


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
    past: tuple[PastEviction, ...] = ()
    in_flight: tuple[GroupName, ...] = ()
    evicted_signatures: Mapping[str, int] = field(default_factory=dict)
    """Signature -> evictions for it within the memory of the incidents."""
    deaths: Mapping[Host, int] = field(default_factory=dict)
    """Host -> earlier dead ranks on it within the memory of the incidents."""


@dataclass(frozen=True, slots=True)
class _Case:
    config: KeeperConfig
    fleet: Fleet
    incident: Incident
    group: GroupName

    @property
    def view(self) -> GroupView | None:
        return self.fleet.groups.get(self.group)


def decide(
    config: KeeperConfig, fleet: Fleet, incidents: Sequence[Incident]
) -> tuple[Decision, ...]:
    """One decision for each incident given that accuses somebody; at most one is an `Evict`.

    `incidents` are firing and were seen in this very tick. The oldest is asked first.
    """
    decisions: list[Decision] = []
    for incident in sorted(incidents, key=lambda i: (i.milestones.first_seen_s, i.id)):
        if not incident.groups:
            continue  # nobody is accused, so there is no eviction to hold back
        case = _Case(config, fleet, incident, incident.groups[0])
        held = _held(case)
        decisions.append(_evict(case) if held is None else held)
        if held is None:
            fleet = replace(fleet, in_flight=(*fleet.in_flight, case.group))
    return tuple(decisions)


def _held(case: _Case) -> Hold | None:
    for guard, speak in _GUARDS:
        reason = speak(case)
        if reason is not None:
            return Hold(case.incident.id, guard, reason)
    return None


def _evict(case: _Case) -> Evict:
    view, incident = case.view, case.incident
    return Evict(
        incident_id=incident.id,
        group=case.group,
        replica_id=None if view is None else view.replica_id,
        quarantine=_quarantine(case),
        reason=f"{incident.kind.value}: {incident.verdict.reason}",
    )


def _quarantine(case: _Case) -> tuple[Host, ...]:
    """Hosts to blame: of hangs and stragglers; of a death only when it was not the first there.

    A mismatch or a deadlock is a fault of the program, which any other host would repeat. Corrupt
    state is one host's; should it come back elsewhere, `CRASH_LOOP` stops it.
    """
    view = case.view
    if view is None:
        return ()
    hosts = {view.hosts[rank] for rank in case.incident.culprits if rank in view.hosts}
    match case.incident.kind:
        case Kind.NOT_ENTERED | Kind.STRAGGLER:
            return tuple(sorted(hosts))
        case Kind.DEAD:
            return tuple(sorted(host for host in hosts if case.fleet.deaths.get(host, 0) > 0))
        case Kind.MISMATCH | Kind.DEADLOCK | Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY:
            return ()
        case Kind.STATE_CORRUPT:  # a rank that could not be told from its group's others: no host
            return tuple(hosts) if len(hosts) == 1 else ()


# -- guards: each says why not, or None ------------------------------------------------------


def _unsure(case: _Case) -> str | None:
    if case.incident.verdict.confidence is not Confidence.UNSURE:
        return None
    return f"cannot tell which of {listed(case.incident.culprits)} is to blame"


def _spared(case: _Case) -> str | None:
    return case.incident.verdict.spare or None


def _already_gone(case: _Case) -> str | None:
    view, incident = case.view, case.incident
    if view is None:
        return f"{case.group} is registered no more"
    if (
        incident.replica_ids
        and view.replica_id is not None
        and view.replica_id not in incident.replica_ids
    ):
        return f"{case.group} is another process by now"
    if incident.kind is not Kind.DEAD or view.alive or case.fleet.lighthouse_away is not None:
        return None
    age_s, dead_s = view.heartbeat_age_s, view.dead_for_s
    beats = (
        age_s is not None and dead_s is not None and age_s + case.config.heartbeat_grace_s < dead_s
    )
    if beats and view.in_quorum:
        return None
    return f"every process of {case.group} is gone and its heartbeat has ended with them"


def _not_worth_it(case: _Case) -> str | None:
    incident, cost_s = case.incident, case.config.eviction_cost_s
    if incident.kind is not Kind.STRAGGLER or incident.verdict.lost_s > cost_s:
        return None
    return f"it has cost less than an eviction would ({seconds(cost_s)})"


def _crash_loop(case: _Case) -> str | None:
    program = case.incident.kind in (Kind.MISMATCH, Kind.DEADLOCK, Kind.STATE_CORRUPT)
    limit = case.config.program_bug_after if program else case.config.crash_loop_after
    count = case.fleet.evicted_signatures.get(case.incident.signature, 0)
    if count < limit:
        return None
    times = "once" if count == 1 else f"{count} times"
    return (
        f"{case.incident.signature} came back after it was evicted {times}: "
        "a fault of the program, not of a host"
    )


def _self_doubt(case: _Case) -> str | None:
    return case.fleet.doubt


def _lighthouse_away(case: _Case) -> str | None:
    why = case.fleet.lighthouse_away
    return None if why is None else f"cannot see the quorum: {why}"


def _breaker(case: _Case) -> str | None:
    """Groups of which no process lives are gone, which is a fact and no accusation."""
    allowed = max(1, int(len(case.fleet.groups) * case.config.breaker_share))
    views = (case.fleet.groups.get(group) for group in case.fleet.accused)
    accused = sum(view is not None and bool(view.alive) for view in views)
    if accused <= allowed:
        return None
    return f"{accused} of {len(case.fleet.groups)} groups are accused at once, {allowed} at most"


def _min_replicas(case: _Case) -> str | None:
    left = sum(view.healthy for name, view in case.fleet.groups.items() if name != case.group)
    if left >= case.config.min_replicas:
        return None
    return f"{left} healthy groups would remain, at least {case.config.min_replicas} must"


def _in_flight(case: _Case) -> str | None:
    going = case.fleet.in_flight
    return f"{listed(going)} is being evicted" if going else None


def _budget(case: _Case) -> str | None:
    recent = [past for past in case.fleet.past if case.fleet.now_s - past.asked_s < _HOUR_S]
    limit = case.config.budget_per_hour
    return None if len(recent) < limit else f"{limit} evictions an hour are used up"


def _cool_down(case: _Case) -> str | None:
    ago = [case.fleet.now_s - past.asked_s for past in case.fleet.past]
    if not ago or min(ago) >= case.config.cool_down_s:
        return None
    return f"the last eviction is less than {seconds(case.config.cool_down_s)} ago"


def _observe(case: _Case) -> str | None:
    return f"observe mode: would evict {case.group}" if case.config.observe else None


_HOUR_S: Final = 3600.0
_GUARDS: Final[tuple[tuple[Guard, Callable[[_Case], str | None]], ...]] = (
    (Guard.UNSURE, _unsure),
    (Guard.SPARED, _spared),
    (Guard.ALREADY_GONE, _already_gone),
    (Guard.NOT_WORTH_IT, _not_worth_it),
    (Guard.CRASH_LOOP, _crash_loop),
    (Guard.SELF_DOUBT, _self_doubt),
    (Guard.LIGHTHOUSE_AWAY, _lighthouse_away),
    (Guard.BREAKER, _breaker),
    (Guard.MIN_REPLICAS, _min_replicas),
    (Guard.IN_FLIGHT, _in_flight),
    (Guard.BUDGET, _budget),
    (Guard.COOL_DOWN, _cool_down),
    (Guard.OBSERVE, _observe),
)
