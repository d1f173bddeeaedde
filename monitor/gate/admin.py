"""The gate's admin port: what it sees, whom it refuses, its metrics. Denying takes the token."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from monitor.gate.calls import BUCKETS_S, GateCounts, Method, Stage
from monitor.gate.denylist import DenialError, denials_json, parse_denials
from monitor.gate.proxy import Proxy
from monitor.gate.state_file import StateFile
from monitor.gate.view import Seen

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
_INDEX: Final = """\
lightkeeper gate

GET /v1/gate         what it sees: replica ids, heartbeats, steps; whom it refuses
PUT /v1/gate/denied  replace the list of denials (needs the token)
GET /metrics         the same for Prometheus
GET /healthz
"""


@dataclass(frozen=True)
class Admin:
    """What the admin port serves."""

    proxy: Proxy
    state: StateFile
    token: str | None

    def application(self) -> web.Application:
        """Its routes."""
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/v1/gate", self._view),
                web.put("/v1/gate/denied", self._deny),
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._health),
            ]
        )
        return app

    async def _index(self, _: web.Request) -> web.Response:
        return web.Response(text=_INDEX)

    async def _view(self, _: web.Request) -> web.Response:
        return web.json_response(self.proxy.view().to_json())

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(registry(self.proxy, self.state))
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _health(self, _: web.Request) -> web.Response:
        up = {True: "up", False: "away", None: "not looked at yet"}[self.proxy.lighthouse.up]
        lines = [f"ok: the Lighthouse is {up}"]
        if self.state.trouble is not None:
            lines.append(self.state.trouble)
        if self.proxy.successor.kept is False:
            lines.append("the keeper is gone: start `lightkeeper gate` again on the same address")
        return web.Response(text="\n".join(lines) + "\n")

    async def _deny(self, request: web.Request) -> web.Response:
        if self.token is None:
            return _error(403, "this gate has no token and denies nobody: start it with one")
        said = [
            each.encode(errors="replace") for each in request.headers.getall("Authorization", ())
        ]
        if len(said) != 1 or not hmac.compare_digest(said[0], f"Bearer {self.token}".encode()):
            return _error(401, "the bearer token is missing or another")
        try:
            denials = parse_denials(json.loads(await request.read()))
        except (DenialError, ValueError, RecursionError) as exc:
            return _error(400, str(exc))
        if self.proxy.deny(denials) or self.state.trouble is not None:
            await self.state.keep(self.proxy.denylist.denials)
        return web.json_response(denials_json(self.proxy.denylist.denials))


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)


# -- metrics: read when Prometheus asks, so that a heartbeat pays nothing ------------------------


def registry(proxy: Proxy, state: StateFile) -> CollectorRegistry:
    """Everything of this gate."""
    made = CollectorRegistry()
    made.register(_Collector(proxy, state))
    return made


class _Collector:
    def __init__(self, proxy: Proxy, state: StateFile) -> None:
        self._proxy = proxy
        self._state = state

    def collect(self) -> Iterator[Metric]:
        counts = self._proxy.counts
        for name, text, count in _counters(counts):
            yield CounterMetricFamily(f"lightkeeper_gate_{name}", text, value=count)
        refused = CounterMetricFamily(
            "lightkeeper_gate_refused",
            "Heartbeats and quorum requests refused, by what the denial names",
            labels=["scope"],
        )
        for scope, number in counts.refused.items():
            refused.add_metric([scope.value], number)
        yield refused
        yield _heartbeat_seconds(counts)
        for name, text, value in _gauges(self._proxy, self._state):
            yield GaugeMetricFamily(f"lightkeeper_gate_{name}", text, value=float(value))
        yield from _by_replica(self._proxy.view().replicas)


def _counters(counts: GateCounts) -> Iterator[tuple[str, str, int]]:
    yield "heartbeats", "Heartbeats that came in", counts.heartbeats
    yield "quorum_requests", "Quorum requests that came in", counts.quorum_requests
    yield "unread", "Calls passed on because they could not be read", counts.unread
    yield "waved", "Held replica ids passed because nobody said", counts.waved
    retries = counts.upstream_retries
    yield "upstream_retries", "Connections to the Lighthouse that failed", retries
    yield "resent", "Quorum requests sent again to a Lighthouse that came back", counts.resent
    told = "Quorums told to members whose answer was lost with a Lighthouse or worker"
    yield "told_again", told, counts.told_again
    yield "bad_clients", "Clients sent away for breaking HTTP/2", counts.bad_clients


def _gauges(proxy: Proxy, state: StateFile) -> Iterator[tuple[str, str, float]]:
    calls = [call for client in proxy.clients for call in client.calls.values()]
    quorums = [call.stage for call in calls if call.method is Method.QUORUM]
    yield "held", "Quorum requests that wait for a newer list", quorums.count(Stage.HELD)
    yield "quorum_requests_under_way", "Quorum requests without an answer", len(quorums)
    yield "upstream_up", "Whether the Lighthouse is there", proxy.lighthouse.up is True
    yield "connections", "Clients connected", len(proxy.transports)
    yield "denials", "Entries of the list in force", len(proxy.denylist.denials)
    yield "kept", "Whether a keeper stands by", proxy.successor.kept is True
    yield "quorum_id", "The highest quorum id that groups were told", proxy.quorum_ids.highest
    yield "lighthouse_restarts", "Seen in quorum ids that fell", proxy.quorum_ids.restarts
    missed = proxy.successor.missed
    yield "not_kept", "Connections and requests that the keeper did not take", missed
    yield "state_trouble", "Whether --state cannot be read or written", state.trouble is not None


def _heartbeat_seconds(counts: GateCounts) -> Metric:
    total, buckets = 0, []
    for bound, number in zip([*map(str, BUCKETS_S), "+Inf"], counts.answer_buckets, strict=True):
        total += number
        buckets.append((bound, total))
    return HistogramMetricFamily(
        "lightkeeper_gate_heartbeat_seconds",
        "From passing a heartbeat on to the Lighthouse's answer",
        buckets=buckets,
        sum_value=counts.answer_seconds,
    )


def _by_replica(replicas: tuple[Seen, ...]) -> Iterator[Metric]:
    """Replica ids heard of lately."""
    for name, text, field in (
        ("step", "Step in the last quorum request", "step"),
        (
            "commit_failures",
            "Commit failures in a row, in the last quorum request",
            "commit_failures",
        ),
        ("heartbeat_age_seconds", "Since its heartbeat", "heartbeat_age_s"),
    ):
        family = GaugeMetricFamily(
            f"lightkeeper_gate_replica_{name}", text, labels=["group", "replica_id"]
        )
        for replica in replicas:
            value = getattr(replica, field)
            if value is not None:
                family.add_metric([replica.group, replica.replica_id], value)
        yield family
