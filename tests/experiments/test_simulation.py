"""The simulation against the closed forms, with fixed seeds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from experiments.goodput.forecast import (
    JobSize,
    Mix,
    RecoveryTimes,
    Scenario,
    ft_hsdp,
    poisson,
)
from experiments.goodput.simulation import Simulated, simulate
from tests.experiments.test_forecast import ALONE, JOB, KEPT, SYNC, scene


def run(scenario: Scenario, faults: int = 3000, seed: int = 1) -> Simulated:
    return simulate(scenario, random.Random(seed), faults)


@pytest.mark.parametrize(
    "scenario",
    [
        *(scenario for _, scenario in ft_hsdp()),
        scene(),
        scene(ALONE),
        scene(SYNC),
        scene(replace(KEPT, false_per_day=24.0)),
        scene(job=JobSize(80, 10, 600.0)),
    ],
    ids=["paper, synchronous", "paper, FT", "all kinds", "a hang takes the job", "synchronous",
         "false evictions", "a fault every ten minutes"],
)  # fmt: skip
def test_it_agrees_with_the_poisson_form_within_its_own_noise(scenario: Scenario) -> None:
    simulated = run(scenario)
    assert simulated.goodput == pytest.approx(
        poisson(scenario), abs=max(0.004, 2.0 * simulated.error)
    )


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert run(scene(), faults=200) == run(scene(), faults=200)
    assert run(scene(), faults=200) != run(scene(), faults=200, seed=2)


def test_without_faults_worth_the_name_all_time_is_training() -> None:
    nothing = scene(job=replace(JOB, mtbf_s=1e9), times=RecoveryTimes(), mix=Mix(stop=1.0))
    assert run(nothing, faults=20).goodput == pytest.approx(1.0, abs=1e-6)


def test_a_slow_rank_that_recovers_is_not_evicted() -> None:
    mix = Mix(stop=0.0, hang=0.0, slow=1.0, slow_lasts_s=1.0)
    simulated = run(scene(mix=mix), faults=500)  # found after 60 s: over by then
    assert (simulated.evictions, simulated.faults > 400) == (0, True)
