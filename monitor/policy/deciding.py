"""One decision for each firing incident, and the order in which the guards are asked.

First what speaks against the verdict itself, then what makes an eviction pointless or unwanted,
then whether the monitor can be trusted, then what protects the fleet, last what the operator asked
for, so that a pause and observe mode say "would evict" only when nothing else stood against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Kind
from monitor.incident import Incident
from monitor.names import Host
from monitor.policy import fault_guards, fleet_guards
from monitor.policy.case import Case, Objection
from monitor.policy.decisions import Decision, Evict, Guard, Hold
from monitor.policy.facts import Fleet, PastEviction
from monitor.policy.fault_guards import again
from monitor.policy.rules import DEFAULT, Action, Policy

_FOR_THE_FIRST: Final = (Guard.BUDGET, Guard.GROUP_BUDGET, Guard.COOL_DOWN)
GUARDS: Final[tuple[tuple[Guard, Callable[[Case], Objection | None]], ...]] = (
    (Guard.UNSURE, fault_guards.unsure),
    (Guard.SPARED, fault_guards.spared),
    (Guard.ALREADY_GONE, fault_guards.already_gone),
    (Guard.NOT_WORTH_IT, fault_guards.not_worth_it),
    (Guard.POLICY, fault_guards.wants_person),
    (Guard.CRASH_LOOP, fault_guards.crash_loop),
    (Guard.TRACED, fault_guards.traced),
    (Guard.SELF_DOUBT, fleet_guards.self_doubt),
    (Guard.LIGHTHOUSE_AWAY, fleet_guards.lighthouse_away),
    (Guard.BREAKER, fleet_guards.breaker),
    (Guard.MIN_REPLICAS, fleet_guards.min_replicas),
    (Guard.IN_FLIGHT, fleet_guards.in_flight),
    (Guard.BUDGET, fleet_guards.budget),
    (Guard.GROUP_BUDGET, fleet_guards.group_budget),
    (Guard.COOL_DOWN, fleet_guards.cool_down),
    (Guard.MAINTENANCE, fleet_guards.maintenance),
    (Guard.PAUSED, fleet_guards.paused),
    (Guard.OBSERVE, fleet_guards.observe),
)


def decide(
    config: KeeperConfig, fleet: Fleet, incidents: Sequence[Incident], policy: Policy = DEFAULT
) -> tuple[Decision, ...]:
    """One decision for each incident given that accuses somebody.

    At most one is an `Evict`, but for groups that share a dead host. `incidents` are firing and
    were seen in this very tick. The oldest is asked first.
    """
    decisions: list[Decision] = []
    for incident in sorted(incidents, key=lambda i: (i.milestones.first_seen_s, i.id)):
        if not incident.groups:
            continue  # nobody is accused, so there is no eviction to hold back
        case = Case(config, policy, fleet, incident, incident.groups[0])
        decision = _decide(case)
        decisions.append(decision)
        asked = PastEviction(incident.id, case.group, fleet.now_s)
        if isinstance(decision, Evict):
            going, past = (*fleet.in_flight, case.group), (*fleet.past, asked)
            fleet = replace(fleet, in_flight=going, past=past)
        elif decision.would is not None:
            fleet = replace(fleet, would=(*fleet.would, asked))
    return tuple(decisions)


def _decide(case: Case) -> Decision:
    incident_id = case.incident.id
    settled = case.only_observed and any(
        one.incident_id == incident_id and one.group == case.group for one in case.fleet.would
    )
    guards = GUARDS[-1:] if settled else GUARDS  # what would have been done is not decided again
    if again(case):  # nobody waits for a budget that a group uses up by failing at one place
        guards = tuple(one for one in guards if one[0] not in _FOR_THE_FIRST)
    for guard, speak in guards:
        objection = speak(case)
        if objection is not None:
            would = evict_of(case) if guard is Guard.OBSERVE and not settled else None
            return Hold(incident_id, guard, objection.reason, objection.release, would)
    return evict_of(case)


def evict_of(case: Case) -> Evict:
    """The eviction, were nothing against it."""
    view, incident = case.view, case.incident
    why = again(case)
    return Evict(
        incident_id=incident.id,
        group=case.group,
        replica_id=None if view is None else view.replica_id,
        quarantine=() if why else _quarantine(case),
        reason=f"{incident.kind.value}: {incident.verdict.reason}" + (f"; {why}" if why else ""),
        keep_out=() if not why or view is None else view.names or (case.group,),
    )


def _quarantine(case: Case) -> tuple[Host, ...]:
    """Hosts to blame, where the policy lets them be denied.

    A straggler speaks of its host, and so do a wait in the kernel and a corruption that one host
    alone shows. Any other fault does where it is not the first there: of another group, or of the
    program in another state. Else the group comes back where it was, once (`again`).
    """
    view, incident = case.view, case.incident
    if view is None or case.action is Action.EVICT:
        return ()
    hosts = sorted({view.hosts[rank] for rank in incident.culprits if rank in view.hosts})
    match incident.kind:
        case Kind.STRAGGLER | Kind.MISMATCH | Kind.DEADLOCK | Kind.REPLICA_LAG:
            return tuple(hosts)  # all but the first are the program's, unless the operator says so
        case Kind.STATE_CORRUPT:  # a rank that could not be told from its group's others: no host
            return tuple(hosts) if len(hosts) == 1 else ()
        case _:
            bad = {view.hosts[r] for r in view.disk_wait if r in incident.culprits}
            if incident.kind is Kind.NOT_ENTERED:  # nobody on it can be seen
                bad |= case.fleet.dead_hosts
            return tuple(host for host in hosts if host in bad or _before(case, host))


def _before(case: Case, host: Host) -> bool:
    """Whether an earlier fault on this host was another group's, or the program's elsewhere."""
    now = case.incident
    return any(
        one.group != case.group
        or one.signature != now.signature
        or (one.kind is now.kind is Kind.DEAD and not now.signature)
        for one in case.fleet.faults.get(host, ())
    )
