"""`lightkeeper gate` when its keeper, or all of it, is killed: who serves, who takes over."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import requests

from lightkeeper.monitor.gate.hot_restart import receive, shown, take_over, unsupervised
from lightkeeper.monitor.gate.listener import resolve
from tests.monitor.gate.groups import (
    Gate,
    Group,
    Lighthouse,
    all_commit_more,
    is_there,
    running,
    torchft,
)
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
DENIED = {"scope": "replica", "name": "rg_9:a", "reason": "hang of rg_9.0 on host-9"}


@pytest.fixture(scope="module")
def rig() -> Iterator[Gate]:
    """One gate for those who leave it as it was: with its supervisor, and nobody denied."""
    lighthouse = Lighthouse(free_port())
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        yield gate


def quorum_id(gate: Gate, replica_id: str) -> int:
    """Of a new quorum: every replica id is another member.

    It waits until the heartbeats of the former members have aged out, so it needs its own.
    """
    client = torchft().LighthouseClient(gate.url, timedelta(seconds=30))
    with beating(gate, replica_id):
        quorum: Any = client.quorum(replica_id, timedelta(seconds=30), address="http://node-1:1")
    return int(quorum.quorum_id)


@contextmanager
def beating(gate: Gate, replica_id: str) -> Iterator[None]:
    """As a manager's own thread does it."""
    client, over = torchft().LighthouseClient(gate.url, timedelta(seconds=30)), Event()

    def beat() -> None:
        while not over.wait(0.1):
            client.heartbeat(replica_id)

    thread = Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def orphan_of(gate: Gate) -> int:
    """Kill its keeper, and wait until the worker has noticed."""
    worker = gate.kill()
    wait_for(
        lambda: any(shown(name).endswith(f"(pid {worker})") for name in unsupervised()),
        within_s=10,
        what="the worker can be found",
    )
    return worker


def gone(worker: int) -> None:
    """It hands over first, and ends then."""
    wait_for(lambda: not is_there(worker), within_s=30, what="the old worker's end")


def healthz(gate: Gate) -> str:
    return requests.get(f"{gate.admin}/healthz", timeout=5).text


@pytest.mark.parametrize("lighthouse_dies", [True, False], ids=["both", "gate-alone"])
def test_no_quorum_id_comes_again_when_gate_and_lighthouse_were_both_killed(
    tmp_path: Path, lighthouse_dies: bool
) -> None:
    state = tmp_path / "gate.json"
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=300)
    gate = Gate(lighthouse.url, free_port(), free_port(), "--state", str(state))
    with running(lighthouse, gate):
        before = [quorum_id(gate, f"rg_{number}:a") for number in range(2)]
        gate.deny(DENIED)
        known(state, before)
        for _ in range(2):  # the second time its own file is read
            gate.kill_both()
            if lighthouse_dies:
                lighthouse.kill()
                lighthouse.start()
            gate.start()
            after = [quorum_id(gate, f"rg_{number}:b") for number in range(2)]
            assert min(after) > max(before)
            assert len(set(after)) == 2
            assert [denial["name"] for denial in gate.view()["denied"]] == ["rg_9:a"]
            before = after
            known(state, before)


def known(state: Path, ids: list[int]) -> None:
    """Wait until the disk is ahead of what was told."""
    wait_for(lambda: _reserved(state) > max(ids), within_s=10, what="the disk knows")


def _reserved(state: Path) -> int:
    return int(json.loads(state.read_text())["quorum_ids_reserved"]) if state.exists() else 0


def test_groups_that_train_on_while_all_of_the_gate_is_away_go_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=5000)
    state = str(tmp_path / "gate.json")
    gate = Gate(lighthouse.url, free_port(), free_port(), "--state", state)
    groups = [Group(f"rg_{number}:a", gate.url) for number in range(3)]
    with running(lighthouse, gate, *[group.start() for group in groups]):
        wait_for(lambda: all(g.members[-1:] == [3] for g in groups), within_s=20, what="all in")
        for group in groups:
            group.pause.set()  # a long step
        wait_for(lambda: not any(g.asking for g in groups), within_s=10, what="nobody asks")
        gate.kill_both()
        gate.start()
        for group in groups:
            group.pause.clear()
        for group in groups:
            group.commits_more(3)
            assert group.members[-1] == 3
        assert len({group.quorum_ids[-1] for group in groups}) == 1


@pytest.mark.parametrize("host", ["localhost", "[::1]"])
def test_the_next_gate_finds_the_worker_however_the_address_is_written(host: str) -> None:
    gate = Gate("http://127.0.0.1:1", free_port(), free_port(), host=host)
    with running(gate):
        gate.deny(DENIED)
        worker = orphan_of(gate)
        assert "the keeper is gone" in healthz(gate)
        metrics = requests.get(f"{gate.admin}/metrics", timeout=5).text
        assert "lightkeeper_gate_kept 0.0" in metrics
        gate.start()
        gone(worker)
        assert "the keeper is gone" not in healthz(gate)
        assert [denial["name"] for denial in gate.view()["denied"]] == ["rg_9:a"]


def test_the_admin_port_moves_with_the_next_gate(rig: Gate) -> None:
    old = rig.admin
    worker = orphan_of(rig)
    moved = free_port()
    rig._words[rig._words.index("--admin") + 1] = f"127.0.0.1:{moved}"
    rig.admin = f"http://127.0.0.1:{moved}"
    rig.start()
    gone(worker)
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{old}/healthz", timeout=5)


def test_who_comes_to_take_over_and_dies_changes_nothing(rig: Gate) -> None:
    group = Group("rg_0:a", rig.url)
    with running(group.start()):
        group.commits_more(3)
        worker = orphan_of(rig)
        [name] = [name for name in unsupervised() if shown(name).endswith(f"(pid {worker})")]
        for heard in (0, 1, 3):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
                channel.connect(name)
                for _ in range(heard):
                    for file in receive(channel)[1]:
                        os.close(file)
            group.commits_more(3)
            assert is_there(worker)
        rig.start()
        gone(worker)
        group.commits_more(3)


def test_a_gate_that_takes_over_loses_no_question_however_many_are_asked() -> None:
    """Groups without a step to train ask some hundred times a second each."""
    lighthouse = Lighthouse(free_port())
    gate = Gate(lighthouse.url, free_port(), free_port())
    groups = [Group(f"rg_{number}:a", gate.url, step_s=0.0) for number in range(3)]
    with running(lighthouse, gate, *[group.start() for group in groups]):
        for _ in range(3):
            worker = orphan_of(gate)
            all_commit_more(groups, 20)
            gate.start()
            gone(worker)
            all_commit_more(groups, 20)


def test_a_worker_that_does_not_answer_the_next_gate_is_ended(rig: Gate) -> None:
    port = int(rig.url.rpartition(":")[2])
    worker = orphan_of(rig)
    os.kill(worker, signal.SIGSTOP)
    assert take_over(resolve("127.0.0.1", port)[1], silent_s=0.3) is None
    wait_for(lambda: not is_there(worker), within_s=10, what="it is ended")
    rig.start()


def test_a_second_gate_on_the_same_address_is_refused_and_disturbs_nobody(
    rig: Gate, capfd: pytest.CaptureFixture[str]
) -> None:
    children = rig.children()
    with pytest.raises(AssertionError):
        Gate("http://127.0.0.1:1", int(rig.url.rpartition(":")[2]), free_port())
    assert "cannot serve at --bind" in capfd.readouterr().err
    assert rig.children() == children
    worker = orphan_of(rig)
    with pytest.raises(AssertionError):  # the groups' port is free, the admin's is not
        Gate("http://127.0.0.1:1", free_port(), int(rig.admin.rpartition(":")[2]))
    said = capfd.readouterr().err
    assert "a worker of a gate that died serves on at 127.0.0.1:" in said
    assert f"(pid {worker})" in said
    rig.start()
