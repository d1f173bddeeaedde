"""A real monitor is killed in the middle of a hang: its journal tells it all again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.process import QUICK, Monitor, Training, lightkeeper
from tests.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


def replay(*words: str) -> dict:
    done = lightkeeper("replay", *words, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def metric(monitor: Monitor, name: str) -> float:
    lines = monitor.call("GET", "/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.split()[0] == name]
    return float(value)


def test_two_killed_monitors_are_replayed_as_they_decided(
    tmp_path: Path, token_file: Path, fleet: FakeFleet, lighthouse: FakeLighthouse
) -> None:
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    training = Training(*ranks)
    words = [
        "--store", str(tmp_path / "m.db"), "--token-file", str(token_file),
        "--lighthouse", lighthouse.url, *QUICK, "--observe", "--journal-file-hours", "0.001",
    ]  # fmt: skip
    folder = tmp_path / "m.journal"
    monitor = Monitor(*words, port=free_port())
    try:
        monitor.ready()
        monitor.register(*ranks)
        steps = training.ranks[0].step
        wait_until(lambda: training.ranks[0].step > steps + 60, 20, "they train for a while")
        training.hung.add("rg_1")

        def held() -> list[dict]:
            found = monitor.get("/v1/incidents")["incidents"]
            return [one for one in found if one["decisions"]]

        (live,) = wait_until(held, 20, "the hang is held in observe mode")
        seen = metric(monitor, "lightkeeper_journal_ticks_total")
        assert metric(monitor, "lightkeeper_journal_failing") == 0
        assert monitor.end(signal.SIGKILL) == -signal.SIGKILL

        body = replay(str(folder), "--check")
        assert body["ticks"] >= seen - 1
        (again,) = body["incidents"]
        assert (again["id"], again["story"]) == (live["id"], live["story"])
        assert again["milestones"] == live["milestones"]
        guards = [one["guard"] for one in body["decisions"]]
        assert guards == [one["guard"] for one in live["decisions"]]

        monitor = Monitor(*words, port=free_port())
        monitor.ready()
        monitor.register(*ranks)
        wait_until(lambda: metric(monitor, "lightkeeper_journal_ticks_total") > 20, 20, "20 ticks")
        assert monitor.end(signal.SIGKILL) == -signal.SIGKILL
    finally:
        monitor.end()
        training.close()
    body = replay(str(folder), "--check")
    assert [one["id"] for one in body["incidents"]] == [live["id"]]
    assert any("the monitor was started again" in note for note in body["notes"])
    alone = sorted(folder.iterdir())[-2]  # the last may have been begun only
    assert replay(str(alone), "--check")["same"]
    (pair,) = replay(str(folder), "--set", "observe=false")["compared"]
    assert pair["live"]["held"] == "observe"
    assert pair["what_if"]["evicted_s"] is not None
