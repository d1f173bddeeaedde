"""What the monitor says when a part of itself is broken: page, metrics, health check."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lightkeeper.monitor.decide.pipeline import Pipeline
from lightkeeper.monitor.detect.detectors import DETECTORS
from lightkeeper.monitor.loop.components import VitalSigns
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.service import Service
from tests.monitor.api import Api, options
from tests.monitor.decide.test_pipeline import crashing
from tests.monitor.fakes import FakeFleet, FakeLighthouse

WELL = {"state": "well", "scale": 1.0, "hold": None, "conditions": {}}


@pytest.fixture
def api(
    tmp_path: Path, lighthouse: FakeLighthouse, fleet: FakeFleet, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Api]:
    monkeypatch.setattr(VitalSigns, "_starved", lambda _: 0.0)  # the load here is no subject
    with Service(options(tmp_path, lighthouse.url)) as made:
        api = Api(made)
        api.register(fleet.add("rg_0"))
        yield api


def judged_by(api: Api, judge: object) -> None:
    api.judged_by(judge)
    api.tick()


def samples(api: Api) -> list[str]:
    return api.call("GET", "/metrics").text.splitlines()


def test_a_well_monitor_says_so(api: Api) -> None:
    api.tick()
    body = api.get("/healthz")
    assert (body["ok"], body["status"], body["degraded"]) == (True, "ok", [])
    assert body["self_health"] == WELL
    assert api.get("/v1/snapshot")["unknown"] == []
    metrics = samples(api)
    assert 'lightkeeper_self_health{state="well"} 1.0' in metrics
    assert "lightkeeper_self_health_scale 1.0" in metrics
    ups = [line for line in metrics if line.startswith("lightkeeper_detector_up{")]
    assert len(ups) == len(DETECTORS)
    assert {line.rpartition(" ")[2] for line in ups} == {"1.0"}


def test_a_detector_that_raises_is_unknown_on_the_page_in_metrics_and_in_the_health_check(
    api: Api,
) -> None:
    judged_by(api, Pipeline(KeeperConfig(), detectors=crashing(Kind.DEAD)))
    why = "detector dead crashed: ZeroDivisionError: a bug"
    snapshot = api.get("/v1/snapshot")
    assert snapshot["unknown"] == [{"kind": "dead", "why": why}]
    metrics = samples(api)
    assert 'lightkeeper_detector_up{detector="dead"} 0.0' in metrics
    assert 'lightkeeper_detector_up{detector="not_entered"} 1.0' in metrics
    assert 'lightkeeper_detector_failures_total{detector="dead"} 1.0' in metrics
    body = api.get("/healthz")  # 200: a restart would mend nothing
    assert (body["status"], body["degraded"]) == ("degraded", [f"unknown: dead: {why}"])
    assert api.get("/readyz")["degraded"] == [f"unknown: dead: {why}"]
    page = api.call("GET", "/", headers={"Accept": "text/html"}).text
    assert "Nobody looks for dead: " in page
    assert why in page


def test_when_nothing_is_judged_the_monitor_is_alive_and_not_ready(api: Api) -> None:
    api.tick()

    class Broken:
        def tick(self, snapshot: object) -> None:
            raise RuntimeError("a bug")

    judged_by(api, Broken())
    assert api.get("/healthz")["status"] == "degraded"
    answer = api.call("GET", "/readyz")
    assert (answer.status_code, answer.json()) == (
        503, {"error": "nothing is judged: every kind of fault is unknown"},
    )  # fmt: skip
    assert 'lightkeeper_detector_up{detector="dead"} 0.0' in samples(api)
    judged_by(api, Pipeline(KeeperConfig()))
    assert api.get("/readyz")["degraded"] == []


def test_a_store_that_does_not_write_is_said_everywhere(api: Api) -> None:
    keeper = api.service.keeper
    signs = VitalSigns((lambda: "disk is full", lambda: None))
    keeper._observing._components = replace(keeper._components, vitals=signs)
    api.tick()
    health = api.get("/healthz")["self_health"]
    assert health["state"] == "cannot_write"
    assert health["hold"] == (
        "this monitor could not remember it: its disk takes no writes: disk is full"
    )
    assert 'lightkeeper_self_health{state="cannot_write"} 1.0' in samples(api)


def test_a_wait_for_a_core_is_held_against_a_second_at_least(monkeypatch) -> None:
    monkeypatch.setattr(f"{VitalSigns.__module__}._waited_s", lambda: {"main": 0.3})
    signs, now_s = VitalSigns(), time.monotonic()
    signs._taken.extend([(now_s - 1.3, {"main": 0.0}), (now_s - 0.3, {"main": 0.1})])
    assert signs.measure().starved < 0.3  # 0.2 of the last 0.3 s


def test_vital_signs_are_measured_or_none() -> None:
    signs = VitalSigns((lambda: None, lambda: "full", lambda: "gone"))
    first, second = signs.measure(), signs.measure()
    assert first.starved is None  # nothing to compare with yet
    assert second.starved is None or 0.0 <= second.starved <= 1.0
    assert first.disk == "full; gone"
    assert first.wall_s is not None
    assert second.wall_s is not None
