"""The monitor as users start it, with a scheduler: what quarantine does there."""

from __future__ import annotations

import json
import signal
import socket

import pytest

from tests.monitor.schedulers import real_slurm
from tests.monitor.schedulers.receiver import SECRET, Receiver, served
from tests.monitor.shell.process import TOKEN, Monitor, lightkeeper
from tests.waiting import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def receiver():
    made = Receiver()
    with served(made) as url:
        made.url = url
        yield made


@pytest.fixture
def words(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    return [
        "--store", str(tmp_path / "m.db"), "--token-file", str(tmp_path / "token"), "--tick", "0.2",
        "--no-journal",
    ]  # fmt: skip


def hook(receiver, tmp_path):
    secret = str(tmp_path / "secret")
    return ["--scheduler", f"webhook={receiver.url}", "--scheduler-webhook-secret-file", secret]


def until(condition, what):
    wait_for(condition, within_s=20, what=what)


def quarantine(monitor, host):
    said = monitor.call("PUT", f"/v1/quarantine/{host}", json={"reason": "ECC errors"})
    assert said.status_code == 200, said.text


def test_quarantine_reaches_the_scheduler_and_so_does_the_release_by_the_next_monitor(
    words, port, receiver, tmp_path
):
    monitor = Monitor(*words, *hook(receiver, tmp_path), port=port)
    try:
        monitor.ready()
        quarantine(monitor, "node1")
        until(lambda: receiver.hosts["node1"], "cordoned")
        (owner,) = receiver.hosts["node1"]
        metric = 'lightkeeper_scheduler_hosts{scheduler="webhook",state="ours"} 1.0'
        until(lambda: metric in monitor.call("GET", "/metrics").text, "counted")
    finally:
        monitor.end(signal.SIGKILL)
    monitor = Monitor(*words, *hook(receiver, tmp_path), port=port)
    try:
        monitor.ready()
        assert receiver.hosts["node1"] == {owner}
        assert monitor.call("DELETE", "/v1/quarantine/node1").status_code == 200
        until(lambda: not receiver.hosts["node1"], "uncordoned")
        assert {body["owner"] for body, _ in receiver.requests} == {owner}
    finally:
        monitor.end(signal.SIGTERM)


def test_a_scheduler_that_fails_is_a_trouble_on_the_page_and_holds_up_no_tick(
    words, port, receiver, tmp_path
):
    receiver.answers = [(403, {}, b"who are you?")] * 1000
    monitor = Monitor(*words, *hook(receiver, tmp_path), port=port)
    try:
        monitor.ready()
        quarantine(monitor, "node1")
        said = "scheduler webhook: node1 not cordoned: it answers 403: who are you?"
        until(lambda: said in json.dumps(monitor.get("/v1/snapshot")), "a trouble")
    finally:
        monitor.end(signal.SIGTERM)


def test_observe_mode_asks_no_scheduler_for_anything(words, port, receiver, tmp_path):
    monitor = Monitor(*words, "--observe", *hook(receiver, tmp_path), port=port)
    try:
        monitor.ready()
        quarantine(monitor, "node1")
        metric = 'lightkeeper_scheduler_hosts{scheduler="webhook",state="ours"} 0.0'
        until(lambda: metric in monitor.call("GET", "/metrics").text, "a round")
        ticks = lambda: monitor.get("/v1/snapshot")["tick"]  # noqa: E731
        begun = ticks()
        until(lambda: ticks() > begun + 10, "two seconds of ticks")
        assert receiver.requests == []
    finally:
        monitor.end(signal.SIGTERM)


@pytest.mark.skipif(real_slurm.missing() is not None, reason=str(real_slurm.missing()))
def test_quarantine_drains_a_real_node_of_slurm_and_the_release_undrains_it(words, port, tmp_path):
    (tmp_path / "slurm").mkdir()
    with real_slurm.cluster(tmp_path / "slurm") as cluster:
        env = {name: cluster.environ[name] for name in ("SLURM_CONF", "PATH")}
        checked = lightkeeper("schedulers", "check", "--scheduler", "slurm", **env)
        assert checked.returncode == 0, checked.stdout + checked.stderr
        monitor = Monitor(*words, "--scheduler", "slurm", port=port, **env)
        try:
            monitor.ready()
            quarantine(monitor, "node1")
            until(lambda: "DRAIN" in cluster.state("node1"), "drained")
            assert "ECC errors" in cluster.reason("node1")
            monitor.call("DELETE", "/v1/quarantine/node1")
            until(lambda: cluster.state("node1") == "IDLE", "undrained")
        finally:
            monitor.end(signal.SIGTERM)
