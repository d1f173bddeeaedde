"""A monitor that is killed and started again goes on where it was."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.incidents import fired
from tests.monitor.fakes import FakeLighthouse, wait_until
from tests.monitor.process import QUICK, Monitor, Training
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def words(tmp_path: Path, token_file: Path, lighthouse: FakeLighthouse) -> list[str]:
    return [
        "--store", str(tmp_path / "m.db"), "--token-file", str(token_file),
        "--lighthouse", lighthouse.url, *QUICK,
    ]  # fmt: skip


def incidents(monitor: Monitor) -> list[dict]:
    return monitor.get("/v1/incidents")["incidents"]


def lasting(monitor: Monitor) -> list[dict]:
    return fired(incidents(monitor))


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
        wait_until(lambda: [one for one in lasting(monitor) if one["decisions"]], 20, "it is held")
        (before,) = lasting(monitor)
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
        (after,) = lasting(monitor)
        assert (after["id"], after["milestones"]) == (before["id"], before["milestones"])
        assert after["decisions"][: len(before["decisions"])] == before["decisions"]
        assert monitor.end(signal.SIGTERM) == 0
    finally:
        monitor.end()


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
