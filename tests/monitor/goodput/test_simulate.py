"""The simulation against the closed forms, with fixed seeds."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from monitor.goodput.cases import ft_hsdp
from monitor.goodput.formulas import poisson
from monitor.goodput.scenario import Job, Mix, Scenario, ScenarioError, Spares, Times
from tests.monitor.goodput.scenes import ALONE, JOB, KEPT, SYNC, scene
from tests.monitor.goodput.simulate import Simulated, simulate

FEW = Spares(2, 20 * 3600.0)


def run(scenario: Scenario, faults: int = 3000, seed: int = 1) -> Simulated:
    return simulate(scenario, random.Random(seed), faults)


@pytest.mark.parametrize(
    "scenario",
    [
        *(row.scenario for row in ft_hsdp()),
        scene(),
        scene(ALONE),
        scene(SYNC),
        scene(replace(KEPT, false_per_day=24.0)),
        scene(job=Job(80, 10, 600.0)),
    ],
    ids=["paper, synchronous", "paper, FT", "all kinds", "a hang takes the job", "synchronous",
         "false evictions", "a fault every ten minutes"],
)  # fmt: skip
def test_it_agrees_with_the_poisson_form_within_its_own_noise(scenario: Scenario) -> None:
    found = run(scenario)
    assert found.goodput == pytest.approx(poisson(scenario), abs=max(0.004, 2.0 * found.error))


def test_it_agrees_roughly_where_groups_wait_for_spares() -> None:
    found = run(scene(spares=FEW))
    assert found.waited_s > 0.0
    assert found.goodput == pytest.approx(poisson(scene(spares=FEW)), abs=0.03)


def test_the_same_seed_gives_the_same_numbers() -> None:
    assert run(scene(), faults=200) == run(scene(), faults=200)
    assert run(scene(), faults=200) != run(scene(), faults=200, seed=2)


def test_without_faults_worth_the_name_all_time_is_training() -> None:
    nothing = scene(job=replace(JOB, mtbf_s=1e9), times=Times(), mix=Mix(stop=1.0))
    assert run(nothing, faults=20).goodput == pytest.approx(1.0, abs=1e-6)


def test_more_spares_never_train_less() -> None:
    shares = [
        run(scene(spares=Spares(hosts, 20 * 3600.0)), faults=1000).goodput for hosts in (0, 10, 40)
    ]
    assert shares == sorted(shares)


def test_a_synchronous_job_without_a_spare_stands_until_a_host_is_repaired() -> None:
    only = replace(scene(SYNC, mix=Mix(stop=1.0), spares=Spares(0, 3600.0)))
    # up only if no fault came within a minute to detect, an hour to repair and nine minutes
    assert run(only).goodput == pytest.approx(2.718281828 ** (-(60 + 3600 + 540) / 3600), abs=0.03)


def test_a_slow_rank_that_recovers_is_not_evicted() -> None:
    mix = Mix(stop=0.0, hang=0.0, slow=1.0, slow_lasts_s=1.0)
    found = run(scene(mix=mix), faults=500)  # found after 60 s: over by then
    assert (found.evictions, found.faults > 400) == (0, True)


@pytest.mark.parametrize("faults", [0, 19, 1_000_001])
def test_too_short_or_too_long_is_refused(faults: int) -> None:
    with pytest.raises(ScenarioError, match=f"faults is {faults}, expected 20 to 1000000"):
        run(scene(), faults=faults)
