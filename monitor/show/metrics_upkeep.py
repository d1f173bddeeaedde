"""The monitor itself: its health, its stores, messages, lease and gate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.gate.denylist import DenialScope, GateView
from lightkeeper.monitor.journal.writer import Stats
from lightkeeper.monitor.show.exposition import ScrapeView, counter, gauge, histogram
from lightkeeper.monitor.store.lease import LeaseStanding

# -- The monitor itself: its ticks, its view, its detectors, and whether it trusts them ------------

TICK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

BUILD = gauge("build_info", "1, with the version.", ("version",))
TICKS = histogram(
    "tick_duration_seconds", "Seconds from the start of a tick to its end.", buckets=TICK_BUCKETS,
    series="13",
)  # fmt: skip
LATENESS = gauge("tick_lateness_seconds", "How much later than planned the last tick began.")
POLL_FAILURES = counter(
    "poll_failures", "Polls of a rank that gave no report, by reason.", ("reason",),
    series="at most 6", absent="none failed for it since this monitor started",
)  # fmt: skip
DETECTOR_FAILURES = counter(
    "detector_failures", "Crashes of a detector; its kind of fault is unknown meanwhile.",
    ("detector",), series="at most one a detector", absent="it never crashed",
)  # fmt: skip
PART_FAILURES = counter(
    "part_failures", "Crashes of a part of the monitor's own loop.", ("part",),
    series="at most one a part", absent="it never crashed",
)  # fmt: skip
DETECTOR_UP = gauge(
    "detector_up",
    "1 while the detector works; 0: it crashed in the last tick, its fault is unknown.",
    ("detector",), series="one a detector",
)  # fmt: skip
SELF_HEALTH = gauge(
    "self_health", "1 for the state of the monitor's own health, 0 for the others.", ("state",),
    series="7",
)  # fmt: skip
SCALE = gauge(
    "self_health_scale",
    "What thresholds are multiplied by because the monitor doubts itself; 1 when well.",
)


def export(scene: ScrapeView) -> Iterator[Metric]:
    result = scene.view.result
    alone = scene.view.alone
    detectors = sorted(result.detectors.items())
    yield DETECTOR_UP.each(d for d in detectors if not (alone and d[0] == "lighthouse_away"))
    yield SELF_HEALTH.each((condition, condition is result.health.state) for condition in Condition)
    yield SCALE.value(result.health.scale)


# -- what it keeps: store, journal, evidence, lease, messages to people, and their queues ---------

STORE_ERRORS = counter("store_errors", "Writes that the store's disk did not take (retried).")
STORE_BYTES = gauge(
    "store_bytes", "Bytes of the store's files on disk, the write-ahead log included.",
    absent="the store is PostgreSQL",
)  # fmt: skip
QUEUE_LENGTH = gauge(
    "queue_length",
    "What waits: store (rows to be written), journal (ticks), audit_log (lines), http (requests "
    "for which no thread is free), or is under way.",
    ("queue",), series="at most 5", absent="queues that this monitor has not",
)  # fmt: skip
REGISTRATIONS_REFUSED = counter(
    "registrations_refused",
    "Registrations refused, by reason: superseded (by a newer incarnation), wait (its bearer is "
    "asked first), taken (it lives), other job, over (its run is), refused (a Manager's name that "
    "is another group's), hasty (its address brings more new ranks than one may), full (as many as "
    "this monitor takes), token (wrong or missing).",
    ("reason",), series="at most 9", absent="none was refused since the start",
)  # fmt: skip
JOURNAL_TICKS = counter("journal_ticks", "Ticks written to the journal.")
JOURNAL_LOST = counter("journal_lost_ticks", "Ticks that the journal's disk did not take.")
JOURNAL_BYTES = counter("journal_written_bytes", "Bytes written to the journal, compressed.")
JOURNAL_FAILING = gauge("journal_failing", "1 while the journal is not written.")
ACTIVE = gauge(
    "monitor_active", "1 while this monitor holds the lease and acts, 0 while it stands by."
)
EPOCH = gauge(
    "lease_epoch", "Epoch of the lease, as far as this monitor knows; it grows with each handover."
)
LEASE_FAILING = gauge("lease_failing", "1 while the lease can be neither renewed nor looked at.")
EVIDENCE = counter(
    "evidence_captures", "Captures of evidence, by moment and outcome.",
    ("moment", "outcome"), series="at most 2 x 4", absent="none was made since the start",
)  # fmt: skip
EVIDENCE_SECONDS = histogram(
    "evidence_capture_seconds",
    "Seconds until the ranks concerned had answered, or the deadline was over.",
    buckets=TICK_BUCKETS, series="13",
)  # fmt: skip
EVIDENCE_BYTES = counter("evidence_written_bytes", "Bytes of bundles written.")
EVIDENCE_STORED = gauge("evidence_stored_bytes", "Bytes of bundles on disk.")
NOTIFICATIONS = counter(
    "notifications",
    "Messages to people, by sink and outcome: sent, failed (tried again), dropped.",
    ("sink", "outcome"), series="at most 3 a sink", absent="none was sent since the start",
)  # fmt: skip
PENDING = gauge(
    "notifications_pending", "Messages that wait for a sink.", ("sink",), series="1 a sink",
    absent="no sink is configured",
)  # fmt: skip


class Live(Collector):
    """Calls a function at each scrape."""

    def __init__(self, read: Callable[[], Iterator[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        return self._read()


def journal(stats: Stats) -> Iterator[Metric]:
    yield JOURNAL_TICKS.value(stats.ticks)
    yield JOURNAL_LOST.value(stats.lost)
    yield JOURNAL_BYTES.value(stats.bytes)
    yield JOURNAL_FAILING.value(stats.problem is not None)


def refusals(counts: Mapping[str, int]) -> Iterator[Metric]:
    yield REGISTRATIONS_REFUSED.each(sorted(counts.items()))


def lease(seen: LeaseStanding) -> Iterator[Metric]:
    yield ACTIVE.value(seen.active)
    yield EPOCH.value(seen.epoch)
    yield LEASE_FAILING.value(seen.problem is not None)


def waiting(queues: Mapping[str, Callable[[], int]], store: Path | None) -> Iterator[Metric]:
    """How much waits in each queue, and the size of the SQLite file (None: PostgreSQL).

    Reads only the file's size from the disk.
    """
    yield QUEUE_LENGTH.each((name, size()) for name, size in sorted(queues.items()))
    if store is not None:
        yield STORE_BYTES.value(sum(_size(store, end) for end in ("", "-wal", "-shm")))


def _size(path: Path, end: str) -> int:
    """0 for a missing file: SQLite makes its log when it needs one."""
    try:
        return path.with_name(path.name + end).stat().st_size
    except OSError:
        return 0


# -- The gate as the monitor sees it; the gate's own page has more (`monitor.gate.serve`) ----------

_NO_GATE: Final = "the monitor has no gate (--gate)"

ANSWERS = gauge("gate_answers", "1 while the gate answers this monitor.", absent=_NO_GATE)
UNTAUGHT = gauge(
    "gate_untaught", "1 while the gate is away or does not take its list.", absent=_NO_GATE
)
LISTS = counter(
    "gate_lists", "Lists sent to the gate, by outcome.", ("outcome",), series="2", absent=_NO_GATE
)
DENIALS = gauge(
    "gate_denials", "Names that the gate refuses, by scope.", ("scope",), series="3",
    absent="the monitor has no gate, or it does not answer",
)  # fmt: skip


def gate(keeper: Gatekeeper) -> Iterator[Metric]:
    view = keeper.view
    yield ANSWERS.value(isinstance(view, GateView))
    yield UNTAUGHT.value(keeper.trouble() is not None)
    yield LISTS.rows([(("taken",), keeper.taught), (("failed",), keeper.failed)])
    if isinstance(view, GateView):
        scopes = Counter(denial.scope for denial in view.denied)
        yield DENIALS.rows([((str(scope),), float(scopes[scope])) for scope in DenialScope])
