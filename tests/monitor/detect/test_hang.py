"""Hangs on a fake timeline: 3 groups of 1 or 2 of 2; a step takes 0.3 s; the floor is 5 s."""

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.verdict import Confidence, RankHealth
from lightkeeper.worker_server.wire import GroupHead, StateReport
from tests.changed import replace
from tests.monitor.fleet import (
    Drive,
    Fault,
    SimFleet,
    at,
    cpu_stall,
    gil,
    hang,
    lighthouse_away,
    pause,
    recover,
    restart,
    runs,
    silent,
    stop,
)
from tests.monitor.fleet.told import reports

WATCHING = KeeperConfig(observe=True)


def launched_and_not_waited_for(report: StateReport) -> StateReport:
    """Every rank has an asynchronous collective in the air, as an overlapping backward has."""
    head = GroupHead("tp", 2, 9, 1, "all_gather", 60.0, held=0)
    return replace(report, heads=(*report.heads, head))


def test_a_collective_in_the_air_does_not_make_a_hung_rank_a_victim() -> None:
    fleet = SimFleet(2, 2, [at(20, hang("rg_1.1"))])
    drive = Drive(fleet, alter=reports(launched_and_not_waited_for)).run(30)
    assert drive.incident("not_entered").culprits == ("rg_1.1",)
    assert drive.evicted() == ["rg_1"]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        pytest.param(hang("rg_1.1", "data"), "hangs in phase 'data'", id="data loader"),
        pytest.param(hang("rg_1.1"), "hangs in phase 'forward'", id="forward"),
        pytest.param(gil("rg_1.1"), "holds the GIL", id="GIL held"),
        pytest.param(stop("rg_1.1"), "is stopped by a signal (state T)", id="SIGSTOP"),
    ],
)
def test_a_hang_fires_7_s_after_the_fault_and_names_the_rank_and_what_it_does(fault, says) -> None:
    drive = Drive(SimFleet(2, 2, [at(20, fault)]), WATCHING).run(30)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.1",)
    assert incident.verdict.victims == ("rg_0.0", "rg_0.1", "rg_1.0")
    assert says in incident.verdict.reason
    assert 26 <= drive.fired[incident.id] <= 27
    assert incident.verdict.confidence is Confidence.CERTAIN
    assert drive.last.rank_health == {
        "rg_0.0": "waiting", "rg_0.1": "waiting", "rg_1.0": "waiting", "rg_1.1": "stalled",
    }  # fmt: skip


def test_names_the_rank_that_hangs_even_when_it_is_rank_zero() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, hang("rg_0.0"))])).run(28)
    assert drive.incident("not_entered").culprits == ("rg_0.0",)


def test_the_group_is_evicted_once_it_may_come_back_and_every_milestone_filled() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))])).run(60)
    assert drive.evicted() == ["rg_1"]
    assert drive.evicts[0][1].quarantine == ()  # once, it comes back where it was
    incident = drive.incident("not_entered")
    marks = incident.milestones
    times = [marks.firing_s, marks.left_quorum_s, marks.survivor_commit_s,
             marks.rejoined_s]  # fmt: skip
    assert times == sorted(times)
    assert marks.evict_asked_s == marks.firing_s
    assert [line.to for line in incident.story] == [
        "pending", "firing", "evicting", "left_quorum", "resolved", "survivor_commit", "rejoined",
    ]  # fmt: skip
    assert set(drive.last.rank_health.values()) == {RankHealth.HEALTHY}


def test_a_hang_that_ends_by_itself_resolves_without_an_eviction_in_observe_mode() -> None:
    script = [at(20, hang("rg_1.0")), at(40, recover("rg_1.0"))]
    drive = Drive(SimFleet(3, 1, script), WATCHING).run(60)
    assert drive.incident("not_entered").resolution == "recovered by itself"
    assert not drive.evicts
    assert [hold.guard for _, hold in drive.holds] == [Guard.OBSERVE]


def test_a_restarting_group_is_not_accused_while_it_starts_for_a_minute() -> None:
    assert not Drive(SimFleet(3, 1, [at(20, restart("rg_1", start_s=60.0))])).run(100).fired


def test_a_rank_without_phases_that_hangs_as_the_lighthouse_goes_waits_for_its_return() -> None:
    """What it waits for nobody can tell; of one with phases, see test_without_lighthouse."""
    script = [at(20, hang("rg_1.0")), at(21, lighthouse_away(40.0))]
    drive = Drive(SimFleet(3, 1, script, source="torchft", across=True)).run(90)
    hang_id = drive.incident("not_entered").id
    held = [hold for _, hold in drive.holds if hold.incident_id == hang_id]
    assert [hold.guard for hold in held] == [Guard.LIGHTHOUSE_AWAY]
    assert held[0].reason.endswith("rg_1.0 may wait for it")
    ((at_s, evict),) = drive.evicts
    assert (at_s >= 61.0, evict.group) == (True, "rg_1")


def test_an_unseen_rank_is_accused_only_when_its_own_group_stands_for_it() -> None:
    script = [at(20, hang("rg_1.1")), at(20, silent("rg_1.1", 600.0))]
    drive = Drive(SimFleet(2, 2, script), WATCHING).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.1",)
    assert "cannot be seen" in incident.verdict.reason
    assert drive.fired[incident.id] >= 40


def test_whoever_is_the_last_to_leave_a_collective_is_not_blamed_for_the_wait_for_others() -> None:
    """rg_1.0 keeps its group waiting for 20 s; as it goes on, rg_1.1 gets no CPU for 3 s."""
    script = [at(20, pause(["rg_1.0"], "other", 20.0)), at(39.5, cpu_stall("rg_1.1", 4.0))]
    assert not Drive(SimFleet(2, 2, script)).run(60).seen


def waits_alone(rank: str) -> Fault:
    return pause([rank], "communication", 86_400.0)


def test_a_rank_that_says_it_waits_and_is_in_no_collective_is_found_after_30_s() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, waits_alone("rg_1.0"))], across=True)).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ("rg_1.0",)
    assert incident.verdict.victims == ("rg_0.0", "rg_2.0")
    assert drive.fired[incident.id] == 52.0
    assert drive.evicted() == ["rg_1"]


def test_who_has_entered_nothing_in_a_new_quorum_may_still_take_the_weights() -> None:
    def new_quorum(fleet: SimFleet) -> None:
        for rank in fleet.ranks():
            rank.across = int(rank.name != "rg_1.0")

    script = [at(20, waits_alone("rg_1.0")), at(21, new_quorum)]
    drive = Drive(SimFleet(3, 1, script, across=True)).run(100)
    assert [incident.culprits for incident in drive.seen.values()] == [()]
    assert not drive.evicts


def test_waiting_in_a_group_that_spans_replica_groups_is_not_waiting_for_ones_own() -> None:
    """TorchFT's group of two replica groups is as large as a replica group of two ranks."""

    def across(report: StateReport) -> StateReport:
        head = GroupHead("torchft", 2, 9, 1, "all_reduce", 60.0)
        return replace(report, heads=(*report.heads, head))

    drive = Drive(
        SimFleet(2, 2, [at(20, hang("rg_1.1"))]), alter=reports(across, "rg_0.0", "rg_0.1")
    ).run(30)
    assert drive.incident("not_entered").culprits == ("rg_1.1",)


@pytest.mark.parametrize("for_s", [3, 60])
def test_stacks_that_are_taken_of_a_victim_accuse_nobody_of_being_stopped(for_s) -> None:
    script = [
        at(20, hang("rg_1.0")),
        at(24, runs("rg_0.0", "t")),
        at(24 + for_s, runs("rg_0.0", "S")),
    ]
    drive = Drive(SimFleet(2, 1, script), WATCHING).run(70)
    assert {rank for incident in drive.seen.values() for rank in incident.culprits} == {"rg_1.0"}


def test_a_group_whose_stacks_are_taken_stands_ready_all_the_same() -> None:
    """Two groups; one is back from a restart and waits, with a tracer at it, for the hung other."""
    script = [
        at(40, hang("rg_1.0")),
        at(41, restart("rg_0", 1.0)),
        at(46.5, runs("rg_0.0", "t")),
        at(49, runs("rg_0.0", "S")),
    ]
    drive = Drive(SimFleet(2, 1, script)).run(60)
    assert "rg_1" in drive.evicted()
    assert not [hold for at_s, hold in drive.holds if hold.guard is Guard.MIN_REPLICAS]
