"""What would have been lost had nobody evicted anybody: the assumption in words, and a range. Pure.

Sources: shared/facts/torchft.md, "What one bad rank does, without anybody's help", measured with
TorchFT 0.2.0; docs/audit.md repeats it.
"""

from __future__ import annotations

from typing import Final

from monitor.audit.amounts import Amount, between, nothing, unknown
from monitor.audit.case import Case
from monitor.audit.costs import NO_FACTS
from monitor.audit.facts import FleetFacts
from monitor.detectors.verdict import Kind

FIRST_MARGIN_S: Final = 1.0
"""A survivor that waits in the quorum crashes after 61 s with timeouts of 60 s: one, and this."""
SECOND_MARGIN_S: Final = 5.0
"""Survivors in mid-step crash after about 125 s: two timeouts, and this."""
RESTART_S: Final = 20.0
"""A restarted rank contributes again after 17 to 20 s."""


def without_us(case: Case, lost: Amount) -> Amount:  # noqa: PLR0911 - one kind a line
    """What it would have cost; `lost` is what it did cost."""
    incident, facts = case.incident, case.facts
    if not case.evicted:
        return Amount(lost.low, lost.high, "nobody was evicted: as it was")
    if facts is None:
        return unknown(NO_FACTS)
    match incident.kind:
        case Kind.NOT_ENTERED | Kind.DEADLOCK | Kind.MISMATCH:
            if incident.verdict.stops:
                return _hang(case, facts)
            return nothing("it hung nobody: the job would have gone on")
        case Kind.STRAGGLER:
            return _straggler(case, facts)
        case Kind.DEAD:
            return Amount(
                lost.low, lost.high,
                "a crashed group is started again by its launcher: the eviction is taken to have "
                "saved nothing",
            )  # fmt: skip
        case Kind.STATE_CORRUPT:
            return unknown("spoilt state costs results, not time")
        case Kind.UNSEEN | Kind.BY_HAND:
            return unknown("a person evicted it for reasons of their own")
        case Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY:
            return unknown("what such a fault goes on to cost was never measured")


def _hang(case: Case, facts: FleetFacts) -> Amount:
    ranks, timeout_s = facts.own + facts.others, case.config.job_timeout_s
    first_s = timeout_s + FIRST_MARGIN_S
    last_s = 2 * timeout_s + SECOND_MARGIN_S + RESTART_S
    words = (
        f"TorchFT's own timeouts ({timeout_s:g} s each) would have ended it: {ranks} ranks stand "
        f"for {first_s:.0f} s (one timeout, no restart counted) to {last_s:.0f} s (two timeouts, "
        "the survivors crash, measured as about 125 s with 60 s each, and "
        f"{RESTART_S:.0f} s to start again); steps since the last checkpoint are not counted"
    )
    return between(ranks * first_s, ranks * last_s, words)


def _straggler(case: Case, facts: FleetFacts) -> Amount:
    lost_s, asked_s = case.incident.verdict.lost_s, case.asked_s
    elapsed_s = 0.0 if asked_s is None else asked_s - case.began_s
    if not (elapsed_s > 0 and lost_s > 0):  # NaN too
        return unknown("how fast it lost time is not known")
    rate = min(1.0, lost_s / elapsed_s)
    horizon_s = case.config.straggler_horizon_s
    words = (
        f"it cost {rate:.2f} s a second; had it stayed as long again as it had lasted "
        f"({elapsed_s:.0f} s), or for {horizon_s:.0f} s"
    )
    more = between(facts.others * rate * elapsed_s, facts.others * rate * horizon_s, words)
    before = facts.others * lost_s
    return Amount(before, before, "").plus(more)
