"""The monitor in Prometheus: gauges from the immutable view at scrape time, own counters.

Aggregates and verdicts only; Prometheus scrapes the ranks themselves through `/v1/sd`. Ranks
and groups that are gone vanish by construction. Labels never carry a step, a replica id or a
text.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client import Gauge as LiveGauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.metrics import disable_created_metrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from monitor.incident import Incident, Milestones
from monitor.journal.writer import Stats
from monitor.lease import Standing
from monitor.names import group_of_replica, split_rank_name
from monitor.pipeline import RankHealth
from monitor.self_health import Condition
from monitor.snapshot import LighthouseAway, LighthouseView
from monitor.view import View, groups_of

_TICK_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_HOSTS_TOLD: Final = 100
"""Hosts with a record that are told by name: a series each, and names of hosts come and go."""
_STAGE_BUCKETS: Final = (
    0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

_MEMBERS_SHOWN: Final = 4096
"""Series of a metric by member; a job of more groups has other worries."""

disable_created_metrics()  # type: ignore[no-untyped-call]  # Prometheus would keep a `_created` series for each counter


class Instruments:
    """What is counted while it happens. Thread-safe, as prometheus_client's own are."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        ProcessCollector(registry=self.registry)
        made = self.registry
        self.transitions = Counter(
            "lightkeeper_incident_transitions_total",
            "Incidents that entered a state.",
            ("kind", "to"),
            registry=made,
        )
        self.stages = Histogram(
            "lightkeeper_incident_stage_seconds",
            "Seconds of each stage of an incident: detect, decide, leave, recover, rejoin.",
            ("stage",),
            buckets=_STAGE_BUCKETS,
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
    }
    return {
        stage: max(0.0, end - start)
        for stage, (start, end) in spans.items()
        if start is not None and end is not None
    }


class ViewCollector(Collector):
    """Gauges computed from the latest view when Prometheus asks."""

    def __init__(
        self, view: Callable[[], View | None], store_errors: Callable[[], int], version: str
    ) -> None:
        self._view = view
        self._store_errors = store_errors
        self._version = version

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment; what is not known is left out, never zero."""
        yield _gauge("build_info", "1, with the version.", ("version",), [((self._version,), 1)])
        errors = CounterMetricFamily(
            "lightkeeper_store_errors", "Writes that the store's disk did not take (retried)."
        )
        errors.add_metric((), self._store_errors())
        yield errors
        view = self._view()
        if view is not None:
            yield from _ranks(view)
            yield from _groups(view)
            yield from _lighthouse(view)
            yield from _incidents(view)
            yield from _quarantine(view)
            yield from _self(view)
            yield from _policy(view)


class JournalCollector(Collector):
    """What the journal wrote and lost."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        self._stats = stats

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        stats = self._stats()
        for name, text, value in (
            ("ticks", "Ticks written to the journal.", stats.ticks),
            ("lost_ticks", "Ticks that the journal's disk did not take.", stats.lost),
            ("written_bytes", "Bytes written to the journal, compressed.", stats.bytes),
        ):
            counter = CounterMetricFamily(f"lightkeeper_journal_{name}", text)
            counter.add_metric((), value)
            yield counter
        failing = float(stats.problem is not None)
        yield _gauge("journal_failing", "1 while the journal is not written.", (), [((), failing)])


class LeaseCollector(Collector):
    """Whether this monitor acts."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    def describe(self) -> list[Metric]:
        """Nothing ahead of time."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The metrics of this moment."""
        seen = self._standing()
        text = "1 while this monitor holds the lease and acts, 0 while it stands by."
        yield _gauge("monitor_active", text, (), [((), float(seen.active))])
        text = "Epoch of the lease, as far as this monitor knows; it grows with each handover."
        yield _gauge("lease_epoch", text, (), [((), float(seen.epoch))])
        failing = float(seen.problem is not None)
        text = "1 while the lease can be neither renewed nor looked at."
        yield _gauge("lease_failing", text, (), [((), failing)])


Row = tuple[tuple[str, ...], float]


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Sequence[Row]) -> Metric:
    family = GaugeMetricFamily(f"lightkeeper_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _ranks(view: View) -> Iterator[Metric]:
    tally = Tally(str(health) for health in view.result.rank_health.values())
    rows = [((str(health),), float(tally[str(health)])) for health in RankHealth]
    yield _gauge("ranks", "Registered ranks, by health.", ("health",), rows)
    busy = []
    for rank, tempo in sorted(view.tempos.items()):
        group, number = split_rank_name(rank)
        busy.append(((str(group), str(number)), tempo.busy_s))
    text = "Mean seconds a step in which the rank did not wait for others, last window."
    yield _gauge("rank_busy_seconds", text, ("replica_group", "rank"), busy)


def _groups(view: View) -> Iterator[Metric]:
    groups, label = groups_of(view), ("replica_group",)
    tally = Tally(group.health for group in groups)
    rows = [((health,), float(count)) for health, count in sorted(tally.items())]
    yield _gauge("groups", "Replica groups, by the health of their worst rank.", ("health",), rows)
    yield _gauge(
        "group_step",
        "Step that the group works on.",
        label,
        [((one.group,), one.step) for one in groups if one.step is not None],
    )
    commits = CounterMetricFamily(
        "lightkeeper_group_commits",
        "Steps committed by the group's present processes.",
        labels=label,
    )
    for one in groups:
        if one.commits is not None:
            commits.add_metric((one.group,), one.commits)
    yield commits
    yield _gauge(
        "group_in_quorum",
        "1 while the group is a member of the last quorum.",
        label,
        [((one.group,), float(one.in_quorum)) for one in groups if one.in_quorum is not None],
    )
    yield _gauge(
        "group_last_heartbeat_timestamp_seconds",
        "Unix time of the group's last heartbeat to the Lighthouse.",
        label,
        [
            ((one.group,), view.snapshot.now_s - one.heartbeat_age_s)
            for one in groups
            if one.heartbeat_age_s is not None
        ],
    )


def _lighthouse(view: View) -> Iterator[Metric]:
    lighthouse, record = view.snapshot.lighthouse, view.lighthouse
    for name, text, count in (
        (
            "lighthouse_restarts",
            "Restarts of the Lighthouse seen by this monitor.",
            record.restarts,
        ),
        ("quorum_changes", "Quorums formed since this monitor looks.", record.quorum_changes),
    ):
        counter = CounterMetricFamily(f"lightkeeper_{name}", text)
        counter.add_metric((), count)
        yield counter
    if record.view_s is not None:
        text = "Unix time at which the Lighthouse's page was last read."
        yield _gauge("lighthouse_read_timestamp_seconds", text, (), [((), record.view_s)])
    up = 0.0 if isinstance(lighthouse, LighthouseAway) else 1.0
    yield _gauge("lighthouse_up", "1 while the Lighthouse's page can be read.", (), [((), up)])
    if isinstance(lighthouse, LighthouseView):
        quorum_id = float(lighthouse.quorum_id)
        members = float(len(lighthouse.members))
        yield _gauge("quorum_id", "Id of the last quorum.", (), [((), quorum_id)])
        text = "Members of the last quorum."
        yield _gauge("quorum_participants", text, (), [((), members)])
        text = (
            "Age of the last heartbeat of each member of the last quorum, as the Lighthouse says."
        )
        yield _gauge("member_heartbeat_age_seconds", text, ("replica_group",), _beats(lighthouse))


def _beats(view: LighthouseView) -> list[Row]:
    """Members only: the Lighthouse remembers every id that ever beat. The oldest of each group."""
    ages_s: dict[str, float] = {}
    for member in view.members[:_MEMBERS_SHOWN]:
        age_s, group = (
            view.heartbeat_ages_s.get(member.replica_id),
            group_of_replica(member.replica_id),
        )
        if age_s is not None:
            ages_s[group] = max(age_s, ages_s.get(group, 0.0))
    return [((group,), age_s) for group, age_s in sorted(ages_s.items())]


def _self(view: View) -> Iterator[Metric]:
    """What the monitor knows of itself."""
    result = view.result
    up = [((name,), float(works)) for name, works in sorted(result.detectors.items())]
    text = "1 while the detector works; 0: it crashed in the last tick, its fault is unknown."
    yield _gauge("detector_up", text, ("detector",), up)
    states = [((str(one),), float(one is result.health.state)) for one in Condition]
    text = "1 for the state of the monitor's own health, 0 for the others."
    yield _gauge("self_health", text, ("state",), states)
    text = "What thresholds are multiplied by because the monitor doubts itself; 1 when well."
    yield _gauge("self_health_scale", text, (), [((), result.health.scale)])


def _policy(view: View) -> Iterator[Metric]:
    """What holds evictions back on a person's word, and what was learned for them."""
    now_s, learned = view.snapshot.now_s, view.result.learned
    text = "1 while a person has paused evictions."
    yield _gauge("paused", text, (), [((), float(view.snapshot.pause is not None))])
    text = "1 while the monitor evicts nobody and says whom it would (observe mode)."
    yield _gauge("observe_mode", text, (), [((), float(view.observe))])
    text = "Evictions of the last hour, by group: what the budgets count."
    rows = [((str(group),), float(n)) for group, n in sorted(learned.evictions.items())]
    yield _gauge("evictions_last_hour", text, ("replica_group",), rows)
    if learned.eviction_cost_s is not None:
        text = "Fleet seconds that an eviction costs, measured on this job's."
        yield _gauge("eviction_cost_seconds", text, (), [((), learned.eviction_cost_s)])
    if view.rules is not None:
        text = "Unix time at which the policy was loaded; 0: none was, the defaults hold."
        yield _gauge("policy_loaded_timestamp_seconds", text, (), [((), view.rules.loaded_s)])
        open_now = float(view.rules.policy.window(now_s) is not None)
        text = "1 within a maintenance window of the policy."
        yield _gauge("maintenance", text, (), [((), open_now)])


def _incidents(view: View) -> Iterator[Metric]:
    tally = Tally(
        (str(one.kind), str(one.state), str(one.severity)) for one in view.incidents if one.open
    )
    rows = [(labels, float(count)) for labels, count in sorted(tally.items())]
    text = "Open incidents, by kind, state and severity (info, warning, critical)."
    yield _gauge("incidents", text, ("kind", "state", "severity"), rows)


def _quarantine(view: View) -> Iterator[Metric]:
    """Hosts in quarantine, and those with a record: bounded, worst first."""
    hosts, groups = float(len(view.quarantine)), float(len(view.quarantine_groups))
    yield _gauge("quarantined_hosts", "Hosts in quarantine.", (), [((), hosts)])
    yield _gauge("quarantined_groups", "Replica groups in quarantine.", (), [((), groups)])
    lemons = float(sum(record.lemon is not None for record in view.hosts.values()))
    yield _gauge(
        "lemon_hosts", "Hosts that failed so often that they are lemons.", (), [((), lemons)]
    )
    told = [record for record in view.hosts.values() if not record.clean]
    told.sort(key=lambda one: (one.lemon is None, -sum(one.incidents.values()), one.host))
    rows = []
    for one in told[:_HOSTS_TOLD]:
        for signal, count in (
            ("incidents", sum(one.incidents.values())),
            ("evictions", one.evictions),
            ("quarantines", one.quarantines),
            ("failed_readmissions", one.failed_readmissions),
        ):
            rows.append(((str(one.host), signal), float(count)))
    text = "What happened on a host within the window (28 days), of the 100 worst."
    yield _gauge("host_offences", text, ("host", "signal"), rows)
