"""A right incident is never closed by the death of its own victim, and the victim is not blamed."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.detect.detectors import Tick, inhibit
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Snapshot
from lightkeeper.monitor.model.verdict import Confidence, Kind, Verdict
from lightkeeper.monitor.model.wording import face_of
from tests.changed import replace
from tests.monitor.fleet import (
    Drive,
    Fault,
    SimFleet,
    at,
    crash,
    ended_by,
    hang,
    raises,
    recover,
    stop,
    traced,
)
from tests.monitor.fleet.told import reports, steps

WATCH = KeeperConfig(observe=True)
TIMEOUT = "RuntimeError: Timed out waiting 20000ms for recv operation to complete"


def fired(drive: Drive) -> set[tuple[str, tuple[str, ...]]]:
    return {(drive.seen[key].kind, drive.seen[key].suspects) for key in drive.fired}


def story(drive: Drive, kind: str) -> list[tuple[str, str]]:
    return [(line.to, line.reason) for line in drive.incident(kind).story]


def test_a_stopped_rank_stays_to_blame_when_its_peer_gives_up_waiting() -> None:
    script = [at(20, stop("rg_1.0")), at(40, raises("rg_1.1", TIMEOUT, of_peers=True))]
    drive = Drive(SimFleet(2, 2, script), WATCH).run(70)
    incident = drive.incident("not_entered")
    assert (incident.state, incident.culprits) == (State.FIRING, ("rg_1.0",))
    assert ("gave_up", "rg_1.1 gave up after 20 s") in story(drive, "not_entered")
    assert incident.gave_up == ("rg_1.1",)
    assert fired(drive) == {("not_entered", ("rg_1.0",))}


def gives_up(rank: str) -> Fault:
    """Its wait for others times out, by the frames of its exception."""
    return raises(rank, TIMEOUT, of_peers=True)


@pytest.mark.parametrize("end", [gives_up("rg_0.0"), ended_by("rg_0.0", "SIGABRT")])
def test_a_peer_that_waits_where_nobody_sees_it_is_a_victim_when_it_gives_up(end) -> None:
    """DDP's reducer waits in C++: neither heads nor steps show it."""
    hidden = reports(lambda report: replace(report, step=None, heads=()), "rg_0.0")
    script = [at(20, stop("rg_0.1")), at(40, end)]
    drive = Drive(SimFleet(1, 2, script), WATCH, alter=hidden).run(39)
    assert drive.incident("not_entered").verdict.victims == ()
    drive.run(40)
    incident = drive.incident("not_entered")
    assert (incident.state, incident.gave_up) == (State.FIRING, ("rg_0.0",))
    assert incident.verdict.victims == ("rg_0.0",)
    assert fired(drive) == {("not_entered", ("rg_0.1",))}


def test_a_peer_whose_error_may_be_of_the_wait_is_a_victim_and_its_death_is_told_too() -> None:
    hidden = reports(lambda report: replace(report, step=None, heads=()), "rg_0.0")
    end = raises("rg_0.0", "RuntimeError: in C++", of_peers=None)
    script = [at(20, stop("rg_0.1")), at(40, end)]
    drive = Drive(SimFleet(1, 2, script), WATCH, alter=hidden).run(80)
    incident = drive.incident("not_entered")
    assert (incident.state, incident.gave_up) == (State.FIRING, ("rg_0.0",))
    assert fired(drive) == {("not_entered", ("rg_0.1",)), ("dead", ("rg_0.0",))}


@pytest.mark.parametrize("end", [crash("rg_0.0"), raises("rg_0.0", "ValueError: bad batch")])
def test_nor_does_its_own_fault_explain_a_hang_that_was_there_before(end) -> None:
    hidden = reports(lambda report: replace(report, step=None, heads=()), "rg_0.0")
    script = [at(20, stop("rg_0.1")), at(40, end)]
    drive = Drive(SimFleet(1, 2, script), WATCH, alter=hidden).run(60)
    assert drive.incident("not_entered").open
    assert fired(drive) == {("not_entered", ("rg_0.1",)), ("dead", ("rg_0.0",))}


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_once_it_ends_too_the_sentence_says_so_and_its_victim_is_still_not_blamed(signal) -> None:
    script = [
        at(20, stop("rg_1.0")),
        at(40, raises("rg_1.1", TIMEOUT, of_peers=True)),
        at(50, ended_by("rg_1.0", signal)),
    ]
    drive = Drive(SimFleet(2, 2, script, relaunch=False), WATCH).run(70)
    incident = drive.incident("not_entered")
    said = f"rg_1.0 stood in phase 'backward' until it was ended by its launcher ({signal})"
    assert said in incident.verdict.reason
    assert fired(drive) == {("not_entered", ("rg_1.0",))}


def test_a_peer_that_gives_up_before_it_is_sure_takes_nothing_away() -> None:
    """A timeout of 5 s: the hang was seen once."""
    script = [at(20, stop("rg_1.0")), at(25.4, raises("rg_1.1", TIMEOUT, of_peers=True))]
    drive = Drive(SimFleet(2, 2, script), WATCH).run(60)
    assert fired(drive) == {("not_entered", ("rg_1.0",))}


@pytest.mark.parametrize(
    "end", [raises("rg_1.1", "ValueError: bad batch"), ended_by("rg_1.1", "SIGSEGV")]
)
def test_a_victim_that_ends_by_a_fault_of_its_own_is_a_second_incident(end) -> None:
    drive = Drive(SimFleet(2, 2, [at(20, stop("rg_1.0")), at(40, end)]), WATCH).run(60)
    assert fired(drive) == {("not_entered", ("rg_1.0",)), ("dead", ("rg_1.1",))}
    assert drive.incident("not_entered").open


def test_a_death_still_explains_that_the_rest_of_its_group_stands() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, crash("rg_1.0"))], relaunch=False), WATCH).run(60)
    assert fired(drive) == {("dead", ("rg_1.0",))}


def test_victims_of_other_groups_that_give_up_are_a_line_of_the_story() -> None:
    script = [
        at(20, hang("rg_1.0")),
        *(at(80, raises(f"rg_{n}.0", TIMEOUT, of_peers=True)) for n in (0, 2)),
    ]
    drive = Drive(SimFleet(3, 1, script, relaunch=False), WATCH).run(100)
    assert ("gave_up", "rg_0.0 and rg_2.0 gave up after 60 s") in story(drive, "not_entered")
    assert fired(drive) == {("not_entered", ("rg_1.0",))}
    assert drive.incident("not_entered").open


def test_victims_that_an_agent_ends_did_not_give_up() -> None:
    script = [at(20, stop("rg_1.0")), at(40, ended_by("rg_1.1", "SIGTERM"))]
    drive = Drive(SimFleet(2, 2, script), WATCH).run(60)
    assert not [line for line in story(drive, "not_entered") if line[0] == "gave_up"]
    assert drive.incident("not_entered").open


def uncommitted(seen: Snapshot) -> Snapshot:
    """No rank commits after tick 20."""
    return steps(lambda step: replace(step, last_commit_age_s=max(0.2, seen.tick - 20.0)))(seen)


def test_a_rank_that_moves_again_only_to_end_has_not_recovered() -> None:
    """A wait that times out is left with an error, and the process ends a few seconds later."""
    ends = (at(46, gives_up(f"rg_0.{n}")) for n in (0, 1))
    script = [at(20, stop("rg_0.1")), at(40, recover("rg_0.1")), *ends]
    drive = Drive(SimFleet(1, 2, script, relaunch=False), WATCH, alter=uncommitted).run(45)
    assert drive.incident("not_entered").open
    drive.run(20)
    assert drive.incident("not_entered").resolution == "its process ended"


def test_a_rank_that_moves_for_a_minute_has_recovered_though_nobody_commits() -> None:
    script = [at(20, stop("rg_0.1")), at(40, recover("rg_0.1"))]
    drive = Drive(SimFleet(1, 2, script), WATCH, alter=uncommitted).run(95)
    assert drive.incident("not_entered").open
    drive.run(15)
    assert drive.incident("not_entered").resolution == "recovered by itself"


# -- what a person can do at once ----------------------------------------------------------------


def test_a_stopped_rank_comes_with_the_command_that_lets_it_continue() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, stop("rg_1.0"))]), WATCH).run(40)
    incident = drive.incident("not_entered")
    assert incident.remedy == "To let rg_1.0 continue: kill -CONT 1000 on host host-rg_1"
    assert face_of(incident, (), drive.last.now_s).next.startswith(incident.remedy)


def test_a_traced_rank_comes_with_who_traces_it_and_where() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, traced("rg_1.0"))]), WATCH).run(60)
    incident = drive.incident("not_entered")
    assert incident.culprits == ()
    assert incident.remedy.startswith("rg_1.0 continues once gdb (pid ")
    assert incident.remedy.endswith(") on host host-rg_1 lets go")


def test_a_rank_that_hangs_in_its_program_has_no_such_command() -> None:
    drive = Drive(SimFleet(2, 2, [at(20, hang("rg_1.0"))]), WATCH).run(40)
    assert drive.incident("not_entered").remedy == ""


def test_what_two_detectors_see_of_one_rank_is_one_incident() -> None:
    first, second = (
        Verdict(kind=Kind.NOT_ENTERED, culprits=(RankName("rg_0.1"),), reason=says,
                confidence=Confidence.CERTAIN, since_s=100.0)
        for says in ("its records show it", "it is stopped")
    )  # fmt: skip
    standing, reasons = inhibit(Tick((first, second)))
    assert standing == (first,)
    assert reasons == {}
