"""When a job is whole again after a fault, and the steps that it lost; on a fake timeline."""

from __future__ import annotations

import pytest

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import incident_from_json, incident_to_json
from lightkeeper.monitor.show.metrics import Instruments
from tests.changed import replace
from tests.monitor.fleet import START_S, Drive, SimFleet, at, crash, hang, recover, restart
from tests.monitor.fleet.told import reports, steps

OBSERVE = KeeperConfig(observe=True)


def test_the_job_is_whole_again_when_as_many_groups_commit_as_before() -> None:
    drive = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))])).run(60)
    incident = drive.incident("not_entered")
    marks = incident.milestones
    assert incident.before is not None
    assert incident.before.participants == 3
    assert marks.resumed_s is not None
    assert marks.survivor_commit_s is not None
    assert marks.rejoined_s is not None
    assert marks.survivor_commit_s + 3 < marks.resumed_s  # two of three are not the whole
    assert abs(marks.resumed_s - marks.rejoined_s) < 1
    (line,) = [line for line in incident.story if line.to == "resumed"]
    assert line.reason.startswith("a commit of 3 groups, as before")


def test_a_group_that_died_and_was_restarted_by_its_launcher_makes_it_whole() -> None:
    script = [at(20, crash("rg_1.0")), at(25, restart("rg_1"))]
    incident = Drive(SimFleet(3, 1, script)).run(60).incident("dead")
    assert incident.milestones.evict_asked_s is None
    assert incident.milestones.resumed_s is not None
    assert incident.milestones.resumed_s > START_S + 25


def test_a_hang_that_ends_by_itself_ends_with_the_next_commit_of_all() -> None:
    script = [at(20, hang("rg_1.0")), at(40, recover("rg_1.0"))]
    marks = Drive(SimFleet(3, 1, script), OBSERVE).run(60).incident("not_entered").milestones
    assert marks.evict_asked_s is None
    assert marks.resumed_s is not None
    assert START_S + 40 < marks.resumed_s < START_S + 46


def test_an_attempt_that_fails_with_all_there_makes_nothing_whole() -> None:
    """The last commit was one of the two that were left: participants are of the last attempt."""

    def failing(step):
        now_s = fleet.now_s - START_S
        if step.participants == 3 and now_s > 30:
            return replace(step, commit_failures=int(now_s), commits=90, last_commit_age_s=1.0)
        return step

    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    drive = Drive(fleet, alter=steps(failing)).run(60)
    assert drive.incident("not_entered").milestones.resumed_s is None


@pytest.mark.parametrize(
    ("relaunch", "changes", "quorums"),
    [
        pytest.param(False, {}, (1,), id="its group does not come back"),
        # a slow rank goes on for some seconds after its eviction was asked
        pytest.param(True, {"quorum_id": 7}, (7,), id="a commit of all in the quorum of the fault"),
        pytest.param(True, {"quorum_id": None, "participants": None}, None, id="no TorchFT"),
    ],
)
def test_a_job_is_not_whole_again(relaunch, changes, quorums) -> None:
    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))], relaunch=relaunch)
    drive = Drive(fleet, alter=steps(lambda step: replace(step, **changes))).run(90)
    incident = drive.incident("not_entered")
    assert incident.milestones.survivor_commit_s is not None
    assert incident.milestones.resumed_s is None
    assert (None if incident.before is None else incident.before.quorums) == quorums
    assert (incident.lost_steps is None) is (quorums is None)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_steps_lost_are_the_attempts_of_the_others_that_failed(lost) -> None:
    def failed(report):
        survivor, now_s = report.identity.group != "rg_1", fleet.now_s - START_S
        count = 2 + (lost if survivor and now_s > 29 else 0)  # two of before the fault
        step = replace(report.step, commit_failures=count if now_s > 5 else 0)
        return replace(report, step=step)

    fleet = SimFleet(3, 1, [at(20, hang("rg_1.0"))])
    drive = Drive(fleet, alter=reports(failed)).run(60)
    incident = drive.incident("not_entered")
    assert incident.lost_steps == lost
    (line,) = [line for line in incident.story if line.to == "resumed"]
    assert line.reason.endswith(f"{lost} step{'' if lost == 1 else 's'} lost")


def test_it_is_stored_and_older_stores_are_read() -> None:
    incident = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))])).run(60).incident("not_entered")
    body = incident_to_json(incident)
    assert incident_from_json(body) == incident
    for key in ("before", "lost_steps"):
        del body[key]
    del body["milestones"]["resumed_s"]
    older = incident_from_json(body)
    assert (older.before, older.lost_steps, older.milestones.resumed_s) == (None, None, None)


def test_recovery_and_lost_steps_are_metrics() -> None:
    instruments = Instruments()
    incident = Drive(SimFleet(3, 1, [at(20, hang("rg_1.0"))])).run(60).incident("not_entered")
    before = replace(
        incident, lost_steps=1, milestones=replace(incident.milestones, resumed_s=None)
    )
    after = replace(incident, lost_steps=3)
    instruments.count_incidents([before], [])
    instruments.count_incidents([after], [before])
    instruments.count_incidents([after], [after])
    value = instruments.registry.get_sample_value
    assert value("lightkeeper_lost_steps_total", {"kind": "not_entered"}) == 3
    stage = {"stage": "resume"}
    assert value("lightkeeper_incident_stage_seconds_count", stage) == 1
    marks = incident.milestones
    assert marks.resumed_s is not None
    assert marks.firing_s is not None
    took_s = value("lightkeeper_incident_stage_seconds_sum", stage)
    assert took_s == pytest.approx(marks.resumed_s - marks.firing_s)
