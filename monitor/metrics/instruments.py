"""What is counted while it happens."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from monitor.act.evidence import EvidenceMetrics
from monitor.act.notify import NotifyMetrics
from monitor.act.schedulers.reconcile import SchedulerMetrics
from monitor.metrics import evictions, goodput, health, incidents, upkeep
from monitor.model.incident import Incident, Milestones

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep a `_created` series for each counter


class Instruments:
    """What is counted while it happens. Thread-safe, as prometheus_client's own are."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=made)
        self.transitions = incidents.TRANSITIONS.counter(made)
        self.stages = incidents.STAGES.histogram(made)
        self.lost_steps = incidents.LOST_STEPS.counter(made)
        self.evictions = evictions.EVICTIONS.counter(made)
        self.holds = evictions.HOLDS.counter(made)
        self.schedulers = SchedulerMetrics(
            requests=evictions.SCHEDULER_REQUESTS.counter(made),
            hosts=evictions.SCHEDULER_HOSTS.live(made),
        )
        self.ticks = health.TICKS.histogram(made)
        self.lateness = health.LATENESS.live(made)
        self.poll_failures = health.POLL_FAILURES.counter(made)
        self.detector_failures = health.DETECTOR_FAILURES.counter(made)
        self.part_failures = health.PART_FAILURES.counter(made)
        self.evidence = EvidenceMetrics(
            captures=upkeep.EVIDENCE.counter(made),
            seconds=upkeep.EVIDENCE_SECONDS.histogram(made),
            written_bytes=upkeep.EVIDENCE_BYTES.counter(made),
            stored_bytes=upkeep.EVIDENCE_STORED.live(made),
        )
        self.notify = NotifyMetrics(
            messages=upkeep.NOTIFICATIONS.counter(made), pending=upkeep.PENDING.live(made)
        )
        self.event_streams = upkeep.EVENT_STREAMS.live(made)
        self.lost = goodput.LOST.counter(made)
        self.saved = goodput.SAVED.counter(made)
        self.spent = goodput.SPENT.counter(made)
        self.unaccounted = goodput.UNACCOUNTED.counter(made)

    def count_account(self, kind: str, *, lost: float | None, saved: float | None) -> None:
        """Count one incident's account by its lower bounds; None: it cannot be told."""
        if lost is None:
            self.unaccounted.labels(kind, "lost").inc()
        else:
            self.lost.labels(kind).inc(max(0.0, lost))
        if saved is None:
            self.unaccounted.labels(kind, "saved").inc()
        elif saved >= 0:
            self.saved.labels(kind).inc(saved)
        else:
            self.spent.labels(kind).inc(-saved)

    def count_incidents(self, incidents: Sequence[Incident], before: Sequence[Incident]) -> None:
        """Count the transitions and stages that these incidents have and had not before."""
        known = {incident.id: incident for incident in before}
        for incident in incidents:
            old = known.get(incident.id)
            told = set() if old is None else {(line.at_s, line.to) for line in old.story}
            for line in incident.story:
                if (line.at_s, line.to) not in told:
                    self.transitions.labels(str(incident.kind), line.to).inc()
            lost = (incident.lost_steps or 0) - (0 if old is None else old.lost_steps or 0)
            self.lost_steps.labels(str(incident.kind)).inc(max(0, lost))
            had = {} if old is None else _stages(old.milestones)
            for stage, seconds in _stages(incident.milestones).items():
                if stage not in had:
                    self.stages.labels(stage).observe(seconds)


def _stages(at: Milestones) -> dict[str, float]:
    """Seconds of the stages that are over."""
    spans = {
        "detect": (at.first_seen_s, at.firing_s),
        "decide": (at.firing_s, at.evict_asked_s),
        "leave": (at.evict_asked_s, at.left_quorum_s),
        "recover": (at.evict_asked_s, at.survivor_commit_s),
        "rejoin": (at.evict_asked_s, at.rejoined_s),
        "resume": (at.firing_s, at.resumed_s),
    }
    return {
        stage: max(0.0, end - start)
        for stage, (start, end) in spans.items()
        if start is not None and end is not None
    }
