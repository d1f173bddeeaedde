"""The rank's Prometheus metrics: computed at scrape time, in their own registry.

Unknown values are left out, never zero. Labels are bounded by the page: 64 process groups, 16
phases, 16 counters.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank.page.reader import PageReader

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds, two per decade, from a toy's step to the longest checkpoint worth waiting for. Each
further bound costs every rank 16 more series, and the mean is exact anyway (_sum / _count)."""
_BOUNDS: Final = (*map(str, BUCKETS_S), "+Inf")
_LABELS: Final = ("job_id", "replica_group", "rank")
_PREFIX: Final = "lightkeeper_rank"
_Who = tuple[str, ...]
"""Values of these labels."""


class _Histogram:
    """Counts by bucket, as in Prometheus: a bound belongs to its bucket."""

    def __init__(self) -> None:
        self._counts = [0] * len(_BOUNDS)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum_s += seconds

    def add_to(self, family: HistogramMetricFamily, labels: _Who) -> None:
        totals = map(float, accumulate(self._counts))
        family.add_metric(labels, list(zip(_BOUNDS, totals, strict=True)), self._sum_s)


class StepFollower:
    """Follows the rank's ring of steps and folds every attempt into histograms, once.

    Called about once a second and before each scrape; the ring holds four seconds at 1,000 steps a
    second. Attempts that it still missed are counted, never guessed. Thread-safe.
    """

    def __init__(self, page: PageReader) -> None:
        self.page = page
        self._lock = threading.RLock()
        self._last = 0
        self._missed = 0
        self._steps = _Histogram()
        self._phases: dict[str, _Histogram] = {}

    def follow(self) -> None:
        with self._lock:
            rows, dropped = self.page.steps(self._last, time.monotonic_ns())
            self._last += len(rows) + dropped
            self._missed += dropped
            for row in rows:
                if row.duration_s > 0:  # else its start is not known
                    self._steps.observe(row.duration_s)
                for name, seconds in row.seconds.items():
                    self._phases.setdefault(name, _Histogram()).observe(seconds)

    def collect(self, who: _Who) -> Iterator[Metric]:
        """Everything up to now, or up to the rank's death."""
        steps = HistogramMetricFamily(
            f"{_PREFIX}_step_seconds", "attempts of steps, from begin to end", labels=_LABELS
        )
        phases = HistogramMetricFamily(
            f"{_PREFIX}_step_phase_seconds",
            "seconds in a phase between the ends of two attempts, if it was entered",
            labels=(*_LABELS, "phase"),
        )
        with self._lock:
            self.follow()
            missed = self._missed
            self._steps.add_to(steps, who)
            for name in sorted(self._phases):
                self._phases[name].add_to(phases, (*who, name))
        yield steps
        yield phases
        yield _one(_COUNTER, "steps_missed", "attempts overwritten before they were counted here",
                   who, missed)  # fmt: skip
        times = self.page.times()
        for name, (metric, text) in _TIMES.items():
            family = SummaryMetricFamily(f"{_PREFIX}_{metric}", text, labels=_LABELS)
            if name in times:
                family.add_metric(who, times[name].done, times[name].sum_s)
            yield family
        for name, (metric, text) in _BYTES.items():
            yield _one(_COUNTER, metric, text, who,
                       times[name].sum_bytes if name in times else None)  # fmt: skip
        heals = times.get("apply", wire.Took(0)).done if times else None
        yield _one(_COUNTER, "heals", "times that it healed by another group's state", who, heals)


_TIMES: Final = {
    "staging": ("checkpoint_staging_seconds", "making a checkpoint ready for a healing group"),
    "load": ("checkpoint_load_seconds", "loading a checkpoint from another group, to heal"),
    "apply": ("checkpoint_apply_seconds", "taking over the loaded state, in the training thread"),
    "quorum": ("quorum_seconds", "finding a TorchFT quorum"),
    "reconfigure": ("reconfigure_seconds", "building the process groups of a new quorum"),
}
_BYTES: Final = {
    "staging": ("checkpoint_staged_bytes", "bytes of checkpoints made ready for healing groups"),
    "load": ("checkpoint_loaded_bytes", "bytes of checkpoints loaded from other groups"),
}
_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]
_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily


def _run_and_attempts(step: wire.StepState) -> tuple[int | None, int | None]:
    """Attempts that were not finite, in a row up to now and in all; None: no number was checked."""
    if step.spoilt is not None:
        return step.spoilt.run or int(not step.loss_finite), step.spoilt.attempts
    checked = step.loss is not None or not step.loss_finite
    return (int(not step.loss_finite), 0) if checked else (None, None)


_OF_A_STEP: Final[
    tuple[tuple[_Kind, str, str, Callable[[wire.StepState], float | None]], ...]
] = (
    (_GAUGE, "step", "step that the rank works on", lambda step: step.step),
    (_GAUGE, "committed_step", "last step committed", lambda step: step.committed_step),
    (_COUNTER, "attempts", "steps begun, retries included", lambda step: step.attempt),
    (_COUNTER, "commits", "steps committed by this process", lambda step: step.commits),
    (_COUNTER, "commit_failures", "attempts that ended without a commit",
     lambda step: step.commit_failures),
    (_COUNTER, "local_steps", "steps of the optimizer between two votes: LocalSGD, DiLoCo",
     lambda step: step.local_steps or None),
    (_COUNTER, "tokens", "tokens trained on by this process", lambda step: step.tokens),
    (_GAUGE, "quorum_id", "TorchFT quorum", lambda step: step.quorum_id),
    (_GAUGE, "participants", "replica groups in the quorum", lambda step: step.participants),
    (_GAUGE, "loss", "last reported loss; NaN when it was not finite",
     lambda step: step.loss if step.loss_finite else float("nan")),
    (_GAUGE, "finite", "1 while loss and gradient of the last attempt were finite",
     lambda step: None if (run := _run_and_attempts(step)[0]) is None else not run),
    (_COUNTER, "nonfinite_attempts", "attempts with a loss or gradient that was not finite",
     lambda step: _run_and_attempts(step)[1]),
    (_GAUGE, "fingerprint_step", "committed step of the last fingerprint of the weights",
     lambda step: step.prints.rows[-1][0] if step.prints and step.prints.rows else None),
    (_GAUGE, "last_commit_timestamp_seconds", "wall-clock time of the last commit",
     lambda step: None if step.last_commit_age_s is None else time.time() - step.last_commit_age_s),
)  # fmt: skip
_OF_A_HEAD: Final[tuple[tuple[str, str, Callable[[wire.GroupHead], int]], ...]] = (
    ("collective_enqueued", "sequence id of the last collective entered",
     lambda head: head.enqueued),
    ("collective_completed", "sequence id of the last collective left",
     lambda head: head.completed),
    ("collective_lag", "collectives entered and not left yet",
     lambda head: head.enqueued - head.completed),
)  # fmt: skip


@dataclass(eq=False)
class RankCollector(Collector):
    """Turns one state report, and the steps followed so far, into the rank's metrics."""

    state: Callable[[], wire.StateReport]
    url: Callable[[], str]
    follower: StepFollower | None = None
    _waited_s = 0.0

    def collect(self) -> Iterator[Metric]:
        report = self.state()
        name, step = report.identity, report.step
        who, process = (name.job, name.group, str(name.group_rank)), report.process
        state = None if process.state is None else {"D": 2, "t": 3, "T": 4}.get(process.state, 1)
        state = state if process.alive else 0
        yield _one(_GAUGE, "alive", "1 while the rank's process lives", who, report.process.alive)
        yield _one(_GAUGE, "process_state", "0 ended, 1 lives, 2 waits for a device (D), 3 stopped"
                   " by a tracer, 4 by a signal", who, state)  # fmt: skip
        yield _one(_GAUGE, "unhooked_functions",
                   "functions to hook that this TorchFT does not have",
                   who, len(report.unhooked))  # fmt: skip
        where = (name.host, str(name.pid), (step.replica_id if step else "") or "", self.url())
        yield _rows(_GAUGE, "info", "who and where the rank is", who, [(where, 1)],
                    "host", "pid", "replica_id", "url")  # fmt: skip
        if step is not None:
            for kind, metric, text, value in _OF_A_STEP:
                yield _one(kind, metric, text, who, value(step))
            yield _rows(_COUNTER, "phase_seconds", "seconds spent in finished phases", who,
                        (((key,), step.seconds[key]) for key in sorted(step.seconds)),
                        "phase")  # fmt: skip
            since_s = time.time() - step.phase_age_s
            yield _rows(_GAUGE, "phase_since_timestamp_seconds", "when the current phase began",
                        who, [((step.phase,), since_s)], "phase")  # fmt: skip
            yield _rows(_COUNTER, "user", "counters of the user's own", who,
                        (((key,), step.counters[key]) for key in sorted(step.counters)),
                        "counter")  # fmt: skip
            yield _one(_COUNTER, "communication_seconds",
                       "seconds in the phase `communication`, the current one included, and in"
                       " finished collectives that held the rank outside of it",
                       who, self._waited(report))  # fmt: skip
        for metric, text, count in _OF_A_HEAD:
            counts = (((head.name,), count(head)) for head in report.heads)
            yield _rows(_GAUGE, metric, text, who, counts, "process_group")
        if self.follower is not None:
            yield from self.follower.collect(who)

    def _waited(self, report: wire.StateReport) -> float:
        """Never less than before: a counter that shrinks by 1 ns looks like a restart."""
        held_s = self.follower.page.held_s() if self.follower else 0.0
        self._waited_s = max(self._waited_s, _in_communication(report) + held_s)
        return self._waited_s


def _in_communication(report: wire.StateReport) -> float:
    """Grows while the rank waits, and stops at its death."""
    step = report.step
    if step is None:
        return 0.0
    spent_s = step.seconds.get(wire.WAITING_PHASE, 0.0)
    if step.phase != wire.WAITING_PHASE:
        return spent_s
    return spent_s + max(0.0, step.phase_age_s - (report.process.dead_age_s or 0.0))


def _one(kind: _Kind, name: str, text: str, who: _Who, value: float | None) -> Metric:
    return _rows(kind, name, text, who, [((), value)])


def _rows(
    kind: _Kind,
    name: str,
    text: str,
    who: _Who,
    rows: Iterable[tuple[tuple[str, ...], float | None]],
    *labels: str,
) -> Metric:
    family = kind(f"{_PREFIX}_{name}", text, labels=(*_LABELS, *labels))
    for more, value in rows:
        if value is not None:
            family.add_metric((*who, *more), value)
    return family


def make_registry(
    state: Callable[[], wire.StateReport],
    url: Callable[[], str],
    follower: StepFollower | None = None,
) -> CollectorRegistry:
    """A registry with this rank's metrics and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RankCollector(state, url, follower))
    return registry
