"""The account of one incident: who decided, how long each part took, what it cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from monitor.audit.amounts import Amount, amount_to_json, between, nothing
from monitor.audit.case import Case
from monitor.audit.costs import eviction_cost, lost_by_others, lost_by_own
from monitor.audit.intervals import (
    HoldSpan,
    Interval,
    RungSpan,
    hold_spans,
    intervals,
    rung_spans,
)
from monitor.audit.without_us import without_us
from monitor.names import Host


@dataclass(frozen=True, slots=True)
class Account:
    """What one incident comes to."""

    decided_by: str
    """`lightkeeper`, a person, or `nobody`."""
    why: str
    """By which rule, or which guard held."""
    outcome: str
    """One of `evicted`, `evicting`, `failed`, `observed` (would have been evicted), `held`,
    `passed`, `open`."""
    intervals: tuple[Interval, ...]
    rungs: tuple[RungSpan, ...]
    holds: tuple[HoldSpan, ...]
    lost_by_others: Amount
    lost_by_own: Amount
    lost: Amount
    eviction_cost: Amount
    without_us: Amount
    saved: Amount
    """Negative: it cost more than it saved."""
    ran_on: tuple[Host, ...]
    back_on: tuple[Host, ...]
    final: bool
    """Whether nothing of it can change any more."""

    @property
    def evicted(self) -> bool:
        """Whether anybody was put out, or was to be."""
        return self.outcome in ("evicted", "evicting", "failed")


def account(case: Case) -> Account:
    """What this incident comes to; never raises, whatever the store held."""
    others, own = lost_by_others(case), lost_by_own(case)
    lost, cost = others.plus(own), eviction_cost(case)
    without, facts = without_us(case, lost), case.facts
    who, why = _decided(case)
    return Account(
        decided_by=who,
        why=why,
        outcome=_outcome(case),
        intervals=intervals(case),
        rungs=rung_spans(case),
        holds=hold_spans(case),
        lost_by_others=others,
        lost_by_own=own,
        lost=lost,
        eviction_cost=cost,
        without_us=without,
        saved=_saved(case, without, lost),
        ran_on=() if facts is None else _all(facts.hosts),
        back_on=() if facts is None else _all(facts.back_on),
        final=not case.incident.open and _complete(case),
    )


def _saved(case: Case, without: Amount, lost: Amount) -> Amount:
    """The difference; nothing where we did nothing, or where nobody can say."""
    if not case.evicted:
        return nothing("nobody was evicted, so nothing was saved and nothing spent")
    if not without.known:
        return without
    if not lost.known:
        return lost
    if (without.low, without.high) == (lost.low, lost.high):  # a crash: as it was
        return between(0.0, 0.0, without.words)
    return without.minus(lost, "what it would have lost without us, less what it lost")


def _complete(case: Case) -> bool:
    marks = case.incident.milestones
    told = marks.survivor_commit_s is not None and marks.rejoined_s is not None
    return told or not case.followed


def _outcome(case: Case) -> str:
    incident = case.incident
    if case.evicted:
        if case.evictions and case.evictions[-1].failed is not None:
            return "failed"
        return "evicting" if incident.open else "evicted"
    if case.decisions and case.decisions[-1].action == "would_evict":
        return "observed"
    held = any(row.action == "hold" for row in case.decisions)
    if incident.open:
        return "held" if held else "open"
    return "held" if held else "passed"


def _decided(case: Case) -> tuple[str, str]:
    evicts = [row for row in case.decisions if row.action == "evict"]
    incident = case.incident
    if evicts or case.evicted:
        confidence = incident.verdict.confidence
        rule = f"{incident.kind} is evicted when it fires, {confidence}, and no guard holds"
        author = evicts[-1].author if evicts else "lightkeeper"
        return (author, rule) if author == "lightkeeper" else (author, evicts[-1].reason)
    holds = [row for row in case.decisions if row.action != "evict"]
    if holds:
        return "nobody", f"held by {holds[-1].guard}: {holds[-1].reason}"
    return "nobody", "nothing was to be decided"


def _all(hosts: Any) -> tuple[Host, ...]:
    return tuple(sorted({host for found in hosts.values() for host in found}))


def account_to_json(one: Account) -> dict[str, Any]:
    """Plain JSON types; what is not known is null."""
    return {
        "decided_by": one.decided_by,
        "why": one.why,
        "outcome": one.outcome,
        "final": one.final,
        "lost": amount_to_json(one.lost),
        "lost_by_others": amount_to_json(one.lost_by_others),
        "lost_by_own": amount_to_json(one.lost_by_own),
        "eviction_cost": amount_to_json(one.eviction_cost),
        "without_us": amount_to_json(one.without_us),
        "saved": amount_to_json(one.saved),
        "intervals": [
            {
                "until": part.until,
                "start_s": part.start_s,
                "end_s": part.end_s,
                "seconds": round(part.seconds, 3),
                "jumped": part.jumped,
            }
            for part in one.intervals
        ],
        "rungs": [
            {
                "rung": span.rung,
                "start_s": span.start_s,
                "end_s": span.end_s,
                "seconds": _round(span.seconds),
                "result": span.result,
                "detail": span.detail,
                "deadline_s": _round(span.deadline_s),
            }
            for span in one.rungs
        ],
        "holds": [
            {
                "guard": span.guard,
                "start_s": span.start_s,
                "end_s": span.end_s,
                "seconds": _round(span.seconds),
                "reason": span.reason,
                "release": span.release,
                "ended_by": span.ended_by,
            }
            for span in one.holds
        ],
        "ran_on": list(one.ran_on),
        "back_on": list(one.back_on),
    }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
