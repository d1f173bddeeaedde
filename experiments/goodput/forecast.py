"""How much of the time a fault-tolerant job trains: a forecast by two closed forms. Pure.

**Effective training time** (goodput): committed steps, weighted by the share of groups that
contributed to each, over the steps the same time gives without faults. Two closed forms:

**Linear** is the arithmetic of FT-HSDP (arXiv 2602.00277): one fault per MTBF, none while another
is handled; M the MTBF, S the stall of all, T the time a group is away, R groups:

    synchronous      (M - T) / M
    fault tolerant   [(M - T) + (T - S) (R - 1) / R] / M

**Poisson**: faults come at any time, also during a recovery. All train at a moment unless a stall
began within the last S (M/G/infinity: exp(-S/M)); the share of time that one group is away is that
of an alternating renewal process, 1 - 1 / (1 + T / (M R)).

    synchronous      exp(-T / M)
    fault tolerant   exp(-S / M) / (1 + (T - S) / (M R))

Both work for any mix of kinds: *fail-stop* (the process or host is gone), *hang* (it is alive but
stands, and everybody waits), *slow* (all run at its pace until it recovers or is evicted). Every
number has its source; evidence/measurements.md repeats them and says how far to trust them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from lightkeeper.monitor.model.config import KeeperConfig

DAY_S: Final = 86_400.0
KINDS: Final = ("stop", "hang", "slow")


@dataclass(frozen=True, slots=True)
class JobSize:
    """`mtbf_s`: the mean time between faults of any of its ranks."""

    ranks: int
    groups: int
    mtbf_s: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Shares of the kinds of faults; a slow rank makes a step `slowdown` times as long, for
    `slow_lasts_s` on average (exponential) unless it is evicted.
    """

    stop: float = 1.0
    hang: float = 0.0
    slow: float = 0.0
    slowdown: float = 2.0
    slow_lasts_s: float = 1440.0

    @property
    def drag(self) -> float:
        """Share of the training time that a slow rank takes from everybody."""
        return 1.0 - 1.0 / self.slowdown


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """What follows a decision, in seconds."""

    evict_s: float = 0.0
    requorum_s: float = 0.0
    restart_s: float = 0.0
    heal_s: float = 0.0
    first_step_s: float = 0.0
    job_restart_s: float = 0.0
    step_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Response:
    """A decision `after_s` the fault (None: never); then the whole job restarts, or only the
    group.
    """

    after_s: float | None
    takes_job: bool = False


@dataclass(frozen=True, slots=True)
class Handling:
    """One way to run a job: the response to each kind of fault, and how many healthy groups are
    evicted by mistake.
    """

    name: str
    stop: Response
    hang: Response
    slow: Response
    false_per_day: float = 0.0


@dataclass(frozen=True, slots=True)
class Scenario:
    job: JobSize
    mix: Mix
    times: RecoveryTimes
    handling: Handling


# -- the two closed forms -------------------------------------------------------------------------


class Toll(NamedTuple):
    """The average cost of one fault: seconds in which nobody trains; the others train without its
    group; all train at a slow rank's pace; its group cannot fail again.
    """

    stall_s: float = 0.0
    missing_s: float = 0.0
    dragged_s: float = 0.0
    out_s: float = 0.0

    def fleet_s(self, scenario: Scenario) -> float:
        """Seconds of the whole fleet's training."""
        missing_s = self.missing_s / scenario.job.groups
        return self.stall_s + missing_s + self.dragged_s * scenario.mix.drag


def _weighed(parts: Iterable[tuple[float, Toll]]) -> Toll:
    columns = zip(*([weight * value for value in toll] for weight, toll in parts), strict=True)
    return Toll(*map(sum, columns))


def eviction(times: RecoveryTimes, detect_s: float = 0.0, *, alive: bool = True) -> Toll:
    """One group evicted and readmitted; `detect_s`: how long all stood before."""
    evict_s = times.evict_s if alive else 0.0  # a fail-stop needs none
    again_s = times.requorum_s + times.step_s / 2.0
    missing_s = max(0.0, times.restart_s + times.heal_s - again_s)
    stood_s = detect_s + evict_s + again_s
    return Toll(stood_s + times.first_step_s, missing_s, 0.0, stood_s + missing_s)


def toll(scenario: Scenario, kind: str) -> Toll:
    """The average cost of one fault of a kind."""
    response: Response = getattr(scenario.handling, kind)
    times, mix = scenario.times, scenario.mix
    if kind != "slow":
        detect_s = response.after_s or 0.0
        if response.takes_job:
            return Toll(stall_s=detect_s + times.job_restart_s)
        return eviction(times, detect_s, alive=kind == "hang")
    if response.after_s is None:
        return Toll(dragged_s=mix.slow_lasts_s)
    still_slow = math.exp(-response.after_s / mix.slow_lasts_s)
    dragged = Toll(dragged_s=mix.slow_lasts_s * (1.0 - still_slow))
    return _weighed([(1.0, dragged), (still_slow, eviction(times))])


def mean_toll(scenario: Scenario) -> Toll:
    """The average over all kinds."""
    return _weighed([(getattr(scenario.mix, kind), toll(scenario, kind)) for kind in KINDS])


def linear(scenario: Scenario) -> float:
    """Effective training time by the paper's formula; 0 where faults outpace recovery."""
    lost = mean_toll(scenario).fleet_s(scenario) / scenario.job.mtbf_s
    lost += scenario.handling.false_per_day * eviction(scenario.times).fleet_s(scenario) / DAY_S
    return max(0.0, 1.0 - lost)


def poisson(scenario: Scenario) -> float:
    """Effective training time if faults come at any moment, also during a recovery."""
    groups = scenario.job.groups
    a_second = _weighed([
        (1.0 / scenario.job.mtbf_s, mean_toll(scenario)),
        (scenario.handling.false_per_day / DAY_S, eviction(scenario.times)),
    ])  # fmt: skip
    present = 1.0 / (1.0 + a_second.out_s / groups)  # an absent group cannot fail
    there = 1.0 / (1.0 + a_second.missing_s / groups)
    dragged = -math.expm1(-a_second.dragged_s * present)  # a slow rank or several: one pace
    return math.exp(-a_second.stall_s * present) * there * (1.0 - scenario.mix.drag * dragged)


# -- FT-HSDP's published case ---------------------------------------------------------------------

FT_HSDP: Final = JobSize(ranks=98_304, groups=12, mtbf_s=18 * 60.0)
"""12 groups of 8,192 GPUs, a failure about every 18 minutes: 29,491 GPU-hours per fault. Llama 3:
419 in 54 days on 16,384 GPUs, 50,676."""
RANK_MTBF_S: Final = FT_HSDP.mtbf_s * FT_HSDP.ranks
STEP_S: Final = 20.0
"""A step at that size."""
DETECT_S: Final = 60.0
AWAY_S: Final = 420.0
"""A group is away for ten minutes; for three all stand, two of them for its return."""
_PAPER: Final = RecoveryTimes(
    restart_s=AWAY_S - STEP_S, heal_s=STEP_S, first_step_s=120.0, job_restart_s=540.0
)


def ft_hsdp() -> Iterator[tuple[float, Scenario]]:
    """The rows of its abstract: stall 10 to 3 minutes, 44 % to 80 %."""
    for name, published, takes_job in (("synchronous", 0.44, True), ("FT-HSDP", 0.80, False)):
        response = Response(DETECT_S, takes_job)
        handling = Handling(name, response, response, Response(None))
        yield published, Scenario(FT_HSDP, Mix(), _PAPER, handling)


# -- measured here, on fleets of three groups of one rank and two of two, on CPU ------------------

HANG_S: Final = 8.8
"""From a hang until it fires: median of the 140 runs of classes `stop`, `gil` and `hang-*` in
evidence/campaign.jsonl; the 95th percentile is 33.5 s (undeclared phases)."""
SLOW_S: Final = 26.2
"""The same for the 40 runs of `slow-compute` and `slow-data`."""
STOP_S: Final = 0.6
"""A crash: the survivors commit 6.0 s after it (median of the 60 runs of `crash`, `segfault`,
`abort`), minus `requorum_s`; the Lighthouse's heartbeat timeout acts, nobody evicts."""
TIMES: Final = replace(_PAPER, evict_s=0.5, requorum_s=5.4, step_s=STEP_S)
"""Measured here where the keeper acts: the processes were gone 0.3 to 0.8 s after the decision in
nine evictions on real fleets with the gate (`make matrix`), and the survivors committed 5.9 s after
it (median of 140), five of which are the Lighthouse's `heartbeat_timeout_ms`. FT-HSDP's otherwise:
a restart of our fleets (17 to 20 s) says nothing about 8,192 GPUs."""
TORCHFT_LOST_S: Final = 125.0
"""TorchFT's defaults (60 s everywhere): after a hang the survivors crash, and the job with them;
measured 122 to 135 s."""
MEASURED_STEP_S: Final = 0.2

# -- assumed --------------------------------------------------------------------------------------

WATCHDOG_S: Final = 600.0
"""torch's default NCCL process group timeout: then the hung group ends itself."""
SHORT_STALL_FACTOR: Final = 3.0
"""Suits a job with 20 s steps: 60 s, as long as FT-HSDP waits. The default of 10 step times,
200 s, comes after TorchFT gives up."""
MIX: Final = Mix(stop=0.83, hang=0.12, slow=0.05)
"""12 %: the implicit failures among ByteRobust's incidents (5,948 of 49,212, arXiv 2509.16293). 5 %
slow ranks, twice as slow, is a guess; 24 minutes is Greyhound's mean for slow communication (USENIX
ATC '25; 10 for slow computation)."""
GROUPS: Final = 10


class Detection(NamedTuple):
    """When lightkeeper decides, past all thresholds; None: never."""

    hang_s: float = HANG_S
    slow_s: float | None = SLOW_S


def detection(step_s: float, slowdown: float, stall_factor: float | None = None) -> Detection:
    """Measured with steps of 0.2 s, scaled to longer ones by the monitor's thresholds.

    A hang fires after `stall_factor` step times if that exceeds the floor; a straggler is measured
    in windows of `window_steps`, none longer than `window_limit_s`.
    """
    config = KeeperConfig()
    stall_s = (config.stall_factor if stall_factor is None else stall_factor) * step_s
    hang_s = HANG_S + max(0.0, stall_s - config.stall_floor_s)
    window_s = max(config.window_s, config.window_steps * step_s)
    if window_s > config.window_limit_s or slowdown < config.straggler_ratio:
        return Detection(hang_s, None)
    more_s = config.straggler_slow_windows * (window_s - config.window_s)
    return Detection(hang_s, SLOW_S + more_s)


def kept(name: str, detected: Detection, plain: Scenario, give_up_s: float) -> Handling:
    """With lightkeeper: hung and slow groups are evicted; the Lighthouse handles a crash.

    A hang not decided before the survivors give up ends the job, as without us. A straggler is
    evicted once it has cost what an eviction costs (ski rental), however soon it was found.
    """
    in_time = detected.hang_s + plain.times.evict_s < give_up_s
    hang = Response(detected.hang_s) if in_time else Response(give_up_s, takes_job=True)
    slow_s = detected.slow_s if plain.mix.drag > 0.0 else None
    if slow_s is not None:
        slow_s = max(slow_s, eviction(plain.times).fleet_s(plain) / plain.mix.drag)
    return Handling(name, Response(STOP_S), hang, Response(slow_s))


def ways(
    plain: Scenario,
    detections: Sequence[tuple[str, Detection]],
    give_up_s: float,
    false_per_day: float,
) -> list[Scenario]:
    """Without a keeper (no slow rank is found), with it by name, and the last of those again with
    false evictions.
    """
    watchdog, never = Response(WATCHDOG_S), Response(None)
    whole = [Response(after_s, takes_job=True) for after_s in (DETECT_S, WATCHDOG_S, give_up_s)]
    rows = [
        Handling("synchronous", whole[0], whole[1], never),
        Handling("FT, watchdog 10 min", Response(STOP_S), watchdog, never),
        Handling("TorchFT's timeouts", Response(STOP_S), whole[2], never),
        *(kept(name, detected, plain, give_up_s) for name, detected in detections),
    ]
    if false_per_day:
        name = f"+ {false_per_day:g} false a day"
        rows.append(replace(rows[-1], name=name, false_per_day=false_per_day))
    return [replace(plain, handling=row) for row in rows]
