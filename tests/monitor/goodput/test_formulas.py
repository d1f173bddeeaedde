"""The closed forms against numbers reckoned by hand, and what must hold for any numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.goodput.cases import (
    HANG_S,
    MIX,
    REQUORUM_S,
    SLOW_S,
    STOP_S,
    TIMES,
    Detection,
    detection,
    ft_hsdp,
    lightkeeper,
)
from monitor.goodput.formulas import (
    break_even_precision,
    eviction_cost_s,
    excess,
    linear,
    mean_toll,
    poisson,
    ski_rental_s,
    toll,
)
from monitor.goodput.scenario import (
    FaultKind,
    Handling,
    Job,
    Mix,
    Response,
    ScenarioError,
    Spares,
    Times,
)
from tests.monitor.goodput.scenes import ALONE, JOB, KEPT, SYNC, scene

CAMPAIGN = Path(__file__).resolve().parents[3] / "docs/campaign.jsonl"
STOPS = Mix(stop=1.0)


# -- the published case ---------------------------------------------------------------------------


def test_the_published_rows_come_out_within_three_points() -> None:
    assert [(row.name, row.goodput) for row in ft_hsdp()] == [
        ("synchronous", 0.44), ("FT-HSDP", 0.80),
    ]  # fmt: skip
    for row in ft_hsdp():
        assert linear(row.scenario) == pytest.approx(row.goodput, abs=0.03)


def test_the_published_stalls_are_ten_and_three_minutes() -> None:
    stalls_s = [toll(row.scenario, FaultKind.STOP).stall_s for row in ft_hsdp()]
    assert stalls_s == [600.0, 180.0]


def test_both_arithmetics_of_the_published_case_by_hand() -> None:
    whole, group = (row.scenario for row in ft_hsdp())
    assert linear(whole) == pytest.approx((18 - 10) / 18)
    assert linear(group) == pytest.approx((8 + 7 * 11 / 12) / 18)
    assert poisson(whole) == pytest.approx(math.exp(-10 / 18))
    present = 1 / (1 + 8 / (18 * 12))  # away for eight minutes, in which it cannot fail
    assert poisson(group) == pytest.approx(math.exp(-3 / 18 * present) / (1 + 7 / (18 * 12)))


# -- one fault ------------------------------------------------------------------------------------


def test_a_hang_stalls_for_detecting_evicting_a_quorum_half_a_step_and_the_return() -> None:
    found = toll(scene(), FaultKind.HANG)
    assert found.stall_s == 10 + 1 + 5 + 5 + 30
    assert found.missing_s == 200 + 20 - 5 - 5  # while the others already train
    assert found.out_s == 10 + 1 + 220
    assert found.fleet_s(10, 0.5) == 51 + 210 / 10


def test_a_fail_stop_needs_no_eviction() -> None:
    assert toll(scene(), FaultKind.STOP).stall_s == 2 + 5 + 5 + 30


def test_a_slow_rank_that_is_found_costs_its_pace_until_then_and_an_eviction_if_still_slow() -> (
    None
):
    found, still = toll(scene(), FaultKind.SLOW), math.exp(-60 / 1200)
    assert found.dragged_s == pytest.approx(1200 * (1 - still))
    assert found.stall_s == pytest.approx(still * (1 + 5 + 5 + 30))
    assert found.evictions == pytest.approx(still)


def test_a_slow_rank_that_nobody_finds_drags_as_long_as_it_is_slow() -> None:
    found = toll(scene(ALONE), FaultKind.SLOW)
    assert (found.dragged_s, found.stall_s, found.missing_s) == (1200.0, 0.0, 0.0)


def test_a_hang_that_takes_the_job_costs_the_whole_restart() -> None:
    assert toll(scene(ALONE), FaultKind.HANG).fleet_s(10, 0.5) == 125 + 540


def test_the_linear_form_adds_up_what_faults_and_false_evictions_take() -> None:
    hour = 0.7 * (42 + 21) + 0.2 * (51 + 21)
    still = math.exp(-0.05)
    hour += 0.1 * (0.5 * 1200 * (1 - still) + still * (41 + 21))
    assert linear(scene()) == pytest.approx(1 - hour / 3600)
    false = replace(KEPT, false_per_day=24.0)
    assert linear(scene(false)) == pytest.approx(1 - (hour + 62) / 3600)


def test_the_linear_form_ends_at_nothing() -> None:
    assert linear(scene(SYNC, job=Job(80, 10, 60.0))) == 0.0


def test_a_group_that_is_back_before_the_others_train_is_not_missing() -> None:
    quick = replace(scene().times, restart_s=1.0, heal_s=1.0)
    assert toll(scene(times=quick), FaultKind.HANG).missing_s == 0.0


# -- evicting a straggler -------------------------------------------------------------------------


def test_break_even_is_what_an_eviction_costs_over_what_a_slow_rank_would_have() -> None:
    assert eviction_cost_s(scene()) == 41 + 21
    assert break_even_precision(scene()) == pytest.approx(62 / (0.5 * 1200))


@pytest.mark.parametrize(
    "mix",
    [replace(MIX, slow_lasts_s=60.0), replace(MIX, slowdown=1.0)],
    ids=["over in a minute", "not slower"],
)
def test_an_eviction_that_cannot_gain_has_no_break_even(mix: Mix) -> None:
    assert break_even_precision(scene(mix=mix)) is None


def test_a_straggler_goes_once_it_has_cost_what_its_eviction_will() -> None:
    assert ski_rental_s(60.0, 0.5) == 120.0
    assert ski_rental_s(60.0, 0.0) is None


# -- spares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [0.3, 3.0, 80.0])
def test_groups_without_a_host_are_what_lies_beyond_the_spares(mean: float) -> None:
    assert excess(mean, 0) == pytest.approx(mean)
    first = math.exp(-mean)
    assert excess(mean, 1) == pytest.approx(mean - (1 - first))  # E[(N-1)+] = E[N] - P(N>0)
    assert excess(mean, 1000) == 0.0


def test_spares_do_not_matter_where_there_are_enough() -> None:
    assert poisson(scene(spares=Spares(500))) == poisson(scene())


# -- lightkeeper's thresholds ---------------------------------------------------------------------


def test_what_was_measured_holds_for_short_steps() -> None:
    assert detection(0.2, 2.0) == Detection(HANG_S, SLOW_S)


def test_long_steps_are_waited_for_by_the_monitors_own_rules() -> None:
    assert detection(20.0, 2.0) == Detection(HANG_S + 195.0, SLOW_S + 4 * 55.0)
    assert detection(20.0, 2.0, stall_factor=3.0).hang_s == HANG_S + 55.0


@pytest.mark.parametrize(("step_s", "slowdown"), [(45.0, 2.0), (1.0, 1.34)])
def test_a_slow_rank_that_no_window_shows_is_never_found(step_s: float, slowdown: float) -> None:
    assert detection(step_s, slowdown).slow_s is None


def test_a_hang_that_is_decided_after_the_survivors_gave_up_takes_the_job() -> None:
    late = lightkeeper("late", Detection(hang_s=124.8), job=JOB, mix=MIX, times=TIMES)
    assert late.hang == Response(125.0, takes_job=True)
    soon = lightkeeper("soon", Detection(hang_s=124.0), job=JOB, mix=MIX, times=TIMES)
    assert soon.hang == Response(124.0)


def test_the_times_are_the_medians_of_the_committed_campaign() -> None:
    lines = CAMPAIGN.read_text().splitlines()
    latest = {row["key"]: row for row in map(json.loads, lines)}  # the last run counts
    firing_s: dict[str, list[float]] = {"hang": [], "slow": [], "crash": [], "after": []}
    for row in latest.values():
        name = row["class"]
        if name in ("stop", "gil") or name.startswith("hang-"):
            firing_s["hang"].append(row["to_firing"])
            firing_s["after"].append(row["to_survivor_commit"] - row["to_evict_asked"])
        if name in ("slow-compute", "slow-data"):
            firing_s["slow"].append(row["to_firing"])
        if name in ("crash", "segfault", "abort"):
            firing_s["crash"].append(row["to_survivor_commit"])
    found = {name: median(said) for name, said in firing_s.items()}
    assert found["hang"] == pytest.approx(HANG_S, rel=0.05)
    assert found["slow"] == pytest.approx(SLOW_S, rel=0.05)
    assert found["crash"] == pytest.approx(STOP_S + REQUORUM_S, rel=0.05)
    assert found["after"] == pytest.approx(TIMES.evict_s + TIMES.requorum_s, rel=0.05)


# -- numbers that make no sense -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: Job(1023, 10, 60.0), "1023 ranks cannot be 10 groups of one size"),
        (lambda: Job(8, 1, 60.0), "groups is 1, expected 2 to 8"),
        (lambda: Job(8, 2, math.nan), "mtbf_s is nan, expected 1 to 1e+09"),
        (lambda: Mix(0.5, 0.5, 0.5), "the shares of stop, hang and slow add up to 1.5, expected 1"),
        (lambda: Mix(slowdown=0.5), "slowdown is 0.5, expected 1 to 1000"),
        (lambda: Times(heal_s=-1.0), "heal_s is -1, expected 0 to 1e+09"),
        (lambda: Response(-1.0), "the time to detect is -1, expected 0 to 1e+09"),
        (lambda: Spares(-1), "spares is -1, expected 0 to 1e+07"),
        (
            lambda: Handling("x", Response(1.0), Response(None), Response(None)),
            "hang is never noticed: then the job ends with the first",
        ),
    ],
)
def test_nonsense_is_refused_in_one_line(make: object, line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        make()  # type: ignore[operator]
    assert str(caught.value) == line


# -- for any numbers ------------------------------------------------------------------------------

SECONDS = st.floats(0.0, 1000.0)


@given(
    mtbf_s=st.floats(30.0, 1e6), hang_s=SECONDS, more_s=SECONDS, slow_s=SECONDS,
    hosts=st.none() | st.integers(0, 20), false=st.floats(0.0, 100.0),
)  # fmt: skip
def test_goodput_is_a_share_and_nothing_that_takes_longer_raises_it(
    mtbf_s: float, hang_s: float, more_s: float, slow_s: float, hosts: int | None, false: float
) -> None:
    def at(hang: float, mtbf: float, mistakes: float) -> tuple[float, float]:
        handling = replace(KEPT, hang=Response(hang), slow=Response(slow_s), false_per_day=mistakes)
        one = scene(handling, job=replace(JOB, mtbf_s=mtbf), spares=Spares(hosts))
        return linear(one), poisson(one)

    base = at(hang_s, mtbf_s, false)
    assert all(0.0 <= share <= 1.0 for share in base)
    enough = hosts is None  # who waits for a host cannot fail: with few spares it is not monotone
    for worse in (
        at(hang_s + more_s, mtbf_s, false) if enough else base,
        at(hang_s, max(1.0, mtbf_s / 2.0), false) if enough and mtbf_s > 3600.0 else base,
        at(hang_s, mtbf_s, false + 1.0) if enough and mtbf_s > 3600.0 else base,
    ):
        assert all(now <= before + 1e-9 for now, before in zip(worse, base, strict=True))
    assert base[1] >= base[0] - 1e-9 or not enough  # overlapping faults cost less


def test_faults_of_all_kinds_are_weighed_by_their_share() -> None:
    found = [toll(scene(), kind).stall_s * scene().mix.share(kind) for kind in FaultKind]
    assert mean_toll(scene()).stall_s == pytest.approx(sum(found))
    assert mean_toll(scene(mix=STOPS)) == toll(scene(), FaultKind.STOP)
