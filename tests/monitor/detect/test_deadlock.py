"""Groups in which everybody waits inside of collectives."""

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.verdict import Confidence
from tests.monitor.fleet import Drive, Fault, SimFleet, at, jam, jam_across, pause, restart
from tests.monitor.fleet.told import stays, without_records


def test_a_group_in_which_all_are_inside_the_same_thing_is_told_and_goes_after_45_s() -> None:
    """The only one that is stuck, and all others wait for it."""
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1", 60.0))])).run(60)
    incident = drive.incident("deadlock")
    assert incident.groups == ("rg_1",)
    assert incident.candidates == ("rg_1.0", "rg_1.1")
    assert drive.fired[incident.id] == 38.0
    assert incident.verdict.confidence is Confidence.UNSURE
    assert "nobody is missing" in incident.verdict.reason
    assert incident.signature.startswith("deadlock:stuck_inside:intra:")
    assert not drive.evicts
    assert [hold.guard for _, hold in drive.holds] == [Guard.UNSURE]

    drive.run(40)
    assert [(at_s, evict.group) for at_s, evict in drive.evicts] == [(66.0, "rg_1")]
    incident = drive.incident("deadlock")
    assert "so it is in this group, whichever of its ranks" in incident.verdict.reason
    assert not drive.evicts[0][1].quarantine
    assert not incident.open
    assert {str(i.kind) for i in drive.seen.values()} == {"deadlock"}


def test_two_stuck_groups_tie_and_nobody_is_evicted() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1")), at(20, jam("rg_2"))])).run(90)
    assert {i.verdict.confidence for i in drive.seen.values()} == {Confidence.UNSURE}
    assert not drive.evicts


def test_a_collective_that_took_50_s_before_is_not_accused_of_60() -> None:
    script = [at(20, jam("rg_1", 50.0)), at(120, jam("rg_1", 60.0))]
    drive = Drive(SimFleet(3, 2, script), KeeperConfig(stuck_inside_s=55.0)).run(200)
    assert list(drive.fired.values()) == [38.0]
    assert not drive.evicts


def breaks_off(rank: str) -> Fault:
    """A jam ends because this rank dies: its peers leave the collective by an error."""

    def do(fleet: SimFleet) -> None:
        victim = fleet.rank(rank)
        for peer in fleet.groups[victim.group]:
            peer.leave_collective(fleet.now_s)
            peer.place, peer.left_s = "pause", 60.0
        fleet.kill(victim)
        fleet.jammed_until_s.clear()

    return do


def test_a_collective_that_a_death_ended_teaches_nothing() -> None:
    script = [at(20, jam("rg_1")), at(70, breaks_off("rg_1.0")), at(75, restart("rg_1"))]
    script += [at(120, jam("rg_1"))]
    config = KeeperConfig(observe=True)
    drive = Drive(SimFleet(3, 2, script), config).run(160)
    fired_s = [drive.fired[i.id] for i in drive.seen.values() if i.kind == "deadlock"]
    assert fired_s == [38.0, 138.0]


def test_a_job_in_which_all_wait_across_groups_is_told_until_they_commit_again() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam_across(40.0))])).run(90)
    incident = drive.incident("deadlock")
    assert incident.culprits == ()
    assert drive.fired[incident.id] == 37.0
    assert "nobody is missing" in incident.verdict.reason
    assert incident.resolution == "the job continues"
    assert not drive.evicts


def test_a_standstill_is_not_over_while_a_rank_still_stands_where_it_stood() -> None:
    """The other groups commit again; only what rg_1.0 reports stays the same."""
    script, watch = [at(20, jam_across(40.0))], KeeperConfig(observe=True)
    drive = Drive(SimFleet(3, 2, script), watch, alter=stays("rg_1.0", after=55)).run(90)
    assert drive.fleet.rank("rg_0.0").commits > 50
    incident = drive.incident("deadlock")
    assert "rg_1.0" in incident.verdict.victims
    assert incident.open
    drive.alter = lambda seen: seen
    drive.run(10)
    assert drive.incident("deadlock").resolution == "the job continues"


@pytest.mark.parametrize(
    "fault",
    [jam("rg_1", 4.0), pause(["rg_0.0", "rg_0.1"], "checkpoint", 40.0)],
    ids=["a slow transfer", "others in a long phase"],
)
def test_who_waits_for_a_while_is_in_no_deadlock(fault) -> None:
    assert not Drive(SimFleet(3, 2, [at(20, fault)])).run(70).seen


def test_without_flight_records_it_is_said_that_the_job_stands_and_nobody_is_accused() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1"))]), alter=without_records).run(60)
    assert [(i.kind, i.culprits) for i in drive.seen.values()] == [("deadlock", ())]
