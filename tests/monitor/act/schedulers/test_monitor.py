"""The monitor as users start it, with a scheduler: what quarantine does there."""

from __future__ import annotations

import json
import signal
import sqlite3
from contextlib import closing

import pytest

from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.service import Service
from lightkeeper.worker_server.wire import to_json
from tests.changed import replace
from tests.monitor.act.schedulers import real_slurm
from tests.monitor.act.schedulers.receiver import SECRET, Receiver, served
from tests.monitor.api import Api
from tests.monitor.commands.parsing import monitor_options
from tests.monitor.fakes import page
from tests.monitor.process import TOKEN, Monitor, lightkeeper
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def receiver():
    made = Receiver()
    with served(made) as url:
        made.url = url
        yield made


@pytest.fixture
def words(tmp_path, token_file):
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return [
        "--store", str(tmp_path / "m.db"), "--token-file", str(token_file), "--tick", "0.2",
        "--no-journal",
    ]  # fmt: skip


@pytest.fixture
def start(port):
    """Starts a monitor, one after the other."""
    running = []

    def begin(*words, **env):
        running.append(Monitor(*words, port=port, **env))
        running[-1].ready()
        return running[-1]

    yield begin
    for monitor in running:
        monitor.end(signal.SIGTERM)


@pytest.fixture
def hook(receiver, words, tmp_path):
    secret = str(tmp_path / "secret")
    url = f"webhook={receiver.url}"
    return [*words, "--scheduler", url, "--scheduler-webhook-secret-file", secret]


def until(condition, what):
    wait_for(condition, within_s=20, what=what)


def evictions(path):
    """What the store knows of them: an eviction by hand is an incident, too."""
    with closing(sqlite3.connect(path)) as db:
        return " ".join(body for (body,) in db.execute("SELECT body FROM records"))


def quarantine(monitor, host):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    body = {"reason": "ECC errors"}
    said = monitor.call("PUT", f"/v1/quarantine/{host}", json=body, headers=headers)
    assert said.status_code == 200, said.text


def test_quarantine_reaches_the_scheduler_and_so_does_the_release_by_the_next_monitor(
    hook, start, receiver
):
    receiver.answers = [(403, {}, b"who are you?")] * 3
    monitor = start(*hook)
    quarantine(monitor, "node1")
    said = "scheduler webhook: node1 not cordoned: it answered 403: who are you?"
    until(lambda: said in json.dumps(monitor.get("/v1/snapshot")), "a trouble")
    until(lambda: receiver.hosts["node1"], "cordoned all the same")
    (owner,) = receiver.hosts["node1"]
    metric = 'lightkeeper_scheduler_hosts{scheduler="webhook",state="ours"} 1.0'
    until(lambda: metric in monitor.call("GET", "/metrics").text, "counted")
    monitor.end(signal.SIGKILL)
    monitor = start(*hook)
    assert receiver.hosts["node1"] == {owner}
    assert monitor.call("DELETE", "/v1/quarantine/node1").status_code == 200
    until(lambda: not receiver.hosts["node1"], "uncordoned")
    assert {body["owner"] for body, _ in receiver.requests} == {owner}


def test_observe_mode_asks_no_scheduler_for_anything(hook, receiver):
    with Service(monitor_options(*hook, "--observe", "--bind", "127.0.0.1:0")) as service:
        monitor, ticks = Api(service), iter(range(20))
        quarantine(monitor, "node1")
        metric = 'lightkeeper_scheduler_hosts{scheduler="webhook",state="ours"} 0.0'

        def in_metrics():
            monitor.tick_in_turn()
            return metric in monitor.call("GET", "/metrics").text

        until(in_metrics, "a round")
        until(lambda: monitor.tick_in_turn() and next(ticks, None) is None, "2 s of ticks")
    assert receiver.requests == []


@pytest.mark.skipif(real_slurm.missing() is not None, reason=str(real_slurm.missing()))
def test_a_group_that_nobody_else_can_end_is_ended_by_its_real_step_and_no_other(
    words, start, tmp_path, lighthouse, fleet
):
    (tmp_path / "slurm").mkdir()
    with real_slurm.cluster(tmp_path / "slurm") as cluster:
        steps = " & ".join(["srun --exact -n1 sleep 100"] * 3)
        job = cluster.submit(f"{steps} & wait", "-n3")
        until(lambda: len(cluster.steps(job)) == 4, "three steps and the batch script")
        for n in range(3):
            rank = fleet.add(f"rg_{n}", host="node1", replica_id=f"rg_{n}:u", token=TOKEN)
            place = {"slurm_job_id": job, "slurm_step_id": str(n), "slurm_node": "node1"}
            rank.identity = replace(rank.identity, place=place)
        lighthouse.form(*(f"rg_{n}:u" for n in range(3)))
        sick = fleet.ranks[RankName("rg_1.0")]
        sick.evict = lambda _: page({"error": "the kernel does not let it go"}, 500)

        def state(rank):
            rank.alive = f"{job}.1" in cluster.steps(job)
            if not rank.alive:
                lighthouse.form("rg_0:u", "rg_2:u")
                lighthouse.ages_s["rg_1:u"] = 60.0
            return page(to_json(rank.report()))

        sick.answer = state
        env = {name: cluster.environ[name] for name in ("SLURM_CONF", "PATH")}
        checked = lightkeeper("check", "scheduler", "--scheduler", "slurm", **env)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        monitor = start(*words, "--lighthouse", lighthouse.url, "--scheduler", "slurm", **env)
        monitor.register(*fleet.ranks.values())
        until(lambda: len(monitor.get("/v1/ranks")["ranks"]) == 3, "three ranks")
        shown = {row["rank"]: row["place"] for row in monitor.get("/v1/ranks")["ranks"]}
        assert shown["rg_1.0"]["slurm_step_id"] == "1"
        said = monitor.call("POST", "/v1/groups/rg_1/evict", json={"reason": "by hand"})
        assert said.status_code == 200, said.text
        wait_for(lambda: not sick.alive, within_s=60, what="its step is gone")
        assert {f"{job}.0", f"{job}.2"} <= cluster.steps(job)
        # or "slurm: asked": the ladder may see the group gone before scancel's word is in
        until(lambda: "slurm: " in evictions(tmp_path / "m.db"), "the rung's outcome")
