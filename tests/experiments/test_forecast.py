"""The closed forms against numbers reckoned by hand, and what must hold for any numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.goodput.__main__ import main, scenarios
from experiments.goodput.forecast import (
    HANG_S,
    KINDS,
    SLOW_S,
    STOP_S,
    Detection,
    Handling,
    JobSize,
    Mix,
    RecoveryTimes,
    Response,
    Scenario,
    detection,
    eviction,
    ft_hsdp,
    kept,
    linear,
    mean_toll,
    poisson,
    toll,
)
from experiments.goodput.forecast import MIX as USUAL_MIX
from experiments.goodput.forecast import TIMES as USUAL_TIMES
from tests.changed import replace

ROOT = Path(__file__).resolve().parents[2]
CAMPAIGN = ROOT / "evidence" / "campaign.jsonl"
STOPS = Mix(stop=1.0)
JOB = JobSize(ranks=80, groups=10, mtbf_s=3600.0)
TIMES = RecoveryTimes(
    evict_s=1.0, requorum_s=5.0, restart_s=200.0, heal_s=20.0, first_step_s=30.0,
    job_restart_s=540.0, step_s=10.0,
)  # fmt: skip
MIX = Mix(stop=0.7, hang=0.2, slow=0.1, slowdown=2.0, slow_lasts_s=1200.0)
KEPT = Handling("kept", Response(2.0), Response(10.0), Response(60.0))
ALONE = Handling("alone", Response(2.0), Response(125.0, takes_job=True), Response(None))
SYNC = Handling(
    "synchronous", Response(60.0, takes_job=True), Response(60.0, takes_job=True), Response(None)
)


def scene(
    handling: Handling = KEPT, *, job: JobSize = JOB, mix: Mix = MIX, times: RecoveryTimes = TIMES
) -> Scenario:
    return Scenario(job, mix, times, handling)


# -- the published case ---------------------------------------------------------------------------


def test_the_published_rows_come_out_within_half_a_point() -> None:
    assert [published for published, _ in ft_hsdp()] == [0.44, 0.80]
    for published, scenario in ft_hsdp():
        assert linear(scenario) == pytest.approx(published, abs=0.005)


def test_the_published_stalls_are_ten_and_three_minutes() -> None:
    assert [toll(scenario, "stop").stall_s for _, scenario in ft_hsdp()] == [600.0, 180.0]


def test_both_arithmetics_of_the_published_case_by_hand() -> None:
    whole, group = (scenario for _, scenario in ft_hsdp())
    assert linear(whole) == pytest.approx((18 - 10) / 18)
    assert linear(group) == pytest.approx((8 + 7 * 11 / 12) / 18)
    assert poisson(whole) == pytest.approx(math.exp(-10 / 18))
    present = 1 / (1 + 8 / (18 * 12))  # away for eight minutes, in which it cannot fail
    assert poisson(group) == pytest.approx(math.exp(-3 / 18 * present) / (1 + 7 / (18 * 12)))


# -- one fault ------------------------------------------------------------------------------------


def test_a_hang_stalls_for_detecting_evicting_a_quorum_half_a_step_and_the_return() -> None:
    cost = toll(scene(), "hang")
    assert cost.stall_s == 10 + 1 + 5 + 5 + 30
    assert cost.missing_s == 200 + 20 - 5 - 5  # while the others already train
    assert cost.out_s == 10 + 1 + 220
    assert cost.fleet_s(scene()) == 51 + 210 / 10


def test_a_fail_stop_needs_no_eviction() -> None:
    assert toll(scene(), "stop").stall_s == 2 + 5 + 5 + 30


def test_a_slow_rank_that_is_found_costs_its_pace_until_then_and_an_eviction_if_still_slow() -> (
    None
):
    cost, still = toll(scene(), "slow"), math.exp(-60 / 1200)
    assert cost.dragged_s == pytest.approx(1200 * (1 - still))
    assert cost.stall_s == pytest.approx(still * (1 + 5 + 5 + 30))
    assert cost.missing_s == pytest.approx(still * 210)


def test_a_slow_rank_that_nobody_finds_drags_as_long_as_it_is_slow() -> None:
    cost = toll(scene(ALONE), "slow")
    assert (cost.dragged_s, cost.stall_s, cost.missing_s) == (1200.0, 0.0, 0.0)


def test_a_hang_that_takes_the_job_costs_the_whole_restart() -> None:
    assert toll(scene(ALONE), "hang").fleet_s(scene()) == 125 + 540


def test_the_linear_form_adds_up_what_faults_and_false_evictions_take() -> None:
    hour = 0.7 * (42 + 21) + 0.2 * (51 + 21)
    still = math.exp(-0.05)
    hour += 0.1 * (0.5 * 1200 * (1 - still) + still * (41 + 21))
    assert linear(scene()) == pytest.approx(1 - hour / 3600)
    false = replace(KEPT, false_per_day=24.0)
    assert linear(scene(false)) == pytest.approx(1 - (hour + 62) / 3600)


def test_the_linear_form_ends_at_nothing() -> None:
    assert linear(scene(SYNC, job=JobSize(80, 10, 60.0))) == 0.0


def test_a_group_that_is_back_before_the_others_train_is_not_missing() -> None:
    quick = replace(scene().times, restart_s=1.0, heal_s=1.0)
    assert toll(scene(times=quick), "hang").missing_s == 0.0


# -- evicting a straggler -------------------------------------------------------------------------


def test_a_straggler_goes_once_it_has_cost_what_its_eviction_will() -> None:
    assert eviction(TIMES).fleet_s(scene()) == 41 + 21
    assert kept("", Detection(slow_s=1.0), scene(), 125.0).slow.after_s == 124.0
    assert kept("", Detection(slow_s=200.0), scene(), 125.0).slow.after_s == 200.0


def test_who_slows_nobody_never_goes() -> None:
    plain = scene(mix=replace(MIX, slowdown=1.0))
    assert kept("", Detection(), plain, 125.0).slow.after_s is None


# -- lightkeeper's thresholds ---------------------------------------------------------------------


def test_what_was_measured_holds_for_short_steps() -> None:
    assert detection(0.2, 2.0) == Detection(HANG_S, SLOW_S)


def test_long_steps_are_waited_for_by_the_monitors_own_rules() -> None:
    assert detection(20.0, 2.0) == Detection(HANG_S + 195.0, SLOW_S + 4 * 55.0)
    assert detection(20.0, 2.0, 3.0).hang_s == HANG_S + 55.0


@pytest.mark.parametrize(("step_s", "slowdown"), [(45.0, 2.0), (1.0, 1.34)])
def test_a_slow_rank_that_no_window_shows_is_never_found(step_s: float, slowdown: float) -> None:
    assert detection(step_s, slowdown).slow_s is None


def test_a_hang_that_is_decided_after_the_survivors_gave_up_takes_the_job() -> None:
    plain = scene(mix=USUAL_MIX, times=USUAL_TIMES)
    assert kept("", Detection(124.8), plain, 125.0).hang == Response(125.0, takes_job=True)
    assert kept("", Detection(124.0), plain, 125.0).hang == Response(124.0)


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
    medians = {name: median(said) for name, said in firing_s.items()}
    assert medians["hang"] == pytest.approx(HANG_S, rel=0.05)
    assert medians["slow"] == pytest.approx(SLOW_S, rel=0.05)
    assert medians["crash"] == pytest.approx(STOP_S + USUAL_TIMES.requorum_s, rel=0.05)
    assert medians["after"] == pytest.approx(USUAL_TIMES.evict_s + USUAL_TIMES.requorum_s, rel=0.05)


# -- for any numbers ------------------------------------------------------------------------------

SECONDS = st.floats(0.0, 1000.0)


@given(
    mtbf_s=st.floats(30.0, 1e6), hang_s=SECONDS, more_s=SECONDS, slow_s=SECONDS,
    false=st.floats(0.0, 100.0),
)  # fmt: skip
def test_goodput_is_a_share_and_nothing_that_takes_longer_raises_it(
    mtbf_s: float, hang_s: float, more_s: float, slow_s: float, false: float
) -> None:
    def at(hang: float, mtbf: float, mistakes: float) -> tuple[float, float]:
        handling = replace(KEPT, hang=Response(hang), slow=Response(slow_s), false_per_day=mistakes)
        scenario = scene(handling, job=replace(JOB, mtbf_s=mtbf))
        return linear(scenario), poisson(scenario)

    base = at(hang_s, mtbf_s, false)
    assert all(0.0 <= share <= 1.0 for share in base)
    for worse in (
        at(hang_s + more_s, mtbf_s, false),
        at(hang_s, max(1.0, mtbf_s / 2.0), false) if mtbf_s > 3600.0 else base,
        at(hang_s, mtbf_s, false + 1.0) if mtbf_s > 3600.0 else base,
    ):
        assert all(now <= before + 1e-9 for now, before in zip(worse, base, strict=True))
    assert base[1] >= base[0] - 1e-9  # overlapping faults cost less


def test_faults_of_all_kinds_are_weighed_by_their_share() -> None:
    stalls = [toll(scene(), kind).stall_s * getattr(MIX, kind) for kind in KINDS]
    assert mean_toll(scene()).stall_s == pytest.approx(sum(stalls))
    assert mean_toll(scene(mix=STOPS)) == toll(scene(), "stop")


# -- the command ----------------------------------------------------------------------------------


def test_the_figures_on_the_page_are_what_the_command_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (ROOT / "evidence" / "measurements.md").read_text()
    assert main(["--ranks", "1000", "10000", "50000", "100000"]) == 0
    rows = capsys.readouterr().out.splitlines()[2:]
    shares = [" | ".join(row.strip("| ").split(" | ")[2:]) for row in rows if row]
    assert len(shares) == 4
    assert all(share in page for share in shares)
    assert main(["--case", "ft-hsdp"]) == 0
    for row in capsys.readouterr().out.splitlines()[2:4]:
        closed = " | ".join(cell.replace("%", " %") for cell in row.split(" | ")[2:4])
        assert closed in page


def test_a_job_is_forecast_in_every_way_to_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--ranks", "16384", "--groups", "8", "--mtbf", "3h"]) == 0
    said = capsys.readouterr().out
    assert "16,384 ranks in 8 groups, a fault every 3 h" in said
    assert "| lightkeeper, as measured | 98.2" in said
    *_, slow, soon, false = scenarios(JobSize(64, 8, 3600.0), step_s=1.0)
    assert slow.handling.hang == Response(HANG_S + 5.0)
    assert (soon.handling.hang, false.handling.false_per_day) == (Response(HANG_S), 1.0)


@pytest.mark.parametrize("words", ["--ranks 1023", "--ranks 8 --groups 1", "--mtbf soon"])
def test_a_wrong_order_is_refused(words: str) -> None:
    with pytest.raises(SystemExit):
        main(words.split())
