"""A real Jaeger takes an incident, and shows it as one trace.

Jaeger is at LIGHTKEEPER_JAEGER, on the path, or in /var/tmp/jaeger/bin. To build it, with Go:

    cp -r "$(go mod download -json github.com/jaegertracing/jaeger@v1.76.0 | jq -r .Dir)" src
    cd src && chmod -R u+w . && go build -o /var/tmp/jaeger/bin/jaeger ./cmd/jaeger

(`go install` refuses it: its go.mod replaces a module.)
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.otlp import Telemetry
from lightkeeper.monitor.model.incident import trace_id
from tests.monitor.act.collectors import send_to
from tests.monitor.act.test_otlp import counted, evicted
from tests.monitor.fakes import wait_until
from tests.ports import free_port

pytestmark = pytest.mark.integration
BUILT = "/var/tmp/jaeger/bin/jaeger"


@dataclass
class Jaeger:
    otlp: str
    query: str

    def trace(self, trace: str) -> list[dict[str, Any]]:
        """Its spans."""
        data = requests.get(f"{self.query}/api/traces/{trace}", timeout=10).json()["data"]
        return data[0]["spans"] if data else []


@pytest.fixture
def jaeger(tmp_path: Path) -> Iterator[Jaeger]:
    at = os.environ.get("LIGHTKEEPER_JAEGER") or shutil.which("jaeger") or shutil.which(BUILT)
    if at is None:
        pytest.skip(f"no Jaeger is here: none at LIGHTKEEPER_JAEGER, on the path, at {BUILT}")
    taker, asked, other = (f"127.0.0.1:{free_port()}" for _ in range(3))
    config = {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "pipelines": {
                "traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}
            },
            "telemetry": {"metrics": {"level": "none"}},
        },
        "extensions": {
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 100}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"}, "http": {"endpoint": asked},
                "grpc": {"endpoint": other},
            },
        },
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": taker}}}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }  # fmt: skip
    path = tmp_path / "jaeger.json"
    path.write_text(json.dumps(config))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([at, f"--config={path}"], stdout=log, stderr=log)
    made = Jaeger(f"http://{taker}", f"http://{asked}")
    try:

        def ready() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()
            try:
                return requests.get(f"{made.query}/api/services", timeout=5).ok
            except requests.RequestException:
                return False

        wait_until(ready, 60, "Jaeger is ready")
        yield made
    finally:
        process.terminate()
        process.wait(20)


def test_jaeger_shows_an_incident_as_one_trace_and_refuses_the_log(
    jaeger: Jaeger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes no logs: OTEL_LOGS_EXPORTER=none for it."""
    send_to(jaeger.otlp, monkeypatch)
    page = CollectorRegistry()
    telemetry = Telemetry(frozenset({"traces", "logs"}), {"service.name": "lightkeeper"}, page)
    over, shift_s = evicted(), time.time() - 1000.0
    try:
        telemetry.take([over], {}, shift_s)
        wait_until(lambda: len(jaeger.trace(trace_id(over.id))) == 5, 30, "all spans are there")
        at = replace(over.milestones, rejoined_s=150.0)
        telemetry.take([replace(over, milestones=at)], {over.id: over}, shift_s)
        wait_until(lambda: len(jaeger.trace(trace_id(over.id))) == 6, 30, "and the return")
    finally:
        telemetry.close()
    assert counted(page, "traces", "sent") == 6
    spans = {span["operationName"]: span for span in jaeger.trace(trace_id(over.id))}
    root = spans.pop("incident not_entered")
    assert root["references"] == []
    parents = {span["references"][0]["spanID"] for span in spans.values()}
    assert parents == {root["spanID"]}
    assert {name: span["duration"] for name, span in spans.items()} == {
        "detect": 12_000_000, "decide": 1_000_000, "leave": 3_000_000, "recover": 5_000_000,
        "rejoin": 47_000_000,
    }  # fmt: skip
    tags = {tag["key"]: tag["value"] for tag in root["tags"]}
    assert tags["lightkeeper.incident"] == over.id
    assert tags["error"] is True
    names = [field["value"] for line in root["logs"] for field in line["fields"]
             if field["key"] == "event"]  # fmt: skip
    assert names == ["fault", "pending", "firing", "resolved"]
    services = requests.get(f"{jaeger.query}/api/services", timeout=10).json()["data"]
    assert services == ["lightkeeper"]
