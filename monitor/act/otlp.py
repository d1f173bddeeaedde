"""Incidents as traces, and the log beside them, by OTLP over HTTP.

A trace is one incident. Its ids are digests of the incident's, so that a monitor that takes over
continues the same trace, and a record of the log that is about the incident belongs to it. The
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
from typing import Any, Final

from opentelemetry import trace
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.metric import KEPT
from lightkeeper.monitor.model.incident import Incident, trace_id
from lightkeeper.monitor.model.names import IncidentId, one_line
from lightkeeper.worker_server.plain_text import about, escaped

log = logging.getLogger(__name__)

QUEUE: Final = 4096
"""Spans, or log records, that may wait: those of a collector's restart."""
_BATCH: Final = 512
_EVERY_S: Final = 1.0
_TEXT_MAX_CHARS: Final = 4096
_ROOT: Final = "incident"
_OURS: Final = logging.getLogger("lightkeeper")

EXPORTED: Final = KEPT.counter("otlp",
    "Spans and log records for OTLP, by signal and outcome: sent, failed (not accepted in "
    "time), dropped (too many waited).", ("signal", "outcome"), series="≤ 6",
    absent="none since the start")  # fmt: skip


class _Handler(logging.Handler):
    """Passes records on; those of others go nowhere else, since each try is a line."""

    def __init__(self, take: Callable[[logging.LogRecord], object], logger: logging.Logger) -> None:
        super().__init__()
        self._take, self._logger = take, logger
        logger.addHandler(self)
        self._propagates, logger.propagate = logger.propagate, logger.propagate and logger is _OURS

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._take(record)
        except Exception:  # noqa: BLE001 - as every handler of logging
            self.handleError(record)

    def leave(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagates


class ExportQueue:
    """What waits for one exporter of the SDK, and the thread that sends it."""

    def __init__(self, signal: str, exporter: Any, metrics: CollectorRegistry) -> None:
        self.trouble: str | None = None
        """Why the last batch was lost; None: it was taken."""
        self._signal, self._exporter = signal, exporter
        self._count = EXPORTED.on(metrics)
        self._rows: deque[Any] = deque()
        self._why = ""
        self._handler = _Handler(self._said, logging.getLogger(type(exporter).__module__))
        work = self._work
        self._worker = BackgroundWorker(f"otlp {signal}", work, every_s=_EVERY_S, to_the_end=True)
        self._worker.start()

    def _said(self, record: logging.LogRecord) -> None:
        self._why = one_line(escaped(record.getMessage()))

    def put(self, row: Any) -> None:
        """Never waits."""
        if len(self._rows) < QUEUE:
            self._rows.append(row)
        else:
            self._count.labels(self._signal, "dropped").inc()

    def _work(self) -> None:
        while self._rows:
            batch = [self._rows.popleft() for _ in range(min(_BATCH, len(self._rows)))]
            taken = self._exporter.export(batch).name == "SUCCESS"  # keeps to its own deadline
            self._count.labels(self._signal, "sent" if taken else "failed").inc(len(batch))
            former = self.trouble
            self.trouble = None if taken else f"otlp {self._signal}: {self._why}"
            if self.trouble and former is None:
                log.warning("%s", self.trouble)
            if self._worker.closing:
                return

    def close(self) -> None:
        self._worker.close()
        self._exporter.shutdown()
        self._handler.leave()


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
        kinds = {"traces": OTLPSpanExporter, "logs": OTLPLogExporter}
        exporters = {signal: kinds[signal]() for signal in sorted(signals)}  # they may raise
        self._queues = {name: ExportQueue(name, each, metrics) for name, each in exporters.items()}
        self._handler = _Handler(self._note, _OURS) if "logs" in signals else None

    def take(
        self, incidents: Sequence[Incident], before: Mapping[IncidentId, Incident], ahead_s: float
    ) -> None:
        """Send what has ended of these since `before`. `ahead_s`: the wall clock minus ours."""
        for incident in incidents if "traces" in self._queues else ():
            old, stages = before.get(incident.id), incident.milestones.stages()
            if "detect" not in stages:
                continue  # a suspicion, so far
            stages["detect"] = incident.began_s, stages["detect"][1]
            if incident.ended_s is not None:
                stages[_ROOT] = incident.began_s, incident.ended_s
            had = set() if old is None else {*old.milestones.stages()}
            had |= {_ROOT} if old is not None and not old.open else set()
            for stage in stages.keys() - had:
                begin_ns, end_ns = (int((at_s + ahead_s) * 1e9) for at_s in stages[stage])
                self._queues["traces"].put(self._span(incident, stage, begin_ns, end_ns, ahead_s))

    def _span(
        self, incident: Incident, stage: str, begin_ns: int, end_ns: int, ahead_s: float
    ) -> ReadableSpan:
        """Made at its end, and not by a tracer: an incident outlives processes."""
        root, verdict = stage == _ROOT, incident.verdict
        story = [(incident.began_s, "fault", verdict.reason)]
        story += [(line.at_s, line.to, line.reason) for line in incident.story]
        said = {
            **incident.about(), "kind": incident.kind, "severity": incident.severity,
            "confidence": verdict.confidence, "host": ", ".join(incident.hosts),
            "run": incident.run, "resolution": incident.resolution or "",
        }  # fmt: skip
        return ReadableSpan(
            f"incident {incident.kind}" if root else stage,
            context=_context(incident.id, stage),
            parent=None if root else _context(incident.id),
            resource=self._resource,
            attributes=_attributes(said),
            events=[
                Event(name, {"reason": _text(why)}, int((at_s + ahead_s) * 1e9))
                for at_s, name, why in (story if root else ())
            ],
            status=trace.Status(trace.StatusCode.ERROR if root else trace.StatusCode.UNSET),
            start_time=begin_ns,
            end_time=max(begin_ns, end_ns),
            instrumentation_scope=InstrumentationScope(_OURS.name),
        )

    def _note(self, record: logging.LogRecord) -> None:
        fields = about(record)
        span = trace.INVALID_SPAN
        if "incident" in fields:
            span = trace.NonRecordingSpan(_context(fields["incident"]))
        if record.exc_info:
            fields["stacktrace"] = logging.Formatter().formatException(record.exc_info)
        row = LogRecord(
            timestamp=int(record.created * 1e9),
            context=trace.set_span_in_context(span),
            severity_text=record.levelname,
            severity_number=SeverityNumber(min(record.levelno, 50) // 10 * 4 + 1),  # DEBUG is 5
            body=_text(record.getMessage()),
            attributes=_attributes(fields),
        )
        scope = InstrumentationScope(record.name)
        self._queues["logs"].put(ReadableLogRecord(row, self._resource, scope))

    def troubles(self) -> Iterator[str]:
        yield from filter(None, (queue.trouble for queue in self._queues.values()))

    def close(self) -> None:
        if self._handler is not None:
            self._handler.leave()
        for queue in self._queues.values():
            queue.close()


def _context(incident_id: str, stage: str = _ROOT) -> trace.SpanContext:
    digest = hashlib.sha256(f"{incident_id}\n{stage}".encode()).digest()
    ids = int(trace_id(incident_id), 16), int.from_bytes(digest[:8], "big")
    return trace.SpanContext(*ids, is_remote=False, trace_flags=trace.TraceFlags(1))


def _attributes(fields: Mapping[str, str]) -> dict[str, str]:
    return {f"lightkeeper.{name}": _text(text) for name, text in fields.items() if text}


def _text(text: str) -> str:
    """As protobuf takes it: no half characters; bounded."""
    return escaped(str(text), "\n")[:_TEXT_MAX_CHARS]
