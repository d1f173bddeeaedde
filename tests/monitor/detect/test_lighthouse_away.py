"""A Lighthouse that does not answer: nobody is accused, somebody is told, and how bad it is."""

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.model.eviction import Guard
from lightkeeper.monitor.model.incident import State, incident_from_json, incident_to_json
from lightkeeper.monitor.model.observation import NO_ANSWER, NO_LIGHTHOUSE, LighthouseAway, Snapshot
from lightkeeper.monitor.model.verdict import Severity
from tests.changed import replace
from tests.deep import crossed
from tests.monitor.fleet import (
    At,
    Drive,
    Fault,
    SimFleet,
    at,
    crash,
    ended_by,
    hang,
    jam_across,
    leaves,
    lighthouse_away,
    lighthouse_down,
    lighthouse_restart,
    pause,
    restart,
    slow,
)
from tests.monitor.fleet.told import reports, steps


def test_only_we_cannot_reach_it_a_warning_that_accuses_nobody_and_ends_by_itself() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, lighthouse_away(30))])).run(40)
    incident = drive.incident("lighthouse_away")
    assert drive.fired[incident.id] == 31.0  # away since 20, for 10 s, in two sweeps
    assert (incident.culprits, incident.groups, incident.verdict.victims) == ((), (), ())
    assert incident.severity is Severity.WARNING
    assert "the job continues: only this monitor cannot reach it" in incident.verdict.reason
    drive.run(20)
    incident = drive.incident("lighthouse_away")
    assert (incident.state, incident.resolution) == (
        State.RESOLVED, "the Lighthouse answers again",
    )  # fmt: skip
    assert not drive.evicts
    assert not drive.holds  # there is nothing to hold back


@pytest.mark.parametrize(
    ("why", "named"),
    [(f"timeout: {NO_ANSWER}2.0 s", True), ("timeout: no connection in time", False),
     ("refused: Connection refused", False)],
)  # fmt: skip
def test_a_port_that_accepts_while_nothing_answers_may_have_a_log_that_nobody_reads(
    why, named
) -> None:
    def alter(seen):
        away = LighthouseAway(why)
        return replace(seen, lighthouse=away) if seen.tick > 20 else seen

    reason = Drive(SimFleet(3, 2), alter=alter).run(40).incident("lighthouse_away").verdict.reason
    assert ("see whether anybody reads its log, as a full pipe stops it" in reason) == named


def test_the_job_stands_too_that_is_critical_and_still_nobodys_fault() -> None:
    drive = Drive(SimFleet(3, 2, [at(20, lighthouse_down(60))])).run(40)
    incident = drive.incident("lighthouse_away")
    assert incident.severity is Severity.CRITICAL
    assert "nobody commits" in incident.verdict.reason
    assert len(incident.verdict.victims) == 6
    drive.run(60)
    assert drive.kinds() == ["lighthouse_away"]
    assert drive.incident("lighthouse_away").state is State.RESOLVED
    assert not drive.evicts


def test_ranks_that_their_quorum_timeout_ends_are_victims_of_the_lighthouse() -> None:
    script = [at(20, lighthouse_down(200)), at(80, crash("rg_0.0")), at(95, crash("rg_1.0"))]
    drive = Drive(SimFleet(3, 1, script)).run(130)
    assert drive.kinds() == ["lighthouse_away"]
    incident = drive.incident("lighthouse_away")
    assert incident.severity is Severity.CRITICAL
    assert incident.verdict.victims == ("rg_0.0", "rg_1.0", "rg_2.0")


def lost_quorum(away_s: float, *, size: int = 1) -> Drive:
    """The Lighthouse is killed at 20; TorchFT ends all ranks at 80; their launchers start them."""
    names = [f"rg_{group}.{rank}" for group in range(3) for rank in range(size)]
    ends = [at(80 + 1.5 * n, crash(name)) for n, name in enumerate(names)]
    again = [at(95 + 2 * n, restart(f"rg_{n}")) for n in range(3)]
    return Drive(SimFleet(3, size, [at(20, lighthouse_restart(away_s)), *ends, *again]))


@pytest.mark.integration  # no processes, but 1 s of CPU
@pytest.mark.parametrize(("away_s", "size"), crossed([0.0, 4.0, 8.0, 15.0], [1, 2]))
def test_who_waits_in_vain_for_a_lighthouse_that_came_back_is_its_victim(away_s, size) -> None:
    drive = lost_quorum(away_s, size=size).run(60)
    incident = drive.incident("lighthouse_away")
    assert drive.fired[incident.id] == {0.0: 27.0, 4.0: 27.0, 8.0: 29.0, 15.0: 31.0}[away_s]
    assert incident.severity is Severity.CRITICAL
    assert len(incident.verdict.victims) == 3 * size
    reason = "nobody commits" if away_s > 10 else "nobody has committed since"
    assert reason in incident.verdict.reason
    drive.run(90)  # they die one after another, and all groups start again
    assert drive.kinds() == ["lighthouse_away", "progress_lost"]
    assert drive.incident("lighthouse_away").resolution == "the Lighthouse answers again"
    assert not drive.evicts
    assert drive.fleet.rank("rg_2.0").commits > 20


def gives_up(name: str) -> Fault:
    """The rank leaves its wait by an error; its interpreter ends, and runs no more."""

    def do(fleet: SimFleet) -> None:
        rank = fleet.rank(name)
        rank.enter_phase("other", fleet.now_s)
        rank.gil_since_s = fleet.now_s

    return do


def ending(for_s: float) -> Drive:
    """A lost quorum after which all ranks take so long to end."""
    names = [f"rg_{group}.{rank}" for group in range(2) for rank in range(2)]
    ends = [at(80 + n, gives_up(name)) for n, name in enumerate(names)]
    ends += [at(80 + for_s + n, crash(name)) for n, name in enumerate(names)]
    return Drive(SimFleet(2, 2, [at(20, lighthouse_restart(5, 500)), *ends]))


def test_an_interpreter_that_ends_for_long_is_the_lighthouses_victim_still() -> None:
    assert ending(40).run(150).kinds() == ["lighthouse_away"]


def test_but_not_for_ever() -> None:
    drive = ending(400).run(200)
    assert set(drive.kinds()) == {"lighthouse_away", "not_entered"}
    assert min(drive.fired[i.id] for i in drive.seen.values() if i.kind == "not_entered") >= 140


def test_a_lighthouse_that_came_back_explains_no_hang() -> None:
    script = [at(20, lighthouse_away(5)), at(22, hang("rg_1.0"))]
    drive = Drive(SimFleet(3, 2, script)).run(60)
    assert drive.kinds() == ["not_entered"]
    assert drive.evicted() == ["rg_1"]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param([at(20, lighthouse_down(6))], id="a restart"),
        pytest.param(
            [at(20, lighthouse_away(5)), at(22, pause(["rg_1.0"], "checkpoint", 40))],
            id="a checkpoint that the others wait for, after it is back",
        ),
    ],
)
def test_it_is_silent_of(script) -> None:
    assert not Drive(SimFleet(3, 1, script)).run(80).fired


def gone_with_it(*ends: At, empty_s: float = 900.0) -> Drive:
    """The Lighthouse ends at 60; nobody is registered any more after some time."""

    def alter(seen: Snapshot) -> Snapshot:
        away = {"lighthouse": LighthouseAway("refused")} if seen.tick > 60 else {}
        return replace(seen, **away, **({"observations": ()} if seen.tick > empty_s else {}))

    return Drive(SimFleet(3, 1, [*ends]), alter=alter).run(200)


@pytest.mark.parametrize("end", [leaves, crash, lambda rank: ended_by(rank, "SIGINT")])
def test_nobody_misses_the_lighthouse_of_a_job_that_has_ended(end) -> None:
    ends = [at(58.9 + number, end(f"rg_{number}.0")) for number in range(3)]
    assert "lighthouse_away" not in gone_with_it(*ends).kinds()


def test_a_lighthouse_is_missed_only_while_there_is_a_rank() -> None:
    assert "lighthouse_away" not in gone_with_it(empty_s=0.0).kinds()
    assert "no longer" in gone_with_it(empty_s=90.0).incident("lighthouse_away").resolution


def test_no_lighthouse_configured_is_no_fault() -> None:
    away = LighthouseAway(NO_LIGHTHOUSE)
    drive = Drive(SimFleet(3, 1), alter=lambda seen: replace(seen, lighthouse=away))
    assert not drive.run(40).fired


def test_a_rank_that_hangs_while_only_we_cannot_reach_it_is_named_and_evicted_all_the_same() -> (
    None
):
    script = [at(20, lighthouse_away(60)), at(40, hang("rg_1.0"))]
    drive = Drive(SimFleet(3, 1, script)).run(80)
    assert drive.kinds() == ["lighthouse_away", "not_entered"]
    assert drive.incident("not_entered").culprits == ("rg_1.0",)
    assert [(at_s < 60, evict.group) for at_s, evict in drive.evicts] == [(True, "rg_1")]


def test_a_hang_explains_the_standstill_better_than_the_lighthouse_does() -> None:
    script = [at(20, hang("rg_1.0")), at(22, lighthouse_away(60))]
    drive = Drive(SimFleet(3, 1, script)).run(60)
    assert drive.incident("lighthouse_away").severity is Severity.WARNING
    assert drive.incident("not_entered").culprits == ("rg_1.0",)


def test_an_absence_that_the_job_trained_on_after_explains_no_later_standstill() -> None:
    """Not even when all ranks are new by then, which have not committed yet."""
    script = [at(20, lighthouse_away(3)), *(at(60, restart(f"rg_{n}")) for n in range(3))]
    drive = Drive(SimFleet(3, 1, [*script, at(60, jam_across())])).run(130)
    assert "lighthouse_away" not in drive.kinds()


def test_waiting_in_a_phase_called_quorum_is_waiting() -> None:
    fleet = SimFleet(3, 1, [at(20, lighthouse_down(100))])

    def renamed(step):
        return replace(step, phase="quorum") if step.phase == "communication" else step

    assert Drive(fleet, alter=steps(renamed)).run(60).kinds() == ["lighthouse_away"]


def test_ranks_that_report_no_phases_may_wait_for_a_quorum() -> None:
    def foreign(report):
        return replace(report, step=replace(report.step, source="torchft"), heads=())

    drive = Drive(SimFleet(3, 1, [at(20, lighthouse_down(100))]), alter=reports(foreign)).run(60)
    assert drive.incident("lighthouse_away").severity is Severity.CRITICAL


def test_stragglers_are_found_while_only_we_cannot_reach_the_lighthouse() -> None:
    script = [at(20, lighthouse_away(1000)), at(60, slow("rg_1.0", 3.0))]
    drive = Drive(SimFleet(3, 1, script)).run(100)
    assert drive.kinds() == ["lighthouse_away", "straggler"]
    assert {hold.guard for _, hold in drive.holds} >= {Guard.LIGHTHOUSE_AWAY}


def test_the_severity_that_changes_is_a_line_of_the_story_and_survives_a_restart() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, lighthouse_away(200)), at(50, lighthouse_down(150))]))
    drive.run(80)
    incident = drive.incident("lighthouse_away")
    lines = [(line.to, line.reason.split(":")[0]) for line in incident.story]
    assert ("severity", "now critical") in lines
    again = incident_from_json(incident_to_json(incident))
    assert again == incident
    drive.pipeline = Pipeline(drive.config, [again])
    drive.run(3)
    assert drive.last.incidents[0].id == incident.id
