"""Incidents as traces, and the log beside them, by OTLP over HTTP.

A trace is one incident. Its ids are digests of the incident's, so that a monitor that takes over
goes on with the same trace, and a record of the log that is about the incident belongs to it. The
root span lasts from the fault until it is over, and has the incident's story as events. Each stage
is a span below it, sent when the stage is over: `rejoin` may end after the root.

The OpenTelemetry SDK makes and sends the messages. Its own variables (OTEL_EXPORTER_OTLP_ENDPOINT
...) say where to, with which headers and which deadline. Nothing here makes the monitor wait: what
is new goes into a queue with a limit, and a thread for each signal empties it. Losses are counted.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from prometheus_client import CollectorRegistry

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.metric import KEPT
from lightkeeper.monitor.model.incident import Incident, trace_id
from lightkeeper.monitor.model.names import IncidentId, one_line
from lightkeeper.worker_server.plain_text import about, escaped

log = logging.getLogger(__name__)

QUEUE: Final = 4096
"""Spans, or records of the log, that may wait: those of a collector's restart."""
_BATCH: Final = 512
_EVERY_S: Final = 1.0
_TEXT_MAX_CHARS: Final = 4096
_NAMED: Final = 64
_ROOT: Final = "incident"
_OURS: Final = logging.getLogger("lightkeeper")
_SEVERITIES: Final = (
    (logging.CRITICAL, SeverityNumber.FATAL),
    (logging.ERROR, SeverityNumber.ERROR),
    (logging.WARNING, SeverityNumber.WARN),
    (logging.INFO, SeverityNumber.INFO),
    (logging.NOTSET, SeverityNumber.DEBUG),
)

EXPORTED: Final = KEPT.counter("otlp",
    "Spans and records of the log for OTLP, by signal and outcome: sent, failed (not taken in "
    "time), dropped (too many waited).", ("signal", "outcome"), series="at most 6",
    absent="nothing was to be sent since the start")  # fmt: skip


class Exporter(Protocol):
    """One of the SDK's; `export` keeps to its own deadline (OTEL_EXPORTER_OTLP_TIMEOUT)."""

    def export(self, batch: Sequence[Any], /) -> Any: ...

    def shutdown(self) -> None: ...


class _Said(logging.Handler):
    """Keeps the last line that an exporter logs: its result does not say why."""

    text = "no reason given"

    def emit(self, record: logging.LogRecord) -> None:
        self.text = one_line(escaped(record.getMessage()))


class ExportQueue:
    """What waits for one exporter, and the thread that sends it."""

    def __init__(self, signal: str, exporter: Exporter, metrics: CollectorRegistry) -> None:
        self.trouble: str | None = None
        """Why the last batch was lost; None: it was taken."""
        self._signal, self._exporter = signal, exporter
        self._count = EXPORTED.on(metrics)
        self._rows: deque[Any] = deque()
        self._said = _Said()
        self._theirs = logging.getLogger(type(exporter).__module__)
        self._theirs.addHandler(self._said)
        self._theirs.propagate = False  # a line for each try
        self._worker = BackgroundWorker(
            f"otlp {signal}", self._work, every_s=_EVERY_S, to_the_end=True
        )
        self._worker.start()

    def put(self, row: Any) -> None:
        """Never waits."""
        if len(self._rows) < QUEUE:
            self._rows.append(row)
        else:
            self._count.labels(self._signal, "dropped").inc()

    def _work(self) -> None:
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(_BATCH, len(self._rows)))]
            taken = self._exporter.export(batch).name == "SUCCESS"
            self._count.labels(self._signal, "sent" if taken else "failed").inc(len(batch))
            former = self.trouble
            self.trouble = None if taken else f"otlp {self._signal}: {self._said.text}"
            if self.trouble and former is None:
                log.warning("%s", self.trouble)
            if self._worker.closing:
                return

    def close(self) -> None:
        self._worker.close()
        self._exporter.shutdown()
        self._theirs.removeHandler(self._said)
        self._theirs.propagate = True


class _LogHandler(logging.Handler):
    """Passes on what our loggers write."""

    def __init__(self, resource: Resource, put: Callable[[ReadableLogRecord], None]) -> None:
        super().__init__()
        self._resource, self._put = resource, put

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = about(record)
            attributes = {f"lightkeeper.{name}": _text(value) for name, value in fields.items()}
            if record.exc_info:
                trace = logging.Formatter().formatException(record.exc_info)
                attributes["exception.stacktrace"] = _text(trace)
            span = NonRecordingSpan(_context(fields["incident"])) if "incident" in fields else None
            row = LogRecord(
                timestamp=int(record.created * 1e9),
                context=None if span is None else set_span_in_context(span),
                severity_text=record.levelname,
                severity_number=next(n for least, n in _SEVERITIES if record.levelno >= least),
                body=_text(record.getMessage()),
                attributes=attributes,
            )
            self._put(ReadableLogRecord(row, self._resource, InstrumentationScope(record.name)))
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)


class Telemetry:
    """Sends incidents, and what our loggers write. Close it when done.

    Args:
        signals: `traces`, `logs`.
        about_us: attributes of this monitor; OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win.
    """

    def __init__(
        self, signals: Collection[str], about_us: Mapping[str, str], metrics: CollectorRegistry
    ) -> None:
        self._resource = Resource.create(about_us).merge(OTELResourceDetector().detect())
        exporters: dict[str, Exporter] = {
            signal: OTLPSpanExporter() if signal == "traces" else OTLPLogExporter()
            for signal in sorted(signals)
        }
        self._queues = {name: ExportQueue(name, each, metrics) for name, each in exporters.items()}
        if (logs := self._queues.get("logs")) is not None:
            self._handler = _LogHandler(self._resource, logs.put)
            _OURS.addHandler(self._handler)

    def take(
        self, incidents: Sequence[Incident], before: Mapping[IncidentId, Incident], ahead_s: float
    ) -> None:
        """Send what has ended of these since `before`. `ahead_s`: of the wall clock before ours."""
        if (queue := self._queues.get("traces")) is None:
            return
        for incident in incidents:
            old, stages = before.get(incident.id), incident.milestones.stages()
            if "detect" not in stages:
                continue  # a suspicion, so far
            stages["detect"] = _begin_s(incident), stages["detect"][1]
            if incident.ended_s is not None:
                stages[_ROOT] = _begin_s(incident), incident.ended_s
            had = set() if old is None else {*old.milestones.stages()}
            had |= {_ROOT} if old is not None and not old.open else set()
            for stage in stages.keys() - had:
                queue.put(self._span(incident, stage, *stages[stage], ahead_s))

    def _span(
        self, incident: Incident, stage: str, start_s: float, end_s: float, ahead_s: float
    ) -> ReadableSpan:
        """Made as it was, not as it happens: an incident outlives processes."""
        root, reason = stage == _ROOT, incident.verdict.reason
        lines = [(_begin_s(incident), "fault", reason)]
        lines += [(line.at_s, line.to, line.reason) for line in incident.story]
        return ReadableSpan(
            f"incident {incident.kind}" if root else stage,
            context=_context(incident.id, stage),
            parent=None if root else _context(incident.id),
            resource=self._resource,
            attributes=_attributes(incident),
            events=[
                Event(name, {"reason": _text(why)}, int((at_s + ahead_s) * 1e9))
                for at_s, name, why in (lines if root else ())
            ],
            status=Status(StatusCode.ERROR, _text(reason)) if root else Status(),
            start_time=int((start_s + ahead_s) * 1e9),
            end_time=int((max(start_s, end_s) + ahead_s) * 1e9),
            instrumentation_scope=InstrumentationScope(_OURS.name),
        )

    def troubles(self) -> Iterator[str]:
        yield from filter(None, (queue.trouble for queue in self._queues.values()))

    def close(self) -> None:
        if "logs" in self._queues:
            _OURS.removeHandler(self._handler)
        for queue in self._queues.values():
            queue.close()


def _begin_s(incident: Incident) -> float:
    """When the fault began, as nearly as is known."""
    return min(incident.verdict.since_s, incident.milestones.first_seen_s)


def _context(incident_id: str, stage: str = _ROOT) -> SpanContext:
    digest = hashlib.sha256(f"{incident_id}\n{stage}".encode()).digest()
    span_id = int.from_bytes(digest[:8], "big")
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(
        int(trace_id(incident_id), 16), span_id, is_remote=False, trace_flags=sampled
    )


def _attributes(incident: Incident) -> dict[str, Any]:
    texts = {
        "incident": incident.id, "kind": incident.kind, "severity": incident.severity,
        "confidence": incident.verdict.confidence, "run": incident.run,
        "resolution": incident.resolution or "",
    }  # fmt: skip
    lists = {
        "group": incident.groups, "rank": incident.suspects, "host": incident.hosts,
    }  # fmt: skip
    return {
        **{f"lightkeeper.{name}": _text(text) for name, text in texts.items() if text},
        **{f"lightkeeper.{name}": list(map(_text, some[:_NAMED])) for name, some in lists.items()},
    }


def _text(text: str) -> str:
    """As protobuf takes it: no half characters; bounded."""
    return escaped(str(text), "\n")[:_TEXT_MAX_CHARS]
