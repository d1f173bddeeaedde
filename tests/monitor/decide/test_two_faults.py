"""Two faults at once, a fault in a heal, in our own eviction, and after the wait for another."""

import random

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import incident_from_json, incident_to_json
from tests.deep import DEEP
from tests.monitor.fleet import Drive, SimFleet, at, crash, gil, hang, mismatch, restart, stop

QUICK = KeeperConfig(cool_down_s=0.0)


def accused(drive: Drive) -> set[tuple[str, str]]:
    return {
        (drive.seen[key].kind, group) for key in drive.fired for group in drive.seen[key].groups
    }


def committing(drive: Drive) -> bool:
    last_s = max(rank.committed_s or 0.0 for rank in drive.fleet.ranks())
    return drive.fleet.now_s - last_s < 5


def test_a_victim_that_went_on_and_dies_later_is_a_fault_of_its_own() -> None:
    """rg_0 is gone for good; rg_1 waited for it, committed again, and then crashed by itself."""
    drive = Drive(SimFleet(3, 1, [at(30, crash("rg_0.0")), at(60, crash("rg_1.0"))])).run(80)
    assert accused(drive) == {("dead", "rg_0"), ("dead", "rg_1")}


def test_a_victim_that_dies_waiting_is_none_also_when_the_monitor_restarts_meanwhile() -> None:
    script = [at(30, hang("rg_1.0")), at(90, crash("rg_0.0")), at(100, crash("rg_2.0"))]
    drive = Drive(SimFleet(4, 1, script), KeeperConfig(observe=True)).run(80)
    stored = [incident_from_json(incident_to_json(incident)) for incident in drive.seen.values()]
    drive.pipeline = Pipeline(drive.config, stored)
    drive.run(60)
    assert accused(drive) == {("not_entered", "rg_1")}


def test_a_group_that_is_gone_for_good_blocks_no_eviction_of_another() -> None:
    drive = Drive(SimFleet(4, 1, [at(30, crash("rg_3.0")), at(60, gil("rg_1.0"))])).run(95)
    assert drive.evicted() == ["rg_1"]
    assert committing(drive)


def test_the_only_other_group_is_back_and_waits_so_the_one_that_hangs_now_goes() -> None:
    script = [at(30, gil("rg_0.3")), at(39.8, gil("rg_1.3"))]
    drive = Drive(SimFleet(2, 4, script)).run(95)
    assert drive.evicted() == ["rg_0", "rg_1"]
    assert committing(drive)


def test_the_last_group_that_could_work_is_never_evicted() -> None:
    drive = Drive(SimFleet(2, 1, [at(30, stop("rg_1.0")), at(34, crash("rg_0.0"))])).run(95)
    assert not drive.evicts


@pytest.mark.parametrize("second_s", [0.0, 3.0, 8.0])
def test_two_groups_that_hang_near_each_other_are_both_named_and_nobody_else(second_s) -> None:
    script = [at(30, hang("rg_1.0")), at(30 + second_s, hang("rg_3.0", "data"))]
    drive = Drive(SimFleet(6, 1, script), QUICK).run(90)
    assert accused(drive) == {("not_entered", "rg_1"), ("not_entered", "rg_3")}
    assert sorted(drive.evicted()) == ["rg_1", "rg_3"]
    assert committing(drive)


@pytest.mark.parametrize("at_s", [33.0, 36.6, 38.0])
def test_a_hang_while_another_group_joins_and_heals_is_named_alone(at_s: float) -> None:
    script = [at(30, restart("rg_2")), at(at_s, hang("rg_1.0"))]
    drive = Drive(SimFleet(3, 2, script), QUICK).run(80)
    assert accused(drive) == {("not_entered", "rg_1")}
    assert drive.evicted() == ["rg_1"]


def test_a_crash_during_our_eviction_of_another_group_is_told_once() -> None:
    script = [at(30, hang("rg_1.0")), at(38.5, crash("rg_2.0"))]
    drive = Drive(SimFleet(3, 2, script), QUICK).run(80)
    assert accused(drive) == {("not_entered", "rg_1"), ("dead", "rg_2")}
    assert drive.evicted()[0] == "rg_1"
    assert drive.evicted().count("rg_1") == 1


FAULTS = {
    "hang": hang, "gil": gil, "stop": stop, "crash": crash, "mismatch": mismatch,
    "abort": lambda rank: mismatch(rank, "abort"), "extra": lambda rank: mismatch(rank, "extra"),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4 * DEEP))
def test_whatever_two_faults_strike_together_the_innocent_are_left_alone(seed: int) -> None:
    dice = random.Random(seed)
    groups, size = dice.choice([3, 4]), 2
    struck = dice.sample(range(groups), 2)
    names = [dice.choice(sorted(FAULTS)) for _ in struck]
    ranks = [f"rg_{g}.{dice.randrange(size)}" for g in struck]
    times = [30.0, 30.0 + dice.choice([0.0, 0.4, 2.0, 7.0, 9.5, 14.0])]
    script = [at(t, FAULTS[n](r)) for t, n, r in zip(times, names, ranks, strict=True)]
    drive = Drive(SimFleet(groups, size, script, noise=0.2, seed=seed), QUICK)
    for tick in range(80):
        drive.step()
        if tick == 30 + dice.randrange(20):
            incidents = list(drive.seen.values())
            drive.pipeline = Pipeline(QUICK, incidents, list(drive.fleet.evictions.values()))
    guilty = {f"rg_{g}" for g in struck}
    assert {group for _, group in accused(drive)} == guilty
    assert set(drive.evicted()) <= guilty
    for key in drive.fired:
        incident = drive.seen[key]
        if incident.verdict.confidence == "certain":
            assert set(incident.culprits) <= set(ranks)
