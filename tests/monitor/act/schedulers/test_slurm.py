"""Slurm's driver on a controller of functions; on a real one see test_real_slurm."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest

from lightkeeper.monitor.act.schedulers.base import Lost, NotDone
from lightkeeper.monitor.act.schedulers.slurm import Removal, is_node, parse_node, run_command
from lightkeeper.monitor.model.names import GroupName
from tests.monitor.act.schedulers.conformance import (
    INCIDENT,
    NODE,
    RG_1,
    SOON_S,
    WHY,
    Conformance,
    place_of,
)
from tests.monitor.act.schedulers.fake_slurm import FakeJob, SlurmWorld


class TestConformance(Conformance):
    @pytest.fixture
    def world(self):
        return SlurmWorld()


@pytest.fixture
def world():
    return SlurmWorld()


def remove(world, *places, group=RG_1, timeout_s=SOON_S):
    return world.scheduler.remove(group, places, WHY, timeout_s)


def test_the_reason_names_us_the_incident_and_why(world):
    world.scheduler.cordon(NODE, WHY, SOON_S)
    assert world.slurm.nodes[NODE].reason == (
        f"lightkeeper[a1b2c3]: incident {INCIDENT}: rg_1.0 stands still in data; 3 others wait"
    )


def test_a_node_that_slurm_lost_is_drained_so_that_it_does_not_come_back_by_itself(world):
    node = world.slurm.nodes[NODE]
    node.states, node.reason, node.who = {"DOWN*"}, "Not responding", "slurm"
    outcome = world.scheduler.cordon(NODE, WHY, SOON_S)
    assert outcome.done
    assert outcome.ours
    assert "DRAIN" in node.states
    world.scheduler.uncordon(NODE, "released", SOON_S)
    assert node.states == {"DOWN*"}  # UNDRAIN, and not RESUME, which would bring it back


def test_a_node_that_an_administrator_set_down_keeps_his_reason(world):
    node = world.slurm.nodes[NODE]
    node.states, node.reason, node.who = {"DOWN"}, "burnt", "alice"
    outcome = world.scheduler.cordon(NODE, WHY, SOON_S)
    assert outcome.done
    assert not outcome.ours
    assert outcome.detail == "node1 is down by alice: burnt; left as it is"
    assert node.reason == "burnt"


def test_who_may_not_drain_is_told_so(world):
    world.slurm.powerless = True
    outcome = world.scheduler.cordon(NODE, WHY, SOON_S)
    assert outcome.detail == "node1 not cordoned: slurm_update error: Invalid user id"
    failed = [check for check in world.scheduler.checks(SOON_S) if not check.ok]
    assert [check.what for check in failed] == ["nodes may be drained"]


def test_a_step_that_ignores_sigterm_is_killed_within_the_deadline(world):
    place = world.start("rg_1.0", NODE)
    world.slurm.jobs["12"].deaf.add("0")
    outcome = remove(world, place)
    assert outcome.detail == "cancelled step 12.0 by SIGKILL"
    assert world.slurm.time.now_s < 100.0 + SOON_S


def test_a_step_that_cannot_be_ended_is_told_at_the_deadline(world, monkeypatch):
    place = world.start("rg_1.0", NODE)
    monkeypatch.setattr(world.slurm, "_cancel", lambda name, kill: world.slurm._show_step(name))
    outcome = remove(world, place)
    assert not outcome.done
    assert outcome.detail.endswith("scancel 12.0 was taken and the step runs still")


def job_place(rank, job, host=NODE, **labels):
    return place_of(rank, host, {"slurm_job_id": job, **labels})


@pytest.mark.parametrize(
    ("removal", "job", "others", "done", "said", "state"),
    [
        (Removal.CANCEL, {}, [job_place("rg_2.0", "21")], True, "cancelled job 20", "CANCELLED"),
        (Removal.CANCEL, {}, [place_of("rg_2.0", "n", {"pod_uid": "u"})], True,
         "cancelled job 20", "CANCELLED"),
        (Removal.CANCEL, {}, [job_place("rg_2.0", "20")], False,
         "rg_1 not removed: job 20 carries rg_2.0 too", "RUNNING"),
        (Removal.CANCEL, {}, [place_of("rg_2.0", "elsewhere", {})], False,
         "rg_1 not removed: rg_2.0 does not tell its place and may run in job 20 too", "RUNNING"),
        (Removal.CANCEL, {"het": True}, [], False,
         "rg_1 not removed: job 20 is a part of a heterogeneous job and has no step", "RUNNING"),
        (Removal.REQUEUE, {}, [], True, "requeued job 20", "PENDING"),
        (Removal.REQUEUE, {"requeue": False}, [], False,
         "rg_1 not removed: job 20 cannot be requeued (sbatch --requeue)", "RUNNING"),
    ],
    ids=["alone", "others in pods", "carries another group", "may carry another group",
         "a part of a heterogeneous job", "requeued", "cannot be requeued"],
)  # fmt: skip
def test_a_job_without_a_step_is_ended_if_it_carries_the_group_alone(
    removal, job, others, done, said, state
):
    world = SlurmWorld(removal)
    world.slurm.jobs["20"], world.slurm.jobs["21"] = (
        FakeJob("20", set(), **job),
        FakeJob("21", set()),
    )
    world.places += [job_place("rg_1.0", "20"), *others]
    outcome = remove(world, world.places[0])
    assert (outcome.done, outcome.detail) == (done, said)
    assert (world.slurm.jobs["20"].state, world.slurm.jobs["21"].state) == (state, "RUNNING")
    if removal is Removal.REQUEUE and done:
        assert remove(world, world.places[0]).detail == "job 20 is gone"


def test_a_task_of_an_array_is_ended_alone_even_if_it_bears_the_arrays_number(world):
    for number, task in (("30", "3"), ("31", "1"), ("32", "2")):
        world.slurm.jobs[number] = FakeJob(number, {"0"}, array="30", task=task)
    world.places += [job_place(f"rg_{n}.0", f"3{n}") for n in range(3)]
    assert remove(world, world.places[0], group=GroupName("rg_0")).done
    assert ["scancel", "30_3"] in world.slurm.asked
    assert [world.slurm.jobs[number].state for number in ("30", "31", "32")] == [
        "CANCELLED", "RUNNING", "RUNNING",
    ]  # fmt: skip
    world.places[1] = job_place("rg_1.0", "31", slurm_step_id="0")
    assert remove(world, world.places[1]).done
    assert ["scancel", "30_1.0"] in world.slurm.asked


@pytest.mark.parametrize("odd", ["12_3", "1,2", "", "$(id)", "12.0", "1" * 11, "-u"])
def test_a_job_that_is_no_number_is_refused_and_slurm_is_not_asked(world, odd):
    place = place_of("rg_1.0", NODE, {"slurm_job_id": odd, "slurm_step_id": "0"})
    assert not remove(world, place).done
    assert world.slurm.asked == []


@pytest.mark.parametrize(
    ("name", "valid"),
    [("gpu-a100-7", True), ("n1.cluster.example", True), ("ALL", False), ("n[1-3]", False),
     ("a,b", False), ("-x", False), ("", False)],
)  # fmt: skip
def test_what_names_a_single_node(name, valid):
    assert is_node(name) is valid


def test_the_author_of_a_reason_with_brackets_is_found():
    node = parse_node(
        "NodeName=n1 Arch=x\n   State=IDLE*+DRAIN+NOT_RESPONDING ThreadsPerCore=1\n"
        "   Reason=bad DIMM [ticket 7] [alice@2026-11-22T02:14:39]\n   Comment=x\n"
    )
    assert node is not None
    assert (node.reason, node.author) == ("bad DIMM [ticket 7]", "alice")
    assert node.states == {"IDLE", "DRAIN", "NOT_RESPONDING"}


def test_a_command_that_is_not_installed_says_so():
    with pytest.raises(NotDone, match="no-such-scontrol is not installed here"):
        run_command(["no-such-scontrol"], 1.0)


def test_a_command_that_does_not_end_is_killed():
    began = time.monotonic()
    with pytest.raises(NotDone, match=r"has not ended within 0\.2 s"):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
    assert time.monotonic() - began < 5


# -- groups out of sight -------------------------------------------------------------------------


def end(world, place, down, timeout_s=SOON_S):
    lost = Lost(lambda: False, down.append)
    return world.scheduler.remove(RG_1, [place], replace(WHY, lost=lost), timeout_s)


def test_a_job_of_a_lost_group_is_requeued_for_it_shall_come_back(world):
    place = world.start("rg_1.0", NODE)
    (job,) = world.slurm.jobs.values()
    down, job.steps = [], set()
    del place.labels["slurm_step_id"]
    world.slurm.nodes[NODE].states = {"DOWN*"}
    said = end(world, place, down)
    assert (said.done, said.detail) == (True, f"requeued job {job.number}")
    assert (job.restarts, down) == (1, [NODE])


def test_a_job_of_a_lost_group_that_cannot_be_requeued_is_not_cancelled(world):
    place, down = world.start("rg_1.0", NODE), []
    (job,) = world.slurm.jobs.values()
    job.requeue = False
    del place.labels["slurm_step_id"]
    said = end(world, place, down)
    assert (said.done, job.state, down) == (False, "RUNNING", [])
    assert said.detail.endswith("cannot be requeued (sbatch --requeue)")


def test_a_step_that_a_lost_node_does_not_end_is_a_persons_case(world):
    place, down = world.start("rg_1.0", NODE), []
    world.slurm.nodes[NODE].states = {"DOWN*"}
    world.slurm.stuck = True
    said = end(world, place, down)
    assert (said.done, down) == (False, [NODE])
    assert said.detail.endswith(
        "the step runs still. Slurm ends all jobs on node1 by: "
        "scontrol update NodeName=node1 State=DOWN Reason=lost"
    )


def test_a_node_that_slurm_does_not_know_stops_nothing(world):
    place, down = world.start("rg_1.0", NODE), []
    del world.slurm.nodes[NODE]
    assert end(world, place, down).done
    assert down == []


# -- how it ended ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "weight", "code", "text"),
    [
        ("PREEMPTED", "leaving", "preempted", "was preempted: "),
        ("NODE_FAIL", "context", "node-lost", "its node failed: "),
        ("TIMEOUT", "leaving", "time-limit", "came to its time limit: "),
        ("OUT_OF_MEMORY", "ended", "out-of-memory", "ran out of memory: "),
        ("CANCELLED by 1000", "leaving", "cancelled", "was cancelled: "),
        ("FAILED", "context", "exited", "ended by itself: "),
        ("REVOKED", "leaving", "disrupted", "was ended by Slurm as REVOKED: "),
    ],
)
def test_the_state_of_a_job_is_how_it_ended_and_is_quoted(world, state, weight, code, text):
    place = world.start("rg_1.0", NODE)
    world.slurm.jobs["12"].state = state
    ((_, said),) = world.scheduler.ends([place], SOON_S)
    assert (str(said.weight), said.code) == (weight, code)
    assert said.text == f"{text}job 12, JobState {state}, Reason None"


def test_a_requeued_job_and_one_that_slurm_forgot_are_told_so(world):
    place = world.start("rg_1.0", NODE)
    world.renew(place)
    ((_, said),) = world.scheduler.ends([place], SOON_S)
    assert (str(said.weight), said.code) == ("leaving", "requeued")
    del world.slurm.jobs["12"]
    ((_, said),) = world.scheduler.ends([place], SOON_S)
    assert said.text == "is gone: Slurm does not know step 12.0 any more"


@pytest.mark.parametrize("state", ["DOWN", "ALLOCATED*", "ALLOCATED+NOT_RESPONDING"])
def test_a_job_that_runs_on_a_node_that_does_not_answer_lost_its_node(world, state):
    place = world.start("rg_1.0", NODE)
    node = world.slurm.nodes[NODE]
    node.states, node.reason, node.who = {state}, "Not responding", "slurm"
    ((_, said),) = world.scheduler.ends([place], SOON_S)
    assert said.text == "its node failed: node1 does not answer Slurm; by slurm: Not responding"
