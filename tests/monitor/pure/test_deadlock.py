"""Groups in which everybody waits inside of collectives."""

import dataclasses

from monitor.detectors.verdict import Confidence
from monitor.policy import Guard
from monitor.snapshot import Failure, Snapshot, Unreachable
from tests.monitor.fleet import Drive, SimFleet, at, jam, pause


def test_a_group_in_which_all_are_inside_the_same_thing_is_told_and_nobody_is_accused() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1"))])).run(60)
    incident = drive.incident("deadlock")
    assert incident.groups == ("rg_1",)
    assert incident.culprits == ("rg_1.0", "rg_1.1")
    assert incident.verdict.confidence is Confidence.UNSURE
    assert "nobody is missing" in incident.verdict.reason
    assert incident.signature.startswith("deadlock:stuck_inside:intra:")
    assert {one.kind for one in drive.seen.values()} == {"deadlock"}
    assert not drive.evicts
    assert [hold.guard for _, hold in drive.holds] == [Guard.UNSURE]


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


def test_without_flight_records_nothing_is_said() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, jam("rg_1"))]), alter=without_records).run(60)
    assert not drive.seen
