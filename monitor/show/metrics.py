"""The monitor's `/metrics`: read from the latest view at each scrape, or counted as it happens.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text; series by rank, group, host or incident are bounded (`exposition.Bounds`, `*_TOLD`).

`metrics_fleet`, `metrics_incidents` and `metrics_upkeep` define families of metrics, from which
docs/metrics.md is made, and read them from a view. Not here: the calls that count, and the
gate's own page (`monitor.gate.serve`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from lightkeeper.monitor.act.evidence import EvidenceMetrics
from lightkeeper.monitor.act.notify import NotifyMetrics
from lightkeeper.monitor.act.schedulers.reconcile import SchedulerMetrics
from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.incident import Incident, Milestones
from lightkeeper.monitor.show import metrics_fleet, metrics_incidents, metrics_upkeep
from lightkeeper.monitor.show.exposition import Bounds, ScrapeView

_EXPORTERS = (metrics_fleet, metrics_incidents, metrics_upkeep)


class ViewCollector(Collector):
    """Computed from the latest view when Prometheus asks.

    Args:
        view: the latest; None before the first tick.
        bounds: how many ranks and groups have series of their own.
        wait: until the monitor has time, but not for long: the families of 10,000 ranks take 50 ms
            of the interpreter that the tick needs.
    """

    def __init__(
        self,
        view: Callable[[], View | None],
        store_errors: Callable[[], int],
        version: str,
        bounds: Bounds | None = None,
        wait: Callable[[], object] = lambda: None,
    ) -> None:
        self._view = view
        self._store_errors = store_errors
        self._version = version
        self._bounds = bounds or Bounds()
        self._wait = wait
        self._cached: tuple[tuple[float, int], tuple[Metric, ...]] | None = None
        """Of the tick last scraped: two Prometheus servers often scrape the same one."""

    def collect(self) -> Iterator[Metric]:
        """Metrics of this moment; unknown values are left out, never zero."""
        yield metrics_upkeep.BUILD.rows([((self._version,), 1.0)])
        yield metrics_upkeep.STORE_ERRORS.value(self._store_errors())
        yield from self._families()

    def _families(self) -> tuple[Metric, ...]:
        """Made once a tick; if two threads make them, both make the same."""
        view, cached = self._view(), self._cached
        if view is None or (cached is not None and cached[0] == _tick(view)):
            return () if cached is None else cached[1]
        self._wait()
        view = self._view() or view
        scene = ScrapeView(view, self._bounds)
        families = tuple(family for exporter in _EXPORTERS for family in exporter.export(scene))
        self._cached = _tick(view), families
        return families


def _tick(view: View) -> tuple[float, int]:
    return view.snapshot.now_s, view.snapshot.tick


# -- What is counted as it happens -----------------------------------------------------------------

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep a `_created` series for each counter


class Instruments:
    """Metrics counted as events happen. Thread-safe, as prometheus_client's are."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=registry)
        self.transitions = metrics_incidents.TRANSITIONS.counter(registry)
        self.stages = metrics_incidents.STAGES.histogram(registry)
        self.evictions = metrics_incidents.EVICTIONS.counter(registry)
        self.holds = metrics_incidents.HOLDS.counter(registry)
        self.schedulers = SchedulerMetrics(
            requests=metrics_incidents.SCHEDULER_REQUESTS.counter(registry),
            hosts=metrics_incidents.SCHEDULER_HOSTS.live(registry),
        )
        self.ticks = metrics_upkeep.TICKS.histogram(registry)
        self.lateness = metrics_upkeep.LATENESS.live(registry)
        self.poll_failures = metrics_upkeep.POLL_FAILURES.counter(registry)
        self.detector_failures = metrics_upkeep.DETECTOR_FAILURES.counter(registry)
        self.part_failures = metrics_upkeep.PART_FAILURES.counter(registry)
        self.evidence = EvidenceMetrics(
            captures=metrics_upkeep.EVIDENCE.counter(registry),
            seconds=metrics_upkeep.EVIDENCE_SECONDS.histogram(registry),
            written_bytes=metrics_upkeep.EVIDENCE_BYTES.counter(registry),
            stored_bytes=metrics_upkeep.EVIDENCE_STORED.live(registry),
        )
        self.notify = NotifyMetrics(
            messages=metrics_upkeep.NOTIFICATIONS.counter(registry),
            pending=metrics_upkeep.PENDING.live(registry),
        )

    def count_incidents(self, incidents: Sequence[Incident], before: Sequence[Incident]) -> None:
        """Count the transitions and stages that are new since `before`."""
        by_id = {incident.id: incident for incident in before}
        for incident in incidents:
            old = by_id.get(incident.id)
            counted = set() if old is None else {(line.at_s, line.to) for line in old.story}
            for line in incident.story:
                if (line.at_s, line.to) not in counted:
                    self.transitions.labels(str(incident.kind), line.to).inc()
            had = {} if old is None else _stages(old.milestones)
            for stage, seconds in _stages(incident.milestones).items():
                if stage not in had:
                    self.stages.labels(stage).observe(seconds)


def _stages(at: Milestones) -> dict[str, float]:
    """Seconds of each finished stage."""
    spans = {
        "detect": (at.first_seen_s, at.firing_s),
        "decide": (at.firing_s, at.evict_asked_s),
        "leave": (at.evict_asked_s, at.left_quorum_s),
        "recover": (at.evict_asked_s, at.survivor_commit_s),
        "rejoin": (at.evict_asked_s, at.rejoined_s),
    }
    return {
        stage: max(0.0, end - start)
        for stage, (start, end) in spans.items()
        if start is not None and end is not None
    }
