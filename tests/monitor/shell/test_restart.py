"""A monitor that is killed and started again goes on where it was."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.monitor.shell.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.shell.process import TOKEN, Monitor, Training
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def words(tmp_path: Path, lighthouse: FakeLighthouse) -> list[str]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    return [
        "--store", str(tmp_path / "m.db"), "--token-file", str(tmp_path / "token"),
        "--lighthouse", lighthouse.url, "--tick", "0.2", "--set", "stall_floor_s=1",
        "--set", "warm_up_commits=0", "--set", "warm_up_budget_s=0",
    ]  # fmt: skip


@pytest.fixture
def training(fleet: FakeFleet, lighthouse: FakeLighthouse) -> Iterator[Training]:
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    made = Training(*ranks)
    yield made
    made.close()


def incidents(monitor: Monitor) -> list[dict]:
    return monitor.get("/v1/incidents")["incidents"]


def test_a_killed_monitor_knows_everything_again(
    words: list[str], port: int, training: Training
) -> None:
    monitor = Monitor(*words, "--observe", port=port)
    try:
        monitor.ready()
        monitor.register(*training.ranks)
        monitor.call("PUT", "/v1/quarantine/node7", json={"reason": "ECC errors", "hours": 5})
        wait_until(lambda: monitor.get("/v1/snapshot")["ranks"][2:], 10, "three ranks are seen")
        steps = training.ranks[0].step
        wait_until(lambda: training.ranks[0].step > steps + 40, 10, "they train for a while")
        training.hung.add("rg_1")
        wait_until(
            lambda: [one for one in incidents(monitor) if one["decisions"]], 20, "it is held"
        )
        (before,) = incidents(monitor)
        assert (before["kind"], before["culprits"]) == ("not_entered", ["rg_1.0"])
        assert before["decisions"][0]["guard"] == "observe"
        targets = monitor.get("/v1/sd")
        assert monitor.end(signal.SIGKILL) == -signal.SIGKILL

        monitor = Monitor(*words, "--observe", port=port)
        monitor.ready()
        snapshot = monitor.get("/v1/snapshot")
        assert [rank["rank"] for rank in snapshot["ranks"]] == ["rg_0.0", "rg_1.0", "rg_2.0"]
        assert [rank["unreachable"] for rank in snapshot["ranks"]] == [None, None, None]
        assert monitor.get("/v1/sd") == targets
        assert [entry["reason"] for entry in snapshot["quarantine"]] == ["ECC errors"]
        assert monitor.get("/v1/admission?host=node7")["admit"] is False
        (after,) = incidents(monitor)
        assert (after["id"], after["milestones"]) == (before["id"], before["milestones"])
        assert after["decisions"][: len(before["decisions"])] == before["decisions"]
        assert monitor.end(signal.SIGTERM) == 0
    finally:
        monitor.end()


def test_a_hung_group_is_evicted_and_its_story_survives(
    words: list[str], port: int, training: Training, lighthouse: FakeLighthouse, tmp_path: Path
) -> None:
    def kill(_: str):
        training.ranks[1].die()
        lighthouse.form("rg_0:u0", "rg_2:u2")
        return 500, "text/plain", b"transport error"

    lighthouse.on_kill = kill
    monitor = Monitor(*words, port=port)
    try:
        monitor.ready()
        monitor.register(*training.ranks)
        wait_until(lambda: monitor.get("/v1/snapshot")["ranks"][2:], 10, "three ranks are seen")
        steps = training.ranks[0].step
        wait_until(lambda: training.ranks[0].step > steps + 40, 10, "they train for a while")
        training.hung.add("rg_1")
        wait_until(
            lambda: [one for one in incidents(monitor) if (one["eviction"] or {}).get("gone_s")],
            20,
            "it is evicted",
        )
        assert monitor.get("/v1/admission?host=node1&group=rg_1")["admit"], (
            "one hang blames no host"
        )
        assert [rank.alive for rank in training.ranks] == [True, False, True]
        assert monitor.end(signal.SIGTERM) == 0
    finally:
        monitor.end()
    with sqlite3.connect(tmp_path / "m.db") as db:
        decided = db.execute("SELECT action FROM decisions WHERE action = 'evict'").fetchall()
    db.close()
    assert decided == [("evict",)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_quickly(
    words: list[str], port: int, number: signal.Signals
) -> None:
    monitor = Monitor(*words, port=port)
    try:
        monitor.ready()
        assert monitor.end(number) == 0
    finally:
        monitor.end()
    assert "stopping" in monitor.lines[-1]
