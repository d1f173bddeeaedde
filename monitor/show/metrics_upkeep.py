"""The monitor itself: its health, stores, lease and gate. Counters are where it counts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.gate.denylist import DenialScope, GateView
from lightkeeper.monitor.metric import GATE, HEALTH, KEPT, Metrics, Values
from lightkeeper.monitor.model.verdict import OF_LIGHTHOUSE
from lightkeeper.monitor.show.exposition import ScrapeView


def _detectors(scene: ScrapeView) -> Values:
    detectors = sorted(scene.view.result.detectors.items())
    return [d for d in detectors if not (scene.view.alone and d[0] in OF_LIGHTHOUSE)]


def _health(scene: ScrapeView) -> Values:
    return {state: state is scene.view.result.health.state for state in Condition}


METRICS: Final[Metrics] = (
    HEALTH.gauge("detector_up",
        "1 while the detector works; 0: it crashed in the last tick, its fault is unknown.",
        ("detector",), _detectors, series="one a detector"),
    HEALTH.gauge("self_health", "1 for the state of the monitor's own health, 0 for the others.",
        ("state",), _health, series="7"),
    HEALTH.gauge("self_health_scale",
        "What thresholds are multiplied by because the monitor doubts itself; 1 when well.", (),
        lambda scene: scene.view.result.health.scale),
)  # fmt: skip
"""Of the view; the others are of what their comments say."""

# of its version
BUILD: Final = HEALTH.gauge("build_info", "1, with the version.", ("version",),
    lambda version: {version: 1}, series="1")  # fmt: skip


def _nbytes(store: Path | None) -> float | None:
    """Of the SQLite file (None: PostgreSQL); reads only its size from the disk."""
    return None if store is None else sum(_size(store, end) for end in ("", "-wal", "-shm"))


def _size(path: Path, end: str) -> int:
    """0 for a missing file: SQLite makes its log when it needs one."""
    try:
        return path.with_name(path.name + end).stat().st_size
    except OSError:
        return 0


STORE: Final = (  # of the store
    KEPT.counter("store_errors", "Writes that the store's disk did not take (retried).", (),
        lambda store: store.errors),
    KEPT.gauge("store_bytes", "Bytes of the store's files on disk, the write-ahead log included.",
        (), lambda store: _nbytes(store.place.path), absent="the store is PostgreSQL"),
)  # fmt: skip
QUEUES: Final = KEPT.gauge("queue_length", "What waits: store (rows to be written), journal "
    "(ticks), http (requests for which no thread is free), or is under way.",
    ("queue",), lambda queues: {name: size() for name, size in sorted(queues.items())},
    series="at most 5", absent="queues that this monitor has not")  # fmt: skip
REFUSED: Final = KEPT.counter("registrations_refused", "Registrations refused, by reason: "
    "superseded (by a newer incarnation), wait (its bearer is asked first), taken (it lives), "
    "other job, over (its run is), refused (a Manager's name that is another group's), hasty (its "
    "address brings more new ranks than one may), full (as many as this monitor takes), token "
    "(wrong or missing).", ("reason",), lambda counts: dict(sorted(counts.items())),
    series="at most 9", absent="none was refused since the start")  # fmt: skip
JOURNAL: Final = (  # of `Stats`
    KEPT.counter("journal_ticks", "Ticks written to the journal.", (), lambda now: now.ticks),
    KEPT.counter("journal_lost_ticks", "Ticks that the journal's disk did not take.", (),
        lambda now: now.lost),
    KEPT.counter("journal_written_bytes", "Bytes written to the journal, compressed.", (),
        lambda now: now.bytes),
    KEPT.gauge("journal_failing", "1 while the journal is not written.", (),
        lambda now: now.problem is not None),
)  # fmt: skip
LEASE: Final = (  # of `LeaseStanding`
    KEPT.gauge("monitor_active",
        "1 while this monitor holds the lease and acts, 0 while it stands by.", (),
        lambda seen: seen.active),
    KEPT.gauge("lease_epoch",
        "Epoch of the lease, as far as this monitor knows; it grows with each handover.", (),
        lambda seen: seen.epoch),
    KEPT.gauge("lease_failing", "1 while the lease can be neither renewed nor looked at.", (),
        lambda seen: seen.problem is not None),
)  # fmt: skip


# Of the `Gatekeeper`: the gate as the monitor sees it; its own page has more (`gate.serve`).

_NO_GATE: Final = "the monitor has no gate (--gate)"


def _denials(keeper: Gatekeeper) -> Values:
    if not isinstance(keeper.view, GateView):
        return None
    scopes = Counter(denial.scope for denial in keeper.view.denied)
    return {scope: scopes[scope] for scope in DenialScope}


GATE_METRICS: Final = (
    GATE.gauge("gate_answers", "1 while the gate answers this monitor.", (),
        lambda keeper: isinstance(keeper.view, GateView), absent=_NO_GATE),
    GATE.gauge("gate_untaught", "1 while the gate is away or does not take its list.", (),
        lambda keeper: keeper.trouble() is not None, absent=_NO_GATE),
    GATE.counter("gate_lists", "Lists sent to the gate, by outcome.", ("outcome",),
        lambda keeper: {"taken": keeper.taught, "failed": keeper.failed}, series="2",
        absent=_NO_GATE),
    GATE.gauge("gate_denials", "Names that the gate refuses, by scope.", ("scope",), _denials,
        series="3", absent="the monitor has no gate, or it does not answer"),
)  # fmt: skip
