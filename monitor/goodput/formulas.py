"""Two closed forms of effective training time, and what follows from them. Pure.

**Linear** is the arithmetic of FT-HSDP (arXiv 2602.00277): one fault in each MTBF, none while
another is dealt with, M the MTBF, S the stall of all, T the time a group is away, R groups:

    synchronous      (M - T) / M
    fault tolerant   [(M - T) + (T - S) (R - 1) / R] / M

**Poisson**: faults come when they like, also during a recovery. All train at a moment unless a
stall began within the last S (M/G/infinity: exp(-S/M)); one group is away for a share of the time
of an alternating renewal process, 1 - 1 / (1 + T / (M R)).

    synchronous      exp(-T / M)
    fault tolerant   exp(-S / M) / (1 + (T - S) / (M R))

Both here for any mix of kinds. docs/goodput.md derives them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from monitor.goodput.scenario import DAY_S, FaultKind, Scenario


@dataclass(frozen=True, slots=True)
class Toll:
    """What one fault takes on average. Seconds."""

    stall_s: float = 0.0
    """Nobody trains."""
    missing_s: float = 0.0
    """The others train without its group."""
    dragged_s: float = 0.0
    """All train at a slow rank's pace."""
    out_s: float = 0.0
    """Its group is away: it cannot fail again."""
    evictions: float = 0.0
    """Share of these faults that end in an eviction, or a restart of the job."""

    def fleet_s(self, groups: int, drag: float) -> float:
        """Seconds of the whole fleet's training."""
        return self.stall_s + self.missing_s / groups + self.dragged_s * drag

    def times(self, weight: float) -> Toll:
        """A share of it."""
        return Toll(
            self.stall_s * weight, self.missing_s * weight, self.dragged_s * weight,
            self.out_s * weight, self.evictions * weight,
        )  # fmt: skip

    def plus(self, other: Toll) -> Toll:
        """Both."""
        return Toll(
            self.stall_s + other.stall_s, self.missing_s + other.missing_s,
            self.dragged_s + other.dragged_s, self.out_s + other.out_s,
            self.evictions + other.evictions,
        )  # fmt: skip


def eviction(scenario: Scenario, detect_s: float = 0.0, *, alive: bool = True) -> Toll:
    """One group put out and taken back; `detect_s` is how long all stood before."""
    times = scenario.times
    evict_s = times.evict_s if alive else 0.0
    again_s = times.requorum_s + times.step_s / 2.0
    missing_s = max(0.0, times.restart_s + times.heal_s - again_s)
    return Toll(
        stall_s=detect_s + evict_s + again_s + times.first_step_s,
        missing_s=missing_s,
        out_s=detect_s + evict_s + again_s + missing_s,
        evictions=1.0,
    )


def toll(scenario: Scenario, kind: FaultKind) -> Toll:
    """What one fault of a kind takes on average."""
    response, mix = scenario.handling.to(kind), scenario.mix
    if kind is not FaultKind.SLOW:
        detect_s = response.after_s or 0.0
        if response.takes_job:
            return Toll(stall_s=detect_s + scenario.times.job_restart_s, evictions=1.0)
        return eviction(scenario, detect_s, alive=kind is FaultKind.HANG)
    if response.after_s is None:
        return Toll(dragged_s=mix.slow_lasts_s)
    still_slow = math.exp(-response.after_s / mix.slow_lasts_s)
    dragged = Toll(dragged_s=mix.slow_lasts_s * (1.0 - still_slow))
    if response.takes_job:
        after = Toll(stall_s=scenario.times.job_restart_s, evictions=1.0)
    else:
        after = eviction(scenario)
    return dragged.plus(after.times(still_slow))


def mean_toll(scenario: Scenario) -> Toll:
    """What a fault takes, over all kinds."""
    found = Toll()
    for kind in FaultKind:
        found = found.plus(toll(scenario, kind).times(scenario.mix.share(kind)))
    return found


def linear(scenario: Scenario) -> float:
    """Effective training time as the paper reckons; 0 where faults come faster than they end."""
    job, drag = scenario.job, scenario.mix.drag
    lost = mean_toll(scenario).fleet_s(job.groups, drag) / job.mtbf_s
    lost += false_evictions(scenario)
    return max(0.0, 1.0 - lost)


def false_evictions(scenario: Scenario) -> float:
    """Share of the training time that they take, were nothing else lost."""
    each_s = eviction(scenario).fleet_s(scenario.job.groups, 0.0)
    return scenario.handling.false_per_day * each_s / DAY_S


def poisson(scenario: Scenario) -> float:
    """Effective training time where faults come at any moment, also during a recovery."""
    groups = scenario.job.groups
    false = eviction(scenario).times(scenario.handling.false_per_day / DAY_S)
    each_s = mean_toll(scenario).times(1.0 / scenario.job.mtbf_s).plus(false)  # a second
    present = 1.0 / (1.0 + each_s.out_s / groups)  # who is away cannot fail
    waiting = waiting_share(scenario, each_s.evictions * present)
    present *= 1.0 - waiting
    missing = 1.0 - 1.0 / (1.0 + each_s.missing_s / groups)
    dragged = -math.expm1(-each_s.dragged_s * present)  # a slow rank or several: one pace
    trained = math.exp(-each_s.stall_s * present) * (1.0 - missing) * (1.0 - waiting)
    return trained * (1.0 - scenario.mix.drag * dragged)


def waiting_share(scenario: Scenario, evictions_per_s: float) -> float:
    """Share of the groups that wait for a host, where spares are few.

    Broken hosts are a Poisson number (M/G/infinity); those beyond the spares are missing in groups,
    and a group without a host breaks none: found by bisection.
    """
    hosts, groups = scenario.spares.hosts, scenario.job.groups
    if hosts is None:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2.0
        broken = evictions_per_s * (1.0 - share) * scenario.spares.repair_s
        if excess(broken, hosts) / groups > share:
            low = share
        else:
            high = share
    return low


def excess(mean: float, limit: int) -> float:
    """How many of a Poisson number lie beyond the limit, on average: groups without a host."""
    if mean <= 0.0:
        return 0.0
    sure = mean + 12.0 * math.sqrt(mean) + 12.0
    if limit > sure:  # beyond rounding
        return 0.0
    spread = 12.0 * math.sqrt(mean) + 12.0
    low, found, covered = max(0, math.floor(mean - spread)), 0.0, 0.0
    for number in range(low, math.ceil(sure)):
        weight = math.exp(number * math.log(mean) - mean - math.lgamma(number + 1.0))
        covered += weight
        found += weight * max(0, number - limit)
    return found / covered if covered > 0.0 else 0.0


def eviction_cost_s(scenario: Scenario) -> float:
    """Fleet seconds that one eviction takes, whether right or wrong."""
    return eviction(scenario).fleet_s(scenario.job.groups, 0.0)


def break_even_precision(scenario: Scenario) -> float | None:
    """Share of stragglers' evictions that must be right for them to gain anything.

    A right one gains what the rank would still have taken, drag x the mean time it stays slow
    (memoryless: however long it has been slow already), and every one costs `eviction_cost_s`.
    None: not even a sure one gains.
    """
    gain_s = scenario.mix.drag * scenario.mix.slow_lasts_s
    cost_s = eviction_cost_s(scenario)
    return cost_s / gain_s if gain_s > cost_s else None


def ski_rental_s(cost_s: float, drag: float) -> float | None:
    """When a straggler has cost as much as its eviction would: lightkeeper waits that long."""
    return cost_s / drag if drag > 0.0 else None
