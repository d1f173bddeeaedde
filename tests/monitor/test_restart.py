"""A monitor that is killed and started again goes on where it was."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.incidents import fired
from tests.monitor.fakes import FakeLighthouse, wait_until
from tests.monitor.process import QUICK, Monitor, Training, lightkeeper
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


def replay(*words: str) -> dict:
    done = lightkeeper("replay", *words, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def ticks(monitor: Monitor) -> float:
    """How many its journal has."""
    lines = monitor.call("GET", "/metrics").text.splitlines()
    values = dict(line.rsplit(maxsplit=1) for line in lines if not line.startswith("#"))
    assert float(values["lightkeeper_journal_failing"]) == 0
    return float(values["lightkeeper_journal_ticks_total"])


def test_a_killed_monitor_knows_everything_again_and_its_journal_tells_it(
    words: list[str], port: int, training: Training, tmp_path: Path
) -> None:
    words = [*words, "--observe", "--journal-file-hours", "0.001"]
    monitor, journal = Monitor(*words, port=port), tmp_path / "m.journal"
    try:
        monitor.ready()
        monitor.register(*training.ranks)
        monitor.call("PUT", "/v1/quarantine/node7", json={"reason": "ECC errors", "hours": 5})
        wait_until(lambda: monitor.get("/v1/snapshot")["ranks"][2:], 10, "three ranks are seen")
        steps = training.ranks[0].step
        wait_until(lambda: training.ranks[0].step > steps + 40, 10, "they train for a while")
        training.hung.add("rg_1")
        wait_until(
            lambda: [incident for incident in lasting(monitor) if incident["decisions"]],
            20,
            "it is held",
        )
        (before,) = lasting(monitor)
        assert (before["kind"], before["culprits"]) == ("not_entered", ["rg_1.0"])
        assert before["decisions"][0]["guard"] == "observe"
        targets, seen = monitor.get("/v1/sd"), ticks(monitor)
        assert monitor.end(signal.SIGKILL) == -signal.SIGKILL

        body = replay(str(journal), "--check")
        assert body["ticks"] >= seen - 1
        (again,) = fired(body["incidents"])
        for key in ("id", "story", "milestones"):
            assert again[key] == before[key]
        guards = [
            [row["guard"] for row in rows] for rows in (body["decisions"], before["decisions"])
        ]
        assert guards[0] == guards[1]

        monitor = Monitor(*words, port=port)
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
        wait_until(lambda: ticks(monitor) > 20, 20, "20 ticks more")
        assert monitor.end(signal.SIGKILL) == -signal.SIGKILL
    finally:
        monitor.end()
    body = replay(str(journal), "--check")
    assert [incident["id"] for incident in fired(body["incidents"])] == [before["id"]]
    assert any("the monitor was started again" in note for note in body["notes"])
    alone = sorted(journal.iterdir())[-2]  # the last may have been begun only
    assert replay(str(alone), "--check")["same"]
    body = replay(str(journal), "--set", "observe=false")
    assert "evict" not in {row["action"] for row in body["live"]["decisions"]}
    assert "evict" in {row["action"] for row in body["decisions"]}


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
