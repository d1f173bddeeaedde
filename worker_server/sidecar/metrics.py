"""The rank in Prometheus: computed at the scrape, in a registry of its own.

What is not known is left out, never zero. Labels are bounded by the page: 64 process groups, 16
phases, 16 counters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from worker_server import wire
from worker_server.sidecar.steps import BUCKETS_S, Folded, StepFollower, StepTimes

_LABELS = ("job_id", "replica_group", "rank")
_BOUNDS = (*map(str, BUCKETS_S), "+Inf")
_TIMES = {
    "staging": ("checkpoint_staging_seconds", "making a checkpoint ready for a healing group"),
    "load": ("checkpoint_load_seconds", "loading a checkpoint from another group, to heal"),
    "apply": ("checkpoint_apply_seconds", "taking over what was loaded, in the training thread"),
    "quorum": ("quorum_seconds", "finding a TorchFT quorum"),
    "reconfigure": ("reconfigure_seconds", "building the process groups of a new quorum"),
}
_BYTES = {
    "staging": ("checkpoint_staged_bytes", "bytes of checkpoints made ready for healing groups"),
    "load": ("checkpoint_loaded_bytes", "bytes of checkpoints loaded from other groups"),
}


class RankCollector(Collector):
    """Turns one state report, and the steps followed so far, into the rank's metrics."""

    def __init__(
        self,
        state: Callable[[], wire.StateReport],
        url: Callable[[], str],
        follower: StepFollower | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._url = url
        self._follower = follower
        self._wall_clock = wall_clock
        self._waited_s = 0.0

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering must not read the rank."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        report = self._state()
        who = report.identity
        labels = (who.job, who.group, str(who.group_rank))
        yield _gauge("alive", "1 while the rank's process lives", labels, report.process.alive)
        yield _gauge(
            "unhooked_functions", "functions of TorchFT's that this version does not have",
            labels, len(report.unhooked),
        )  # fmt: skip
        replica = report.step.replica_id if report.step else None
        yield _gauge(
            "info", "who and where the rank is",
            (*labels, who.host, str(who.pid), replica or "", self._url()), 1,
            ("host", "pid", "replica_id", "url"),
        )  # fmt: skip
        if report.step is not None:
            yield from self._step_metrics(report.step, labels)
            yield _counter(
                "communication_seconds",
                "seconds in the phase `communication`, the running one included, and in"
                " collectives that held the rank outside of it, those that were left",
                labels, self._waited(report),
            )  # fmt: skip
        yield from _head_metrics(report.heads, labels)
        if self._follower is not None:
            yield from _followed_metrics(self._follower.look(), labels)
            yield from _time_metrics(self._follower.page.times(), labels)

    def _waited(self, report: wire.StateReport) -> float:
        """Never less than before: a counter that shrinks by a nanosecond is one that restarted."""
        held_s = self._follower.page.held_s() if self._follower else 0.0
        self._waited_s = max(self._waited_s, _in_communication(report) + held_s)
        return self._waited_s

    def _step_metrics(self, step: wire.StepState, labels: tuple[str, ...]) -> Iterator[Metric]:
        yield _gauge("step", "step that the rank works on", labels, step.step)
        yield _gauge("committed_step", "last step committed", labels, step.committed_step)
        yield _counter("attempts", "steps begun, retries included", labels, step.attempt)
        yield _counter("commits", "steps committed by this process", labels, step.commits)
        yield _counter(
            "commit_failures", "attempts that ended without a commit", labels, step.commit_failures
        )
        yield _counter("tokens", "tokens trained on by this process", labels, step.tokens)
        yield _gauge("quorum_id", "TorchFT quorum", labels, step.quorum_id)
        yield _gauge("participants", "replica groups in the quorum", labels, step.participants)
        loss = step.loss if step.loss_finite else float("nan")
        yield _gauge("loss", "last reported loss; NaN when it was not finite", labels, loss)
        yield from _soundness(step, labels)
        age = step.last_commit_age_s
        yield _gauge(
            "last_commit_timestamp_seconds", "wall-clock time of the last commit", labels,
            None if age is None else self._wall_clock() - age,
        )  # fmt: skip
        yield _counters(
            "phase_seconds", "seconds spent in finished phases", "phase", labels, step.seconds
        )
        yield _counters("user", "counters of the user's own", "counter", labels, step.counters)


def _soundness(step: wire.StepState, labels: tuple[str, ...]) -> Iterator[Metric]:
    """Left out while nobody said whether anything was finite."""
    spoilt, prints = step.spoilt, step.prints
    said = spoilt is not None or step.loss is not None or not step.loss_finite
    now = step.loss_finite and (spoilt is None or not spoilt.run)
    yield _gauge(
        "finite", "1 while loss and gradient of the last attempt were finite", labels,
        now if said else None,
    )  # fmt: skip
    yield _counter(
        "nonfinite_attempts", "attempts with a loss or gradient that was not finite", labels,
        (spoilt.attempts if spoilt is not None else 0) if said else None,
    )  # fmt: skip
    yield _gauge(
        "fingerprint_step", "committed step of the last fingerprint of the weights", labels,
        prints.rows[-1][0] if prints is not None and prints.rows else None,
    )  # fmt: skip


def _in_communication(report: wire.StateReport) -> float:
    """Grows while the rank waits, and stands still from its death on."""
    step = report.step
    if step is None:
        return 0.0
    spent_s = step.seconds.get(wire.WAITING_PHASE, 0.0)
    if step.phase != wire.WAITING_PHASE:
        return spent_s
    return spent_s + max(0.0, step.phase_age_s - (report.process.dead_age_s or 0.0))


def _followed_metrics(times: StepTimes, labels: tuple[str, ...]) -> Iterator[Metric]:
    steps = HistogramMetricFamily(
        "lightkeeper_rank_step_seconds", "attempts of steps, from begin to end", labels=_LABELS
    )
    _add(steps, labels, times.steps)
    yield steps
    phases = HistogramMetricFamily(
        "lightkeeper_rank_step_phase_seconds",
        "seconds in a phase between the ends of two attempts, where it was entered at all",
        labels=(*_LABELS, "phase"),
    )
    for name, folded in times.phases.items():
        _add(phases, (*labels, name), folded)
    yield phases
    yield _counter(
        "steps_missed", "attempts overwritten before they were counted here", labels, times.missed
    )


def _add(family: HistogramMetricFamily, labels: tuple[str, ...], folded: Folded) -> None:
    buckets = list(zip(_BOUNDS, map(float, folded.cumulative), strict=True))
    family.add_metric(labels, buckets, folded.sum_s)


def _time_metrics(times: Mapping[str, wire.Took], labels: tuple[str, ...]) -> Iterator[Metric]:
    for name, (metric, text) in _TIMES.items():
        family = SummaryMetricFamily(f"lightkeeper_rank_{metric}", text, labels=_LABELS)
        if name in times:
            family.add_metric(labels, times[name].done, times[name].sum_s)
        yield family
    for name, (metric, text) in _BYTES.items():
        took = times.get(name)
        yield _counter(metric, text, labels, took.sum_bytes if took is not None else None)
    yield _counter(
        "heals", "states of another group taken over, to heal", labels,
        times.get("apply", wire.Took(0)).done if times else None,
    )  # fmt: skip


def _head_metrics(heads: tuple[wire.GroupHead, ...], labels: tuple[str, ...]) -> Iterator[Metric]:
    names = (*_LABELS, "process_group")
    enqueued = GaugeMetricFamily(
        "lightkeeper_rank_collective_enqueued", "sequence id of the last collective entered",
        labels=names,
    )  # fmt: skip
    completed = GaugeMetricFamily(
        "lightkeeper_rank_collective_completed", "sequence id of the last collective left",
        labels=names,
    )  # fmt: skip
    lag = GaugeMetricFamily(
        "lightkeeper_rank_collective_lag", "collectives entered and not left yet", labels=names
    )
    for head in heads:
        enqueued.add_metric((*labels, head.name), head.enqueued)
        completed.add_metric((*labels, head.name), head.completed)
        lag.add_metric((*labels, head.name), head.enqueued - head.completed)
    yield from (enqueued, completed, lag)


def _gauge(
    name: str,
    text: str,
    labels: tuple[str, ...],
    value: float | None,
    more: tuple[str, ...] = (),
) -> Metric:
    family = GaugeMetricFamily(f"lightkeeper_rank_{name}", text, labels=(*_LABELS, *more))
    if value is not None:
        family.add_metric(labels, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], value: float | None) -> Metric:
    family = CounterMetricFamily(f"lightkeeper_rank_{name}", text, labels=_LABELS)
    if value is not None:
        family.add_metric(labels, value)
    return family


def _counters(
    name: str, text: str, label: str, labels: tuple[str, ...], values: Mapping[str, float]
) -> Metric:
    family = CounterMetricFamily(f"lightkeeper_rank_{name}", text, labels=(*_LABELS, label))
    for key in sorted(values):
        family.add_metric((*labels, key), values[key])
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
