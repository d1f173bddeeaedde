"""`lightkeeper gate` with TorchFT's real Lighthouse and real managers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from lightkeeper.worker_server.wire import GATE_ANSWER, PATH_GATE
from tests.gate.groups import Gate, Group, Lighthouse, all_commit_more, running
from tests.ports import free_port
from tests.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rig() -> Iterator[tuple[Lighthouse, Gate]]:
    lighthouse = Lighthouse(free_port())
    gate = Gate(lighthouse.url, free_port(), free_port())
    with running(lighthouse, gate):
        yield lighthouse, gate


@pytest.fixture
def fresh(rig: tuple[Lighthouse, Gate]) -> tuple[Lighthouse, Gate]:
    """The same processes, a Lighthouse that knows nobody, and an empty list."""
    lighthouse, gate = rig
    gate.deny()
    lighthouse.kill()
    lighthouse.start()
    return lighthouse, gate


def denial(scope: str, name: str, **more: Any) -> dict[str, Any]:
    return {"scope": scope, "name": name, "reason": "hang of rg_1.0 on host-1", **more}


def train(gate: Gate, names: list[str], **options: Any) -> list[Group]:
    groups = [Group(name, gate.url, **options).start() for name in names]
    all_commit_more(groups, 3)
    return groups


def whole(groups: list[Group]) -> None:
    size = len(groups)
    wait_for(lambda: all(g.members[-1:] == [size] for g in groups), within_s=10, what="all in")


def test_a_refused_replica_is_out_as_soon_as_its_heartbeats_have_aged(
    fresh: tuple[Lighthouse, Gate],
) -> None:
    _, gate = fresh
    groups = train(gate, ["rg_0:a", "rg_1:a", "rg_2:a"])
    sick, *others = groups[1], groups[0], groups[2]
    with running(*groups):
        whole(groups)
        sick.pause.set()  # its trainer hangs, its manager goes on beating
        wait_for(lambda: others[0].asking and others[1].asking, within_s=5, what="they wait")
        before = others[0].commits
        time.sleep(1.5)  # fixed on purpose: longer than the heartbeat timeout of 1 s
        assert others[0].commits <= before + 1, "TorchFT alone waits for the join timeout"
        began = time.monotonic()
        gate.deny(denial("replica", "rg_1:a"))
        others[0].commits_more(3)
        assert time.monotonic() - began < 7  # the join timeout is 10 s
        assert others[0].members[-1] == 2
        wait_for(lambda: _seen(gate, "rg_1:a")["refused_for"], within_s=5, what="it is told")
        seen = _seen(gate, "rg_1:a")
        assert "hang of rg_1.0" in seen["refused_for"]
        gate.deny()
        sick.pause.clear()
        whole(groups)


def test_a_quarantined_group_stays_out_and_its_new_incarnation_waits_to_be_admitted(
    fresh: tuple[Lighthouse, Gate],
) -> None:
    _, gate = fresh
    gate.deny(denial("group", "rg_1", refused=["rg_1:old"]))
    others = train(gate, ["rg_0:a", "rg_2:a"])
    new = Group("rg_1:new", gate.url).start()
    with running(new, *others):
        wait_for(lambda: _seen(gate, "rg_1:new")["asking_for_s"], within_s=5, what="it asks")
        others[0].commits_more(3)
        assert others[0].members[-1] == 2
        assert new.commits == 0
        gate.deny(denial("group", "rg_1", refused=["rg_1:old"], admitted=["rg_1:new"]))
        whole([new, *others])


def _seen(gate: Gate, replica_id: str) -> Any:
    rows = [s for s in gate.view()["replicas"] if s["replica_id"] == replica_id]
    return rows[0] if rows else {"asking_for_s": None}


def test_the_lighthouses_page_and_kill_button_work_through_the_gate(
    fresh: tuple[Lighthouse, Gate],
) -> None:
    lighthouse, gate = fresh
    page = requests.get(f"{gate.url}/status", timeout=5)
    assert "Current quorum_id" in page.text
    kill = "/replica/nobody/kill"
    through = requests.post(gate.url + kill, timeout=5)
    direct = requests.post(lighthouse.url + kill, timeout=5)
    assert (through.status_code, through.text) == (direct.status_code, direct.text)
    assert "failed to find replica" in through.text
    assert requests.get(gate.url + PATH_GATE, timeout=5).content == GATE_ANSWER
    assert requests.get(lighthouse.url + PATH_GATE, timeout=5).status_code == 404


@pytest.mark.parametrize("when", ["between", "during"])
def test_a_lighthouse_that_is_killed_and_comes_back_ends_nobody(
    fresh: tuple[Lighthouse, Gate], when: str
) -> None:
    lighthouse, gate = fresh
    groups = train(gate, ["rg_0:a", "rg_1:a", "rg_2:a"])
    with running(*groups):
        whole(groups)
        if when == "during":
            groups[2].pause.set()
            wait_for(lambda: groups[0].asking and groups[1].asking, within_s=5, what="they ask")
        lighthouse.kill()
        wait_for(lambda: gate.view()["lighthouse_up"] is False, within_s=5, what="it is missed")
        lighthouse.start()
        groups[2].pause.clear()
        all_commit_more(groups, 3)
        for group in groups:
            assert min(group.members[-3:]) == 3, "nobody trained alone"


def test_without_a_token_nobody_is_denied() -> None:
    gate = Gate("http://127.0.0.1:1", free_port(), free_port(), token=None)
    with running(gate):
        answer = requests.put(f"{gate.admin}/v1/gate/denied", json={"denied": []}, timeout=5)
        assert answer.status_code == 403
        assert gate.view()["lighthouse_up"] is False
