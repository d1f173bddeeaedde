"""What is counted while it happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client import Gauge as LiveGauge
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.process_collector import ProcessCollector

from monitor.incident import Incident, Milestones

_TICK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STAGE_BUCKETS: Final = (
    0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep a `_created` series for each counter


class Instruments:
    """What is counted while it happens. Thread-safe, as prometheus_client's own are."""

    def __init__(self) -> None:
        self.registry = made = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=made)
        self._of_incidents(made)
        self._of_loop(made)
        self._of_schedulers(made)
        self._of_evidence(made)
        self._of_notifications(made)
        self._of_accounts(made)

    def _of_incidents(self, made: CollectorRegistry) -> None:
        self.transitions = Counter(
            "lightkeeper_incident_transitions_total",
            "Incidents that entered a state.",
            ("kind", "to"),
            registry=made,
        )
        self.stages = Histogram(
            "lightkeeper_incident_stage_seconds",
            "Seconds of each stage of an incident: detect, decide, leave, recover, rejoin, resume.",
            ("stage",),
            buckets=_STAGE_BUCKETS,
            registry=made,
        )
        self.lost_steps = Counter(
            "lightkeeper_lost_steps_total",
            "Attempts of other groups that did not commit for a fault, at least.",
            ("kind",),
            registry=made,
        )
        self.evictions = Counter(
            "lightkeeper_evictions_total",
            "Evictions that ended, by incident kind and outcome.",
            ("kind", "outcome"),
            registry=made,
        )
        self.holds = Counter(
            "lightkeeper_holds_total",
            "Evictions held back, by guard.",
            ("guard",),
            registry=made,
        )

    def _of_loop(self, made: CollectorRegistry) -> None:
        self.ticks = Histogram(
            "lightkeeper_tick_duration_seconds",
            "Seconds from the start of a tick to its end.",
            buckets=_TICK_BUCKETS,
            registry=made,
        )
        self.lateness = LiveGauge(
            "lightkeeper_tick_lateness_seconds",
            "How much later than planned the last tick began.",
            registry=made,
        )
        self.poll_failures = Counter(
            "lightkeeper_poll_failures_total",
            "Polls of a rank that gave no report, by reason.",
            ("reason",),
            registry=made,
        )
        self.detector_failures = Counter(
            "lightkeeper_detector_failures_total",
            "Crashes of a detector; its kind of fault is unknown meanwhile.",
            ("detector",),
            registry=made,
        )
        self.part_failures = Counter(
            "lightkeeper_part_failures_total",
            "Crashes of a part of the monitor's own loop.",
            ("part",),
            registry=made,
        )

    def _of_schedulers(self, made: CollectorRegistry) -> None:
        self.scheduler_requests = Counter(
            "lightkeeper_scheduler_requests_total",
            "Requests by which a scheduler follows the quarantine list, by action and outcome.",
            ("scheduler", "action", "outcome"),
            registry=made,
        )
        self.scheduler_hosts = LiveGauge(
            "lightkeeper_scheduler_hosts",
            "Quarantined hosts by who keeps them out: ours, foreign (somebody else), failing.",
            ("scheduler", "state"),
            registry=made,
        )

    def _of_evidence(self, made: CollectorRegistry) -> None:
        self.evidence = Counter(
            "lightkeeper_evidence_captures_total",
            "Captures of evidence, by moment (firing, eviction) and outcome.",
            ("moment", "outcome"),
            registry=made,
        )
        self.evidence_seconds = Histogram(
            "lightkeeper_evidence_capture_seconds",
            "Seconds until the ranks concerned had answered, or the deadline was over.",
            buckets=_TICK_BUCKETS,
            registry=made,
        )
        self.evidence_bytes = Counter(
            "lightkeeper_evidence_written_bytes_total",
            "Bytes of bundles written.",
            registry=made,
        )
        self.evidence_stored = LiveGauge(
            "lightkeeper_evidence_stored_bytes", "Bytes of bundles on disk.", registry=made
        )

    def _of_notifications(self, made: CollectorRegistry) -> None:
        self.notifications = Counter(
            "lightkeeper_notifications_total",
            "Messages to people, by sink and outcome: sent, failed (tried again), dropped.",
            ("sink", "outcome"),
            registry=made,
        )
        self.notify_pending = LiveGauge(
            "lightkeeper_notifications_pending",
            "Messages that wait for a sink.",
            ("sink",),
            registry=made,
        )

    def _of_accounts(self, made: CollectorRegistry) -> None:
        self.lost = Counter(
            "lightkeeper_lost_rank_seconds_total",
            "Rank-seconds that waited for faults, at least, once their accounts are complete.",
            ("kind",),
            registry=made,
        )
        self.saved = Counter(
            "lightkeeper_saved_rank_seconds_total",
            "Rank-seconds that evictions saved, at least, by lightkeeper's own account.",
            ("kind",),
            registry=made,
        )
        self.spent = Counter(
            "lightkeeper_spent_rank_seconds_total",
            "Rank-seconds that evictions cost more than they may have saved, at most.",
            ("kind",),
            registry=made,
        )
        self.unaccounted = Counter(
            "lightkeeper_unaccounted_incidents_total",
            "Incidents of which it cannot be told what they lost or what their eviction saved.",
            ("kind", "what"),
            registry=made,
        )

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
