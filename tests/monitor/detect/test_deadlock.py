"""Groups in which everybody waits inside of collectives."""

import dataclasses

from monitor.model.config import KeeperConfig
from monitor.model.eviction import Guard
from monitor.model.observation import Failure, Snapshot, Unreachable
from monitor.model.verdict import Confidence
from tests.monitor.fleet import Drive, Fault, SimFleet, at, jam, jam_across, pause, restart


def test_a_group_in_which_all_are_inside_the_same_thing_is_told_and_nobody_is_accused() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1"))])).run(60)
    incident = drive.incident("deadlock")
    assert incident.groups == ("rg_1",)
    assert incident.culprits == ("rg_1.0", "rg_1.1")
    assert drive.fired[incident.id] == 38.0
    assert incident.verdict.confidence is Confidence.UNSURE
    assert "nobody is missing" in incident.verdict.reason
    assert incident.signature.startswith("deadlock:stuck_inside:intra:")
    assert {one.kind for one in drive.seen.values()} == {"deadlock"}
    assert not drive.evicts
    assert [hold.guard for _, hold in drive.holds] == [Guard.UNSURE]


def test_the_only_stuck_group_that_all_others_wait_for_is_evicted_after_45_s() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1", 60.0))])).run(110)
    assert [(at_s, evict.group) for at_s, evict in drive.evicts] == [(66.0, "rg_1")]
    incident = drive.incident("deadlock")
    assert "so it is in this group, whichever of its ranks" in incident.verdict.reason
    assert not drive.evicts[0][1].quarantine


def test_two_stuck_groups_tie_and_nobody_is_evicted() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1")), at(20, jam("rg_2"))])).run(120)
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
    found = [drive.fired[i.id] for i in drive.seen.values() if i.kind == "deadlock"]
    assert found == [38.0, 138.0]


def test_a_job_in_which_all_wait_across_groups_is_told_and_nobody_is_accused() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam_across())])).run(60)
    incident = drive.incident("deadlock")
    assert incident.culprits == ()
    assert drive.fired[incident.id] == 37.0
    assert "nobody is missing" in incident.verdict.reason
    assert not drive.evicts


def test_it_is_over_when_they_commit_again() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam_across(40.0))])).run(90)
    assert drive.incident("deadlock").resolution == "the job goes on"


def test_a_jam_that_dissolves_is_resolved() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1", 30.0))])).run(90)
    assert not drive.incident("deadlock").open


def test_a_slow_transfer_is_no_deadlock() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1", 4.0))])).run(60)
    assert not drive.seen


def test_a_group_that_waits_for_others_in_a_long_phase_is_no_deadlock() -> None:
    fleet = SimFleet(3, 2, [at(20, pause(["rg_0.0", "rg_0.1"], "checkpoint", 60.0))])
    assert not Drive(fleet).run(100).seen


def without_records(snapshot: Snapshot) -> Snapshot:
    lost = Unreachable(Failure.TIMEOUT, "no answer")
    return dataclasses.replace(snapshot, records=dict.fromkeys(snapshot.records, lost))


def test_without_flight_records_it_is_said_that_the_job_stands_and_nobody_is_accused() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1"))]), alter=without_records).run(60)
    assert [(one.kind, one.culprits) for one in drive.seen.values()] == [("deadlock", ())]
