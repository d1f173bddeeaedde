"""The rank in Prometheus: computed at the scrape, in a registry of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from worker_server import wire

_LABELS = ("job_id", "replica_group", "rank")


class RankCollector(Collector):
    """Turns one state report into the rank's metrics."""

    def __init__(
        self,
        state: Callable[[], wire.StateReport],
        url: Callable[[], str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._url = url
        self._wall_clock = wall_clock

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: registering must not read the rank."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; what is not known is left out, never zero."""
        report = self._state()
        who = report.identity
        labels = (who.job, who.group, str(who.group_rank))
        yield _gauge("alive", "1 while the rank's process lives", labels, report.process.alive)
        replica = report.step.replica_id if report.step else None
        yield _gauge(
            "info", "who and where the rank is",
            (*labels, who.host, str(who.pid), replica or "", self._url()), 1,
            ("host", "pid", "replica_id", "url"),
        )  # fmt: skip
        if report.step is not None:
            yield from self._step_metrics(report.step, labels)
        yield from _head_metrics(report.heads, labels)

    def _step_metrics(self, step: wire.StepState, labels: tuple[str, ...]) -> Iterator[Metric]:
        yield _gauge("step", "step that the rank works on", labels, step.step)
        yield _counter("attempts", "steps begun, retries included", labels, step.attempt)
        yield _counter("commits", "steps committed by this process", labels, step.commits)
        yield _counter("tokens", "tokens trained on by this process", labels, step.tokens)
        yield _gauge("quorum_id", "TorchFT quorum", labels, step.quorum_id)
        yield _gauge("participants", "replica groups in the quorum", labels, step.participants)
        loss = step.loss if step.loss_finite else float("nan")
        yield _gauge("loss", "last reported loss; NaN when it was not finite", labels, loss)
        age = step.last_commit_age_s
        yield _gauge(
            "last_commit_timestamp_seconds", "wall-clock time of the last commit", labels,
            None if age is None else self._wall_clock() - age,
        )  # fmt: skip
        seconds = CounterMetricFamily(
            "lightkeeper_rank_phase_seconds", "seconds spent in finished phases",
            labels=(*_LABELS, "phase"),
        )  # fmt: skip
        for name in sorted(step.seconds):
            seconds.add_metric((*labels, name), step.seconds[name])
        yield seconds


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
    for head in heads:
        enqueued.add_metric((*labels, head.name), head.enqueued)
        completed.add_metric((*labels, head.name), head.completed)
    yield enqueued
    yield completed


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


def _counter(name: str, text: str, labels: tuple[str, ...], value: float) -> Metric:
    family = CounterMetricFamily(f"lightkeeper_rank_{name}", text, labels=_LABELS)
    family.add_metric(labels, value)
    return family


def make_registry(
    state: Callable[[], wire.StateReport], url: Callable[[], str]
) -> CollectorRegistry:
    """A registry with this rank's metrics and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RankCollector(state, url))
    return registry
