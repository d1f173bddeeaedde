"""What Prometheus is told: read from the ledger when it asks, so that a heartbeat pays nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from monitor.gate.ledger import BUCKETS_S, Counts
from monitor.gate.stream import Kind, Stage

if TYPE_CHECKING:
    from monitor.gate.admin import Desk
    from monitor.gate.gate import GateCore


def registry(desk: Desk) -> CollectorRegistry:
    """Everything of this gate."""
    made = CollectorRegistry()
    made.register(_Collector(desk))
    return made


class _Collector:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def collect(self) -> Iterator[Metric]:
        core = self._desk.core
        counts = core.ledger.counts
        yield from _counters(counts)
        refused = CounterMetricFamily(
            "lightkeeper_gate_refused",
            "Heartbeats and quorum requests refused, by what the denial names",
            labels=["scope"],
        )
        for scope, number in counts.refused.items():
            refused.add_metric([scope.value], number)
        yield refused
        yield _histogram(counts)
        for name, text, value in self._gauges():
            yield GaugeMetricFamily(f"lightkeeper_gate_{name}", text, value=value)
        yield from _replicas(core)

    def _gauges(self) -> Iterator[tuple[str, str, float]]:
        core, desk = self._desk.core, self._desk
        quorums = [
            stream.stage
            for client in core.clients
            for stream in client.streams.values()
            if stream.kind is Kind.QUORUM
        ]
        held = sum(stage is Stage.HELD for stage in quorums)
        yield "held", "Quorum requests that wait for a newer list", held
        yield "quorum_requests_under_way", "Quorum requests without an answer", len(quorums)
        yield "upstream_up", "Whether the Lighthouse is there", float(core.lighthouse.up is True)
        yield "connections", "Clients connected", desk.arrivals.open
        yield "denials", "Entries of the list in force", len(core.doorman.denials)
        trouble = float(desk.memory.trouble is not None)
        keeping = desk.arrivals.keeping
        missed = 0 if keeping is None else keeping.missed
        yield "kept", "Whether a keeper stands by", float(keeping is not None and keeping.kept)
        yield "quorum_id", "The highest quorum id that groups were told", core.quorum_ids.highest
        yield "lighthouse_restarts", "Seen in quorum ids that fell", core.quorum_ids.restarts
        yield "not_kept", "Connections and requests that the keeper did not take", missed
        yield "state_trouble", "Whether --state cannot be read or written", trouble


def _counters(counts: Counts) -> Iterator[Metric]:
    for name, text, value in (
        ("heartbeats", "Heartbeats that came in", counts.heartbeats),
        ("quorum_requests", "Quorum requests that came in", counts.quorum_requests),
        ("unread", "Calls passed on because they could not be read", counts.unread),
        ("waved", "Held replica ids passed because nobody said", counts.waved),
        ("upstream_retries", "Connections to the Lighthouse that failed", counts.upstream_retries),
        ("resent", "Quorum requests sent again to a Lighthouse that came back", counts.resent),
        ("bad_clients", "Clients sent away for breaking HTTP/2", counts.bad_clients),
    ):
        yield CounterMetricFamily(f"lightkeeper_gate_{name}", text, value=value)


def _histogram(counts: Counts) -> Metric:
    total, buckets = 0, []
    for bound, number in zip([*map(str, BUCKETS_S), "+Inf"], counts.buckets, strict=True):
        total += number
        buckets.append((bound, total))
    return HistogramMetricFamily(
        "lightkeeper_gate_heartbeat_seconds",
        "From passing a heartbeat on to the Lighthouse's answer",
        buckets=buckets,
        sum_value=counts.seconds,
    )


def _replicas(core: GateCore) -> Iterator[Metric]:
    """Replica ids heard of lately, and no more than the ledger holds."""
    labels = ["group", "replica_id"]
    step = GaugeMetricFamily(
        "lightkeeper_gate_replica_step", "Step in the last quorum request", labels=labels
    )
    failures = GaugeMetricFamily(
        "lightkeeper_gate_replica_commit_failures",
        "Commit failures in a row, in the last quorum request",
        labels=labels,
    )
    age = GaugeMetricFamily(
        "lightkeeper_gate_replica_heartbeat_age_seconds", "Since its heartbeat", labels=labels
    )
    for seen in core.view().replicas:
        names = [seen.group, seen.replica_id]
        if seen.heartbeat_age_s is not None:
            age.add_metric(names, seen.heartbeat_age_s)
        if seen.step is not None:
            step.add_metric(names, seen.step)
        if seen.commit_failures is not None:
            failures.add_metric(names, seen.commit_failures)
    yield from (step, failures, age)
