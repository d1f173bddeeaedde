"""Slow ranks: busy when the others wait."""

import pytest

from monitor.config import KeeperConfig
from monitor.policy import Guard
from tests.monitor.fleet import Drive, SimFleet, at, cpu_stall, pause, restart, slow


def test_a_rank_three_times_slower_fires_after_four_windows_and_goes_once_it_cost_15_s() -> None:
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))])).run(120)
    incident = drive.incident("straggler")
    assert incident.culprits == ("rg_1.0",)
    assert drive.fired[incident.id] == 60.0
    assert drive.evicted() == ["rg_1"]
    assert drive.evicts[0][1].quarantine == ("host-rg_1",)


def test_it_is_not_worth_it_before_it_cost_more_than_an_eviction() -> None:
    config = KeeperConfig(eviction_cost_s=30.0)
    drive = Drive(SimFleet(3, 1, [at(40, slow("rg_1.0", 3.0))]), config).run(120)
    assert drive.holds[0][1].guard is Guard.NOT_WORTH_IT
    assert drive.evicts[0][0] > drive.fired[drive.incident("straggler").id]
    assert drive.incident("straggler").verdict.lost_s > 30.0


def test_within_a_group_the_rank_is_named_whose_peers_wait_inside_collectives() -> None:
    drive = Drive(SimFleet(2, 2, [at(40, slow("rg_1.1", 3.0))])).run(100)
    assert drive.incident("straggler").culprits == ("rg_1.1",)


def test_a_slow_rank_from_the_beginning_needs_persistence_in_a_small_cohort() -> None:
    drive = Drive(SimFleet(3, 1, [at(0, slow("rg_1.0", 3.0))])).run(120)
    incident = drive.incident("straggler")
    assert drive.fired[incident.id] >= 8 * 5


@pytest.mark.parametrize("groups", [2, 3, 6])
def test_milder_slowness_than_the_ratio_is_no_fault(groups) -> None:
    drive = Drive(SimFleet(groups, 1, [at(40, slow("rg_1.0", 1.3))], noise=0.1)).run(200)
    assert not drive.seen


def test_a_process_descheduled_again_and_again_is_no_straggler() -> None:
    script = [at(20 + 7 * n, cpu_stall("rg_1.0", 2.5)) for n in range(40)]
    drive = Drive(SimFleet(3, 1, script)).run(300)
    assert not drive.seen


def test_checkpoints_of_one_group_do_not_make_it_a_straggler() -> None:
    script = [at(20 + 20 * n, pause(["rg_0.0"], "checkpoint", 8.0)) for n in range(10)]
    drive = Drive(SimFleet(3, 1, script)).run(250)
    assert not drive.seen


def test_nobody_is_called_slow_while_a_group_starts() -> None:
    script = [at(30, restart("rg_2", start_s=40.0)), at(31, slow("rg_1.0", 3.0))]
    drive = Drive(SimFleet(3, 1, script)).run(86)
    assert not [i for i in drive.seen.values() if i.kind == "straggler"]


def test_a_rank_that_is_fast_again_keeps_pace_again() -> None:
    script = [at(40, slow("rg_1.0", 3.0)), at(80, slow("rg_1.0", 1.0))]
    drive = Drive(SimFleet(3, 1, script), KeeperConfig(observe=True)).run(200)
    assert drive.incident("straggler").resolution == "keeps pace again"
