"""A collector of OTLP on loopback, and a monitor that sends to it."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_server import FakeServer, Hang


def values(attributes: Iterable[Any]) -> dict[str, Any]:
    """Attributes as Python has them."""
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


class Collector(FakeServer):
    """Keeps what it takes. `status`: of its answers; 0: it never answers."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.spans: list[Any] = []
        self.records: list[tuple[str, Any]] = []
        """With the name of the logger."""
        self.resources: list[dict[str, Any]] = []
        super().__init__()

    def serve(self, handler: Any, method: str, path: str, body: bytes) -> None:
        self.requests.append((path, dict(handler.headers)))
        if not self.status:
            raise Hang
        if self.status == 200:
            raw = gzip.decompress(body) if handler.headers["Content-Encoding"] == "gzip" else body
            {"/v1/traces": self._traces, "/v1/logs": self._logs}[path](raw)
        handler.reply(self.status, "application/x-protobuf", b"")

    def _traces(self, body: bytes) -> None:
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(values(group.resource.attributes))
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def _logs(self, body: bytes) -> None:
        for group in ExportLogsServiceRequest.FromString(body).resource_logs:
            self.resources.append(values(group.resource.attributes))
            for scope in group.scope_logs:
                self.records += [(scope.scope.name, record) for record in scope.log_records]


def send_to(url: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
    """Set OpenTelemetry's variables, and no others of its."""
    given = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "2", **more}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
