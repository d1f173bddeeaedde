"""Incidents become traces, the log goes with them, and no collector holds the monitor up."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act import otlp
from lightkeeper.monitor.act.otlp import Telemetry
from lightkeeper.monitor.commands.run import signals_for_otlp
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.incident import Incident, Milestones, State, Transition, trace_id
from lightkeeper.monitor.service import Service
from tests.monitor.act.collectors import Collector, send_to, values
from tests.monitor.api import FAST, Api, options
from tests.monitor.fakes import FakeFleet, FakeLighthouse, wait_until
from tests.monitor.process import Training
from tests.monitor.samples import incident

BOTH = frozenset({"traces", "logs"})
Start = Callable[..., Telemetry]


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def page() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def start(collector: Collector, page: CollectorRegistry, monkeypatch) -> Iterator[Start]:
    """Starts a monitor's telemetry, towards the collector."""
    made: list[Telemetry] = []

    def begin(signals: frozenset[str] = BOTH, **variables: str) -> Telemetry:
        send_to(collector.url, monkeypatch, **variables)
        made.append(Telemetry(signals, {"service.name": "lightkeeper"}, page))
        return made[-1]

    yield begin
    for telemetry in made:
        telemetry.close()


def counted(page: CollectorRegistry, signal: str, outcome: str) -> float:
    labels = {"signal": signal, "outcome": outcome}
    return page.get_sample_value("lightkeeper_otlp_total", labels) or 0.0


def evicted(first_seen_s: float = 100.0) -> Incident:
    """Began at 90, was seen at 100, fired at 102, was asked at 103, left at 106."""
    at = Milestones(
        first_seen_s, firing_s=102.0, evict_asked_s=103.0, left_quorum_s=106.0,
        survivor_commit_s=108.0,
    )  # fmt: skip
    fired = incident(first_seen_s=first_seen_s)
    story = (*fired.story, Transition(106.0, "resolved", "evicted: left the quorum"))
    return replace(fired, state=State.RESOLVED, milestones=at, story=story, resolution="evicted")


def test_an_incident_is_a_trace_with_its_story_and_a_span_for_each_stage(
    start: Start, collector: Collector
) -> None:
    telemetry = start()
    telemetry.take([evicted()], {}, 1000.0)
    wait_until(lambda: len(collector.spans) == 5, 10, "all are taken")
    spans = {span.name: span for span in collector.spans}
    seconds = {
        name: (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9)
        for name, span in spans.items()
    }
    assert seconds == {
        "incident not_entered": (1090.0, 1106.0), "detect": (1090.0, 1102.0),
        "decide": (1102.0, 1103.0), "leave": (1103.0, 1106.0), "recover": (1103.0, 1108.0),
    }  # fmt: skip
    root = spans.pop("incident not_entered")
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert {span.trace_id.hex() for span in collector.spans} == {trace_id("inc-1")}
    events = [(event.name, event.time_unix_nano / 1e9) for event in root.events]
    assert events == [
        ("fault", 1090.0), ("pending", 1100.0), ("firing", 1102.0), ("resolved", 1106.0),
    ]  # fmt: skip
    assert values(root.events[0].attributes) == {"reason": "rg_1.0 has not moved for 9 s"}
    said = values(root.attributes)
    assert said["lightkeeper.incident"] == "inc-1"
    assert (said["lightkeeper.group"], said["lightkeeper.rank"]) == ("rg_1", "rg_1.0")
    assert root.status.code == 2  # an error, in red


def test_each_span_is_sent_once_and_the_return_when_it_comes(
    start: Start, collector: Collector
) -> None:
    """The group is back after the incident is over; another monitor may send that."""
    first = start(frozenset({"traces"}))
    over = evicted()
    fired = incident()
    first.take([fired], {}, 0.0)
    first.take([over], {fired.id: fired}, 0.0)
    first.take([over], {over.id: over}, 0.0)
    first.close()
    back = replace(over, milestones=replace(over.milestones, rejoined_s=150.0))
    start(frozenset({"traces"})).take([back], {over.id: over}, 0.0)
    wait_until(lambda: len(collector.spans) == 6, 10, "all are taken")
    names = [span.name for span in collector.spans]
    assert sorted(names) == [
        "decide", "detect", "incident not_entered", "leave", "recover", "rejoin",
    ]  # fmt: skip
    (root,) = (s for s in collector.spans if s.name.startswith("incident"))
    rejoin = collector.spans[-1]
    assert (rejoin.trace_id, rejoin.parent_span_id) == (root.trace_id, root.span_id)


def test_a_suspicion_that_was_taken_back_is_no_trace(
    start: Start, collector: Collector, page: CollectorRegistry
) -> None:
    telemetry = start()
    taken_back = replace(evicted(), milestones=Milestones(100.0))
    telemetry.take([taken_back], {}, 0.0)
    telemetry.close()
    assert collector.spans == []
    assert counted(page, "traces", "sent") == 0


def test_a_record_of_the_log_that_is_about_an_incident_is_in_its_trace(
    start: Start, collector: Collector, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    caplog.set_level(logging.INFO, "lightkeeper")
    monkeypatch.setattr(logging.getLogger("lightkeeper"), "propagate", False)  # pytest-xdist fails
    start()
    log = logging.getLogger("lightkeeper.monitor.loop")
    about = {"incident": "inc-1", "group": "rg_1", "rank": "rg_1.0"}
    log.warning("%s fires \ud800\x1b[2J", "inc-1", extra=about)
    log.info("stopping")
    try:
        int("no")
    except ValueError:
        log.exception("failed")
    logging.getLogger("waitress").error("another's")
    wait_until(lambda: len(collector.records) == 3, 10, "all are taken")
    (name, first), (_, second), (_, third) = collector.records
    assert name == "lightkeeper.monitor.loop"
    assert first.trace_id.hex() == trace_id("inc-1")
    assert first.body.string_value == "inc-1 fires \\ud800\\x1b[2J"
    assert (first.severity_text, first.severity_number) == ("WARNING", 13)
    assert values(first.attributes) == {f"lightkeeper.{k}": v for k, v in about.items()}
    assert (second.trace_id, second.severity_number) == (b"", 9)
    assert "ValueError: invalid literal" in values(third.attributes)["lightkeeper.stacktrace"]


def test_service_and_headers_are_as_opentelemetrys_variables_say(
    start: Start, collector: Collector
) -> None:
    telemetry = start(
        OTEL_SERVICE_NAME="keeper-a", OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=prod",
        OTEL_EXPORTER_OTLP_HEADERS="x-key=sesame", OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
    )  # fmt: skip
    telemetry.take([evicted()], {}, 0.0)
    wait_until(lambda: collector.spans, 10, "they are taken")
    assert collector.resources[0]["service.name"] == "keeper-a"
    assert collector.resources[0]["deployment.environment.name"] == "prod"
    assert collector.requests[0][1]["x-key"] == "sesame"


# -- a collector that is away, slow, or refuses ----------------------------------------------------


def test_a_collector_that_refuses_costs_what_it_refused_and_is_a_trouble_until_it_takes(
    start: Start, collector: Collector, page: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 401
    telemetry = start(frozenset({"traces"}))
    telemetry.take([evicted()], {}, 0.0)
    wait_until(lambda: counted(page, "traces", "failed") == 5, 10, "it is counted")
    wait_until(lambda: list(telemetry.troubles()), 10, "it is a trouble")
    (trouble,) = telemetry.troubles()
    assert "401" in trouble
    wait_until(lambda: caplog.records, 10, "the log says so")
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [trouble]
    collector.status = 200
    telemetry.take([evicted()], {}, 0.0)
    wait_until(lambda: counted(page, "traces", "sent") == 5, 10, "it takes them again")
    wait_until(lambda: not list(telemetry.troubles()), 10, "the trouble is over")


def test_a_collector_that_never_answers_makes_nobody_wait_and_the_queue_has_an_end(
    start: Start, collector: Collector, page: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "QUEUE", 100)
    collector.status = 0
    telemetry = start(OTEL_EXPORTER_OTLP_TIMEOUT="30")
    telemetry.take([evicted()], {}, 0.0)
    wait_until(lambda: collector.requests, 10, "a request hangs")
    began = time.monotonic()
    for _ in range(40):
        telemetry.take([evicted()], {}, 0.0)
    assert counted(page, "traces", "dropped") == 100
    telemetry.close()
    assert time.monotonic() - began < 10  # its deadline is 30 s


def test_nobody_there_is_a_failure_within_the_deadline(
    start: Start, collector: Collector, page: CollectorRegistry
) -> None:
    collector.close()
    telemetry = start(frozenset({"traces"}), OTEL_EXPORTER_OTLP_TIMEOUT="0.2")
    telemetry.take([evicted()], {}, 0.0)
    wait_until(lambda: counted(page, "traces", "failed") == 5, 20, "it is counted")


# -- what is asked for -----------------------------------------------------------------------------

ALL = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}


@pytest.mark.parametrize(
    ("variables", "signals"),
    [
        pytest.param({}, set(), id="nothing"),
        pytest.param(ALL, BOTH, id="endpoint"),
        pytest.param({**ALL, "OTEL_SDK_DISABLED": "true"}, set(), id="disabled"),
        pytest.param({**ALL, "OTEL_LOGS_EXPORTER": "none"}, {"traces"}, id="no-logs"),
        pytest.param(
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, {"traces"},
            id="traces-alone",
        ),
        pytest.param({**ALL, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, BOTH, id="http"),
        pytest.param({**ALL, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, set(), id="grpc"),
        pytest.param(
            {**ALL, "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"}, {"traces"}, id="logs-json"
        ),
    ],
)  # fmt: skip
def test_opentelemetrys_own_variables_say_what_is_sent(
    variables: dict[str, str], signals: set[str]
) -> None:
    assert signals_for_otlp(variables) == signals


@pytest.mark.parametrize("missing", [True, False], ids=["extra", "variable"])
def test_a_monitor_starts_without_the_extra_and_with_a_variable_that_makes_no_sense(
    missing: bool, tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    send_to("http://127.0.0.1:9", monkeypatch)
    if missing:
        monkeypatch.delitem(sys.modules, otlp.__name__)
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    else:
        provider = "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER"
        monkeypatch.setenv(provider, "nobodys")
    with Service(options(tmp_path, otlp=BOTH)) as service:
        service.keeper.tick()
        assert service.keeper._components.telemetry is None
    assert ("pip install 'lightkeeper[otlp]'" if missing else "nobodys") in caplog.text


# -- a whole monitor -------------------------------------------------------------------------------


def test_a_hang_that_a_monitor_evicts_is_a_trace_and_its_lines(
    tmp_path: Path, fleet: FakeFleet, lighthouse: FakeLighthouse, collector: Collector, monkeypatch
) -> None:
    send_to(collector.url, monkeypatch)
    ranks = [fleet.add(f"rg_{n}", host=f"node{n}", replica_id=f"rg_{n}:u{n}") for n in range(3)]
    lighthouse.form(*(rank.replica_id or "" for rank in ranks))
    config = KeeperConfig(clear_s=0.5, **FAST)
    with Service(options(tmp_path, lighthouse.url, config=config, otlp=BOTH)) as service:
        api, training = Api(service), Training(*ranks)
        api.register(*ranks)
        try:
            for _ in range(5):
                api.tick()
            training.hung.add("rg_1")
            wait_until(lambda: api.tick_in_turn() and not ranks[1].alive, 20, "rg_1 is out")
            lighthouse.form("rg_0:u0", "rg_2:u2")

            def root() -> Any:
                api.tick_in_turn()
                return [s for s in collector.spans if s.name == "incident not_entered"]

            wait_until(root, 20, "the incident is over and sent")
        finally:
            training.close()
        incidents = api.get("/v1/incidents")["incidents"]
    hang = next(each["id"] for each in incidents if each["eviction"])
    names = {span.name for span in collector.spans if span.trace_id.hex() == trace_id(hang)}
    assert {"incident not_entered", "detect", "decide", "leave"} <= names
    of_it = [r for _, r in collector.records if r.trace_id.hex() == trace_id(hang)]
    assert any(r.body.string_value.startswith("evict rg_1") for r in of_it)
    assert collector.resources[0]["service.name"] == "lightkeeper"
    assert api.metric("otlp_total", signal="traces", outcome="sent") == len(collector.spans)
