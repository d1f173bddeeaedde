"""Debian's slurmctld and slurmd, for real: what is drained, undrained, cancelled, and what is not.

apt-get install -y slurm-wlm && LIGHTKEEPER_SLURM_TESTS=1 pytest -m integration <this file>
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lightkeeper.monitor.act.schedulers.slurm import Removal, Slurm
from lightkeeper.monitor.model.names import GroupName, Host
from tests.monitor.act.schedulers import real_slurm
from tests.monitor.act.schedulers.conformance import INCIDENT, OWNER, WHY, place_of
from tests.waiting import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(real_slurm.missing() is not None, reason=str(real_slurm.missing())),
]
NODE, OTHER = Host("node1"), Host("node2")
IN_TIME_S = 15.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with real_slurm.cluster(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@pytest.fixture
def places():
    return []


@pytest.fixture
def slurm(cluster, places, monkeypatch):
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, cluster.environ[name])
    yield Slurm(lambda: places, lambda: OWNER)
    for node in real_slurm.NODES:
        if "DRAIN" in cluster.state(node):
            cluster.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
    for job in cluster.ask("squeue", "-h", "-o", "%A").split():
        cluster.ask("scancel", job)


def running(cluster, job):
    wait_for(lambda: cluster.job_state(job) == "RUNNING", within_s=IN_TIME_S, what=f"job {job}")
    return job


def test_everything_that_is_needed_is_there(slurm):
    assert [check for check in slurm.checks(IN_TIME_S) if not check.ok] == []


def test_a_drained_node_says_why_and_takes_no_new_job_until_it_is_undrained(cluster, slurm):
    held = running(cluster, cluster.submit("sleep 60", "-w", NODE))
    assert slurm.cordon(NODE, WHY, IN_TIME_S).done
    assert "DRAIN" in cluster.state(NODE)
    assert cluster.reason(NODE).startswith(
        f"lightkeeper[{OWNER}]: incident {INCIDENT}: rg_1.0 stands still in data; 3 others wait ["
    )
    pending = cluster.submit("sleep 60", "-w", NODE)
    free = cluster.submit("sleep 60")
    running(cluster, free)  # so the scheduler has looked at both
    assert cluster.job_state(pending) == "PENDING"
    assert cluster.job_state(held) == "RUNNING"
    assert slurm.cordoned(IN_TIME_S) == (NODE,)
    assert slurm.cordon(NODE, WHY, IN_TIME_S).detail.startswith("node1 is drained already")
    assert slurm.uncordon(NODE, "released", IN_TIME_S).done
    assert slurm.cordoned(IN_TIME_S) == ()
    assert cluster.reason(NODE) == ""
    running(cluster, pending)


def test_what_an_administrator_drained_is_left_as_it_is(cluster, slurm):
    cluster.ask("scontrol", "update", f"NodeName={NODE}", "State=DRAIN", "Reason=bad DIMM [7]")
    before = cluster.reason(NODE)
    outcome = slurm.cordon(NODE, WHY, IN_TIME_S)
    assert (outcome.done, outcome.ours) == (True, False)
    assert outcome.detail == "node1 is drained by root: bad DIMM [7]; left as it is"
    assert slurm.uncordon(NODE, "released", IN_TIME_S).done
    assert cluster.reason(NODE) == before
    assert "DRAIN" in cluster.state(NODE)


def test_one_step_is_cancelled_and_the_other_groups_step_of_the_job_goes_on(cluster, slurm, places):
    step = "trap '' TERM; while :; do sleep 0.2; done"
    job = running(
        cluster,
        cluster.submit(
            f'srun --exact -n1 bash -c "{step}" & srun --exact -n1 sleep 60 & wait', "-n2"
        ),
    )
    both = {f"{job}.0", f"{job}.1"}
    wait_for(lambda: both <= cluster.steps(job), within_s=IN_TIME_S, what="both steps")
    places += [
        place_of(f"rg_{n}.0", NODE, {"slurm_job_id": job, "slurm_step_id": str(n)})
        for n in range(2)
    ]
    outcome = slurm.remove(GroupName("rg_0"), places[:1], WHY, IN_TIME_S)
    assert outcome.done, outcome.detail
    assert f"{job}.0" not in cluster.steps(job)
    assert f"{job}.1" in cluster.steps(job)
    again = slurm.remove(GroupName("rg_0"), places[:1], WHY, IN_TIME_S)
    assert again.detail == f"step {job}.0 is gone"


def test_one_task_of_an_array_is_ended_even_if_it_bears_the_arrays_number(cluster, slurm, places):
    array = cluster.submit("sleep 60", "--array=1-2", "-n1")
    running(cluster, f"{array}_1")
    running(cluster, f"{array}_2")
    text = cluster.ask("scontrol", "show", "job", f"{array}_2")
    assert f"JobId={array} " in text  # the last task bears the array's own number
    places.append(place_of("rg_2.0", NODE, {"slurm_job_id": array}))
    outcome = slurm.remove(GroupName("rg_2"), places, WHY, IN_TIME_S)
    assert outcome.done, outcome.detail
    assert cluster.job_state(f"{array}_1") == "RUNNING"
    assert cluster.job_state(f"{array}_2") != "RUNNING"


def test_a_requeued_job_is_pending_again_and_its_next_run_is_not_hit(cluster, slurm, places):
    job = running(cluster, cluster.submit("sleep 60", "--requeue"))
    places.append(place_of("rg_0.0", NODE, {"slurm_job_id": job}))
    requeuing = Slurm(lambda: places, lambda: OWNER, removal=Removal.REQUEUE)
    outcome = requeuing.remove(GroupName("rg_0"), places, WHY, IN_TIME_S)
    assert outcome.done, outcome.detail
    assert cluster.job_state(job) == "PENDING"
    assert f"Restarts={1} " in cluster.ask("scontrol", "show", "job", job)
    again = requeuing.remove(GroupName("rg_0"), places, WHY, IN_TIME_S)
    assert again.detail == f"job {job} is gone"


def test_a_rank_under_srun_tells_its_step_and_one_in_the_batch_script_none(cluster, slurm):
    code = (
        "import json, os; from lightkeeper.worker_server.rank.identity import place_from;"
        "print(json.dumps(place_from(os.environ, lambda: str())))"
    )
    root = Path(__file__).parents[4]
    script = f"cd {root}; {sys.executable} -c '{code}'; srun -n1 {sys.executable} -c '{code}'"
    job = cluster.submit(script, "-w", OTHER)
    out = cluster.folder / f"job-{job}.out"
    wait_for(
        lambda: out.exists() and out.read_text().count("}") == 2, within_s=IN_TIME_S, what="both"
    )
    batch, step = map(json.loads, out.read_text().splitlines())
    assert batch == {"slurm_job_id": job, "slurm_node": OTHER}
    assert step == {"slurm_job_id": job, "slurm_step_id": "0", "slurm_node": OTHER}


def test_a_node_that_slurm_does_not_know_is_refused(slurm):
    outcome = slurm.cordon(Host("elsewhere"), WHY, IN_TIME_S)
    assert outcome.detail == "elsewhere not cordoned: Node elsewhere not found"
