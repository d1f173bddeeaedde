"""The published case, times that were measured, and the ways to run a job that are compared. Pure.

Every number here bears its source. docs/goodput.md repeats them and says what they are worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from monitor.config import KeeperConfig
from monitor.goodput.formulas import eviction_cost_s, ski_rental_s
from monitor.goodput.scenario import (
    Handling,
    Job,
    Mix,
    Response,
    Scenario,
    Spares,
    Times,
)

# -- FT-HSDP (arXiv 2602.00277) -----------------------------------------------------------------
FT_HSDP_JOB: Final = Job(ranks=98_304, groups=12, mtbf_s=18 * 60.0)
"""12 groups of 8,192 GPUs, a failure about every 18 minutes."""
FT_HSDP_DETECT_S: Final = 60.0
FT_HSDP_FIRST_STEP_S: Final = 120.0
"""Of the three minutes that all stand after a failure, what the group's return takes."""
FT_HSDP_AWAY_S: Final = 420.0
"""A group is away for ten minutes, three of which all stand."""
FT_HSDP_JOB_RESTART_S: Final = 540.0
"""A synchronous job recovers in ten minutes, the time to detect included."""
RANK_MTBF_H: Final = FT_HSDP_JOB.rank_mtbf_h
"""29,491 GPU-hours a fault. Llama 3 had 419 in 54 days on 16,384 GPUs: 50,676."""

# -- measured here, on fleets of three groups of one rank and two of two, on CPU ----------------
HANG_S: Final = 8.8
"""From a hang until it fires: median of the 140 runs of classes `stop`, `gil` and `hang-*` in
docs/campaign.jsonl; the 95th percentile is 33.5 s (phases that nobody declared)."""
SLOW_S: Final = 26.2
"""The same for the 40 runs of `slow-compute` and `slow-data`."""
STOP_S: Final = 0.6
"""A crash: the survivors commit 6.0 s after it (median of the 60 runs of `crash`, `segfault`,
`abort`); the Lighthouse forgets the heartbeat by itself, nobody evicts. Less `REQUORUM_S`."""
EVICT_S: Final = 0.5
"""From the decision until the group's processes are gone: 0.3 to 0.8 s in nine evictions on real
fleets with the gate (`make matrix`)."""
REQUORUM_S: Final = 5.4
"""From then until the survivors commit: 5.9 s after asking (median of 140), less `EVICT_S`. Five of
them are the Lighthouse's `heartbeat_timeout_ms`."""
TORCHFT_LOST_S: Final = 125.0
"""TorchFT's defaults (60 s everywhere): after a hang the survivors crash, and the job with them;
measured 122 to 135 s."""

# -- assumed ------------------------------------------------------------------------------------
WATCHDOG_S: Final = 600.0
"""torch's default timeout of an NCCL process group: then the hung group ends itself."""
STEP_S: Final = 20.0
"""A step at 98,304 GPUs (FT-HSDP)."""
STALL_FACTOR: Final = 3.0
"""What a job with steps of 20 s may set: 60 s, as long as FT-HSDP waits. The default of 10 step
times, 200 s, is later than TorchFT gives up."""
MEASURED_STEP_S: Final = 0.2
"""A step of the fleets on which we measured."""
MIX: Final = Mix(stop=0.83, hang=0.12, slow=0.05)
"""12 %: the implicit failures among ByteRobust's incidents (5,948 of 49,212, arXiv 2509.16293). The
5 % of slow ranks, twice as slow, are a guess; for 24 minutes: Greyhound's mean of slow
communication (USENIX ATC '25), of slow computation it is 10."""
GROUPS: Final = 10

TIMES: Final = Times(
    evict_s=EVICT_S,
    requorum_s=REQUORUM_S,
    restart_s=FT_HSDP_AWAY_S - STEP_S,
    heal_s=STEP_S,
    first_step_s=FT_HSDP_FIRST_STEP_S,
    job_restart_s=FT_HSDP_JOB_RESTART_S,
    step_s=STEP_S,
)
"""Ours where the keeper has a hand in it, FT-HSDP's elsewhere: a restart of our fleets (17 to 20 s)
says nothing about 8,192 GPUs."""


@dataclass(frozen=True, slots=True)
class Published:
    """A row that somebody published, and ours for it."""

    name: str
    goodput: float
    scenario: Scenario


def ft_hsdp() -> tuple[Published, ...]:
    """The rows of FT-HSDP's abstract: stall 10 to 3 minutes, 44 % to 80 %."""
    times = Times(
        restart_s=FT_HSDP_AWAY_S - STEP_S,
        heal_s=STEP_S,
        first_step_s=FT_HSDP_FIRST_STEP_S,
        job_restart_s=FT_HSDP_JOB_RESTART_S,
    )  # its three minutes hold the step that is done again
    whole = Response(FT_HSDP_DETECT_S, takes_job=True)
    group, never = Response(FT_HSDP_DETECT_S), Response(None)
    rows = (
        ("synchronous", 0.44, Handling("synchronous", whole, whole, never)),
        ("FT-HSDP", 0.80, Handling("FT-HSDP", group, group, never)),
    )
    return tuple(
        Published(name, told, Scenario(FT_HSDP_JOB, Mix(), times, handling))
        for name, told, handling in rows
    )


@dataclass(frozen=True, slots=True)
class Detection:
    """How soon lightkeeper decides, once all thresholds are passed."""

    hang_s: float = HANG_S
    slow_s: float | None = SLOW_S


def detection(step_s: float, slowdown: float, stall_factor: float | None = None) -> Detection:
    """What was measured with steps of 0.2 s, by the monitor's own thresholds for longer ones.

    A hang fires after `stall_factor` step times where that is more than the floor; a straggler is
    looked at in windows of `window_steps`, none of which may last longer than `window_limit_s`.
    """
    terms = KeeperConfig()
    factor = terms.stall_factor if stall_factor is None else stall_factor
    more_s = max(0.0, factor * step_s - terms.stall_floor_s)
    window_s = max(terms.window_s, terms.window_steps * step_s)
    slow_s: float | None = SLOW_S + terms.straggler_slow_windows * (window_s - terms.window_s)
    if window_s > terms.window_limit_s or slowdown < terms.straggler_ratio:
        slow_s = None
    return Detection(HANG_S + more_s, slow_s)


def lightkeeper(
    name: str,
    found: Detection,
    *,
    job: Job,
    mix: Mix,
    times: Times,
    give_up_s: float = TORCHFT_LOST_S,
    false_per_day: float = 0.0,
) -> Handling:
    """Groups that hang or are slow are evicted; a crash is the Lighthouse's own.

    A hang that is not decided before the survivors give up takes the job, as without us. A
    straggler goes once it has cost what an eviction costs, however soon it was found.
    """
    in_time = found.hang_s + times.evict_s < give_up_s
    hang = Response(found.hang_s) if in_time else Response(give_up_s, takes_job=True)
    handling = Handling(name, Response(STOP_S), hang, Response(None), false_per_day)
    rented_s = ski_rental_s(eviction_cost_s(Scenario(job, mix, times, handling)), mix.drag)
    if found.slow_s is None or rented_s is None:
        return handling
    slow = Response(max(found.slow_s, rented_s))
    return Handling(name, handling.stop, handling.hang, slow, false_per_day)


def without(give_up_s: float = TORCHFT_LOST_S) -> tuple[Handling, ...]:
    """How jobs run without a keeper; nobody sees a slow rank."""
    never = Response(None)
    return (
        Handling(
            "synchronous",
            Response(FT_HSDP_DETECT_S, takes_job=True),
            Response(WATCHDOG_S, takes_job=True),
            never,
        ),
        Handling("FT, watchdog 10 min", Response(STOP_S), Response(WATCHDOG_S), never),
        Handling(
            "TorchFT's timeouts",
            Response(STOP_S),
            Response(give_up_s, takes_job=True),
            never,
        ),
    )


def ways(
    job: Job,
    *,
    mix: Mix,
    times: Times,
    spares: Spares,
    kept: Sequence[tuple[str, Detection]],
    give_up_s: float,
    false_per_day: float,
) -> tuple[Scenario, ...]:
    """The ways that are compared: without a keeper, with it (by name), the last of those with
    false evictions.
    """
    rows = [(name, detected, 0.0) for name, detected in kept]
    if false_per_day != 0.0:  # a negative one is refused below
        rows.append((f"+ {false_per_day:g} false a day", kept[-1][1], false_per_day))
    found = [
        lightkeeper(
            name, detected, job=job, mix=mix, times=times, give_up_s=give_up_s, false_per_day=false
        )
        for name, detected, false in rows
    ]
    return tuple(Scenario(job, mix, times, one, spares) for one in (*without(give_up_s), *found))
