"""The Lighthouse is down during the incident: who is evicted all the same, and who never is."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE, LighthouseAway, Snapshot
from tests.changed import replace
from tests.deep import crossed
from tests.monitor.fleet import (
    Drive,
    Fault,
    SimFleet,
    at,
    crash,
    fail_commits,
    gil,
    hang,
    lighthouse_away,
    lighthouse_down,
    lighthouse_restart,
    mismatch,
    pause,
    silent,
    slow,
    stop,
)

FAULTS: dict[str, Fault] = {
    "hang": hang("rg_1.1"),
    "hang in the optimizer": hang("rg_1.0", "optimizer"),
    "gil": gil("rg_1.1"),
    "stop": stop("rg_1.0"),
    "crash": crash("rg_1.1"),
    "mismatch": mismatch("rg_1.1", "size"),
}


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize(("name", "before_s"), crossed(FAULTS, [4.0, 0.3]))
def test_the_right_group_is_out_while_the_lighthouse_is_down(name: str, before_s: float) -> None:
    """The fault comes before the Lighthouse goes, or in the very step in which it goes."""
    script = [at(20, lighthouse_down(25)), at(20 - before_s, FAULTS[name])]
    drive = Drive(SimFleet(3, 2, script)).run(45)
    assert drive.evicted() == ["rg_1"]
    drive.run(40)
    assert drive.evicted() == ["rg_1"]  # and once
    assert all(rank.commits > 100 for rank in drive.fleet.ranks() if rank.group != "rg_1")
    assert drive.fleet.rank("rg_1.0").commits > 10  # it is back


@pytest.mark.parametrize("name", ["gil", "stop", "crash"])
def test_also_of_a_fault_that_comes_while_all_wait(name: str) -> None:
    script = [at(20, lighthouse_down(25)), at(27, FAULTS[name])]
    assert Drive(SimFleet(3, 2, script)).run(45).evicted() == ["rg_1"]


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize(("how", "source", "for_s"), crossed(
    [lighthouse_down, lighthouse_away, lighthouse_restart], ["reporter", "torchft", None],
    [12.0, 300.0],
))  # fmt: skip
def test_its_absence_alone_evicts_nobody(how, source, for_s: float) -> None:
    fleet = SimFleet(3, 2, [at(20, how(for_s))], source=source, across=source != "reporter")
    assert not Drive(fleet).run(70).evicts


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation"])
def test_nor_does_a_pause_meanwhile(phase: str) -> None:
    script = [at(28, pause(["rg_1.0"], phase, 25)), at(30, lighthouse_down(80))]
    assert not Drive(SimFleet(3, 1, script)).run(100).evicts


@pytest.mark.parametrize(
    "fault", [slow("rg_1.0", 4.0), fail_commits(["rg_1"])], ids=["straggler", "failed commits"]
)
def test_what_is_told_by_pace_waits_for_the_lighthouse(fault: Fault) -> None:
    script = [at(30, lighthouse_away(200)), at(60, fault)]
    drive = Drive(SimFleet(4, 1, script)).run(110)
    assert not drive.evicts
    held = {hold.reason for _, hold in drive.holds if hold.guard is Guard.LIGHTHOUSE_AWAY}
    assert all("the pace of a job without quorums says nothing" in reason for reason in held)


def test_a_group_that_nobody_can_see_either_is_held_and_the_hold_says_what_is_missing() -> None:
    script = [at(24, hang("rg_1.1")), at(30, lighthouse_down(200)), at(30, silent("rg_1.0", 200))]
    drive = Drive(SimFleet(3, 2, script)).run(60)
    assert not drive.evicts or drive.evicts[0][0] < 31
    script = [at(30, lighthouse_down(200)), at(30, silent("rg_1.0", 200)), at(30, stop("rg_1.1"))]
    drive = Drive(SimFleet(3, 2, script)).run(60)
    assert not drive.evicts
    (hold,) = {h.reason: h for _, h in drive.holds if h.guard is Guard.LIGHTHOUSE_AWAY}.values()
    assert "nor rg_1.0: nobody could confirm an eviction" in hold.reason
    assert hold.release.startswith("Start the Lighthouse again")


def test_a_gate_confirms_what_workerservers_cannot() -> None:
    def gated(snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, gate_up=True)

    script = [at(30, lighthouse_down(200)), at(30, silent("rg_1.0", 200)), at(30, stop("rg_1.1"))]
    assert Drive(SimFleet(3, 2, script), alter=gated).run(60).evicted() == ["rg_1"]


def test_a_group_whose_processes_are_all_gone_is_nobodys_work() -> None:
    script = [at(30, lighthouse_down(60)), at(30.2, crash("rg_1.0"))]
    drive = Drive(SimFleet(3, 1, script)).run(80)
    assert not drive.evicts


def test_where_no_lighthouse_is_configured_nobody_is_evicted() -> None:
    away = LighthouseAway(NO_LIGHTHOUSE)
    drive = Drive(
        SimFleet(3, 1, [at(20, hang("rg_1.0"))]), alter=lambda seen: replace(seen, lighthouse=away)
    ).run(60)
    assert not drive.evicts
    assert {hold.guard for _, hold in drive.holds} == {Guard.WATCH_ONLY}


def test_two_sick_groups_for_which_the_same_ones_stand_go_together() -> None:
    script = [at(30, lighthouse_down(100)), at(29, stop("rg_1.0")), at(29, stop("rg_2.0"))]
    config = KeeperConfig(breaker_share=0.5)
    drive = Drive(SimFleet(4, 1, script), config).run(90)
    (first_s, first), (second_s, second) = drive.evicts
    assert {first.group, second.group} == {"rg_1", "rg_2"}
    assert second_s == first_s
