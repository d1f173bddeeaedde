"""What an incident cost: rank-seconds that waited, and what our own eviction cost. Pure.

A part that is not over yet, or whose end nobody saw, has a lower bound only.
"""

from __future__ import annotations

from monitor.audit.amounts import Amount, between, nothing, unknown
from monitor.audit.case import Case
from monitor.audit.facts import FleetFacts
from monitor.detectors.verdict import Kind

NO_FACTS = "nobody counted the ranks when it fired"


def lost_by_others(case: Case) -> Amount:  # noqa: PLR0911 - one reason a line
    """What the other groups waited: from the fault until they committed again."""
    facts, verdict = case.facts, case.incident.verdict
    if case.incident.milestones.firing_s is None:
        return nothing("it never fired")
    if facts is None:
        return unknown(NO_FACTS)
    if facts.within is not None:
        return nothing(f"counted with {facts.within}")
    if facts.others == 0:
        return nothing("there was no other group")
    if verdict.kind is Kind.BY_HAND:
        return _new_quorum(case, facts)
    if verdict.kind is Kind.STRAGGLER:
        if not verdict.lost_s >= 0:  # NaN too
            return unknown("a damaged record")
        seen = facts.others * verdict.lost_s
        return between(seen, seen, f"{_ranks(facts.others)} waited {verdict.lost_s:.1f} s for it")
    if verdict.kind in (Kind.REPLICA_LAG, Kind.STATE_CORRUPT):
        return unknown("nobody stands still for such a fault, and what it slows is not measured")
    if not verdict.stops:
        return nothing("nobody waited for it")
    return _waited(case, facts)


def _waited(case: Case, facts: FleetFacts) -> Amount:
    incident, count = case.incident, facts.others
    commit_s = incident.milestones.survivor_commit_s
    if commit_s is not None:
        waited_s = max(0.0, commit_s - case.began_s)
        words = f"{_ranks(count)} waited {waited_s:.1f} s, until they committed again"
        return between(count * waited_s, count * waited_s, words)
    if not incident.groups and case.ended_s is not None:  # nobody's fault: nobody is followed
        least_s = max(0.0, incident.last_seen_s - case.began_s)
        most_s = max(least_s, case.ended_s - case.began_s)
        words = f"{_ranks(count)} waited, until it was over"
        return between(count * least_s, count * most_s, words)
    if case.followed:
        least_s = max(0.0, _until(case) - case.began_s)
        return between(count * least_s, None, f"{_ranks(count)} have waited {least_s:.1f} s so far")
    return unknown("no other group was seen to commit again")


def lost_by_own(case: Case) -> Amount:
    """What the accused groups stood: from the fault until they committed again."""
    facts, incident = case.facts, case.incident
    if incident.milestones.firing_s is None:
        return nothing("it never fired")
    if not incident.groups:
        return nothing("no group is accused")
    if facts is None:
        return unknown(NO_FACTS)
    if facts.within is not None:
        return nothing(f"counted with {facts.within}")
    if not incident.verdict.stops and not case.evicted:
        return nothing("the group went on")
    began_s = case.began_s
    if not incident.verdict.stops and case.asked_s is not None:
        began_s = case.asked_s
    return _away(case, facts, began_s)


def _away(case: Case, facts: FleetFacts, since_s: float) -> Amount:
    incident, count = case.incident, facts.own
    back_s = incident.milestones.rejoined_s
    if back_s is not None:
        away_s = max(0.0, back_s - since_s)
        words = f"{_ranks(count)} of its own away {away_s:.1f} s, until it committed again"
        return between(count * away_s, count * away_s, words)
    if case.evicted or incident.kind is Kind.DEAD:
        away_s = max(0.0, _until(case) - since_s)
        so_far = "so far" if case.followed else "at least: nobody saw it come back"
        words = f"{_ranks(count)} of its own away {away_s:.1f} s {so_far}"
        return between(count * away_s, None, words)
    stood_s = max(0.0, incident.last_seen_s - since_s)
    words = f"{_ranks(count)} of its own stood {stood_s:.1f} s at least"
    return between(count * stood_s, None, words)


def eviction_cost(case: Case) -> Amount:
    """What our own doing cost: the group away from the request on, and the others' new quorum."""
    facts, asked_s = case.facts, case.asked_s
    if not case.evicted or asked_s is None:
        return nothing("nobody was evicted")
    if facts is None:
        return unknown(NO_FACTS)
    return _away(case, facts, asked_s).plus(_stall(case, facts, asked_s))


def _new_quorum(case: Case, facts: FleetFacts) -> Amount:
    """What an eviction by hand cost the others."""
    asked_s = case.asked_s
    return nothing("nobody was asked") if asked_s is None else _stall(case, facts, asked_s)


def _stall(case: Case, facts: FleetFacts, asked_s: float) -> Amount:
    """At most until they committed without it; nobody saw how much of that they stood."""
    commit_s = case.incident.milestones.survivor_commit_s
    most_s = None if commit_s is None else facts.others * max(0.0, commit_s - asked_s)
    return Amount(0.0, most_s, f"{_ranks(facts.others)} needed a new quorum")


def _until(case: Case) -> float:
    """How far it was looked."""
    since_s = case.asked_s or case.incident.milestones.firing_s or case.began_s
    return case.now_s if case.incident.open else min(case.now_s, since_s + case.config.follow_s)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
