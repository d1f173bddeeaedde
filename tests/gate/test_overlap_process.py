"""`lightkeeper gate` replaced, killed and started again, under real managers of TorchFT."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests

from tests.gate.cuts import Proxy
from tests.gate.groups import Gate, Group, Lighthouse, all_commit_more, running, torchft
from tests.nursery import Child
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.integration
DENIED = {"scope": "replica", "name": "rg_9:a", "reason": "hang of rg_9.0 on host-9"}


@pytest.fixture
def rig() -> Iterator[tuple[Lighthouse, Gate]]:
    # longer than a gate takes to start beside other tests: whose heartbeat is older is left out
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=15_000)
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        yield lighthouse, gate


def train(url: str, **options: Any) -> list[Group]:
    groups = [Group(f"rg_{number}:a", url, **options).start() for number in range(2)]
    wait_for(lambda: all(g.members[-1:] == [2] for g in groups), within_s=20, what="both in")
    for group in groups:
        group.committed_s.clear()
    return groups


def nothing_lost(groups: list[Group], *, longest_s: float) -> None:
    """Both trained together all the time, in quorums of the same number."""
    for group in groups:
        assert group.error is None
        assert min(group.members[3:]) == 2, "one trained alone"
        assert group.longest_gap_s() < longest_s
    numbers = [set(group.quorum_ids) for group in groups]
    assert numbers[0] == numbers[1]


def ended(old: subprocess.Popen[bytes] | Child, within_s: float = 30) -> None:
    wait_for(lambda: old.poll() is not None, within_s=within_s, what="the old one has left")
    assert old.returncode == 0


# -- followed ----------------------------------------------------------------------------------


def test_a_gate_that_is_followed_loses_no_question_however_many_are_asked(
    rig: tuple[Lighthouse, Gate],
) -> None:
    """Groups without a step to train ask some hundred times a second each."""
    _, gate = rig
    gate.deny(DENIED)
    groups = train(gate.url, step_s=0.0, retries=29)
    with running(*groups):
        for _ in range(3):
            ended(gate.follow())
            all_commit_more(groups, 20)
        assert [denial["name"] for denial in gate.view()["denied"]] == ["rg_9:a"]
        nothing_lost(groups, longest_s=2.1)


def test_sighup_starts_the_next_one(rig: tuple[Lighthouse, Gate]) -> None:
    _, gate = rig
    groups = train(gate.url, step_s=0.1)
    with running(*groups):
        gate.process.send_signal(signal.SIGHUP)
        ended(gate.process)
        [pid] = [int(line[4:]) for line in health(gate).splitlines() if line.startswith("pid ")]
        assert pid != gate.process.pid
        all_commit_more(groups, 3)
        nothing_lost(groups, longest_s=2.1)
        gate.start()  # the one whose pid the rig knows ends it


def health(gate: Gate) -> str:
    return requests.get(f"{gate.admin}/healthz", timeout=5).text


def test_a_rollout_behind_a_service_that_lags_costs_no_step(rig: tuple[Lighthouse, Gate]) -> None:
    """As in Kubernetes: two addresses, the old pod is told to end, and still sent clients."""
    lighthouse, _ = rig
    grace = ["--grace", "60"]
    old = Gate(lighthouse.url, free_port(), free_port(), *grace)
    service = Proxy(old.url)
    groups = train(service.url, step_s=0.1)
    with running(*groups, service, old):
        old.deny(DENIED)
        old.process.terminate()
        all_commit_more(groups, 10)
        take_over = ["--take-over", old.admin.removeprefix("http://")]
        new = Gate(lighthouse.url, free_port(), free_port(), *grace, *take_over)
        with contextlib.ExitStack() as last:
            last.callback(new.kill)  # told to end, it would wait for another one
            assert [denial["name"] for denial in new.view()["denied"]] == ["rg_9:a"]
            wait_for(lambda: len(new.view()["replicas"]) == 2, within_s=5, what="both are heard")
            assert len(old.view()["replicas"]) == 2, "the new one answers for both"
            old.process.terminate()  # told twice
            all_commit_more(groups, 20)
            assert old.process.poll() is None, "it is still sent clients"
            service.lead_to(new.url)
            ended(old.process)
            all_commit_more(groups, 3)
            nothing_lost(groups, longest_s=2.1)


def test_a_gate_that_must_not_follow_is_refused_and_disturbs_nobody(
    rig: tuple[Lighthouse, Gate], capfd: pytest.CaptureFixture[str]
) -> None:
    lighthouse, gate = rig
    ports = [int(url.rpartition(":")[2]) for url in (gate.url, gate.admin)]
    elsewhere, right = "http://127.0.0.1:1", lighthouse.url
    for of, token, why in (
        (elsewhere, "secret", "is for http://127.0.0.1:"),
        (right, "another", "401"),
        (right, None, "401"),
    ):
        with pytest.raises(AssertionError):
            Gate(of, *ports, token=token)
        assert why in capfd.readouterr().err
    with pytest.raises(AssertionError):  # the admin port is another: it finds nobody
        Gate(right, ports[0], free_port())
    assert "Address already in use" in capfd.readouterr().err
    assert f"pid {gate.process.pid}\n" in health(gate)


# -- killed ------------------------------------------------------------------------------------


def test_a_gate_that_is_killed_costs_seconds_where_requests_are_asked_again(
    rig: tuple[Lighthouse, Gate],
) -> None:
    """Without TORCHFT_QUORUM_RETRIES it costs the job."""
    _, gate = rig
    gate.deny(DENIED)
    groups = train(gate.url, step_s=0.1, retries=29)
    with running(*groups):
        groups[1].pause.set()
        wait_for(lambda: groups[0].asking, within_s=5, what="one waits")
        gate.kill()
        gate.start()
        groups[1].pause.clear()
        all_commit_more(groups, 3)
        nothing_lost(groups, longest_s=20)
        assert [denial["name"] for denial in gate.view()["denied"]] == ["rg_9:a"]


def quorum_id(gate: Gate, replica_id: str) -> int:
    """Of a new quorum: every replica id is another member.

    It waits until the heartbeats of the former members have aged out, so it needs its own.
    """
    client = torchft().LighthouseClient(gate.url, timedelta(seconds=30))
    with beating(gate, replica_id):
        quorum: Any = client.quorum(
            replica_id, timedelta(seconds=30), address="http://node-1:1", step=5
        )
    return int(quorum.quorum_id)


@contextlib.contextmanager
def beating(gate: Gate, replica_id: str) -> Iterator[None]:
    """As a manager's own thread does it."""
    client, over = torchft().LighthouseClient(gate.url, timedelta(seconds=30)), threading.Event()

    def beat() -> None:
        while not over.wait(0.1):
            client.heartbeat(replica_id)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_no_quorum_id_comes_again_when_gate_and_lighthouse_were_killed() -> None:
    """Managers meet at a place named after it, which still holds the former quorum's addresses."""
    lighthouse = Lighthouse(free_port(), heartbeat_timeout_ms=300)
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        ids = [quorum_id(gate, f"rg_{number}:a") for number in range(2)]
        for life in "bc":
            gate.kill()
            lighthouse.kill()
            lighthouse.start()
            gate.start()
            ids += [quorum_id(gate, f"rg_{number}:{life}") for number in range(2)]
        assert ids == sorted(set(ids))
