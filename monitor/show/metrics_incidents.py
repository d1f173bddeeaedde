"""Incidents, their evictions, and what both cost in goodput."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.model.eviction import Guard, rulings
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import Host, RankName, split_rank_name
from lightkeeper.monitor.model.verdict import FAULTS
from lightkeeper.monitor.show.exposition import ALONE, RANK, ScrapeView, counter, gauge, histogram

SUSPECTS_TOLD: Final = 100
INCIDENTS_TOLD: Final = 50
_RECENT_S: Final = 3600.0
_STAGE_BUCKETS: Final = (
    0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip

OPEN = gauge(
    "incidents", "Open incidents, by kind, state and severity (info, warning, critical).",
    ("kind", "state", "severity"), series=f"at most {len(FAULTS)} x 3 x 3", absent="none is open",
)  # fmt: skip
FIRST_SEEN = gauge(
    "incident_first_seen_timestamp_seconds",
    "Unix time at which an incident was first seen: open ones and those of the last hour, the 50 "
    "newest. The group is that of its culprits or candidates, if they are of one.",
    ("incident", "kind", "severity", "state", "replica_group"),
    series="at most 50", absent="none is open or of the last hour",
)  # fmt: skip
SUSPECT = gauge(
    "rank_suspect",
    "1 for each culprit of an open incident, and for each candidate of one that is unsure, 100 at "
    "most. The role is culprit or candidate.",
    (*RANK, "host", "kind", "role"), series="at most 100", absent="nobody is suspected",
)  # fmt: skip
TRANSITIONS = counter(
    "incident_transitions", "Incidents that entered a state.", ("kind", "to"),
    series=f"at most {len(FAULTS)} x 10", absent="none did since this monitor started",
)  # fmt: skip
STAGES = histogram(
    "incident_stage_seconds",
    "Seconds of each stage of an incident: detect (first seen to firing), decide (to the order), "
    "leave (from there until the group is out), recover (to the survivors' next commit), rejoin "
    "(to the group's return).",
    ("stage",), buckets=_STAGE_BUCKETS, series="at most 5 x 17",
    absent="no incident came so far since this monitor started",
)  # fmt: skip


def _incidents(scene: ScrapeView) -> Iterator[Metric]:
    view = scene.view
    tally = Tally(
        (str(incident.kind), str(incident.state), str(incident.severity))
        for incident in view.incidents
        if incident.open
    )
    yield OPEN.rows([(labels, float(count)) for labels, count in sorted(tally.items())])
    since_s = view.snapshot.now_s - _RECENT_S
    recent = [
        incident
        for incident in view.incidents
        if incident.open or incident.milestones.first_seen_s >= since_s
    ]
    recent.sort(
        key=lambda incident: (not incident.open, -incident.milestones.first_seen_s, incident.id)
    )
    yield FIRST_SEEN.rows(
        ((i.id, str(i.kind), str(i.severity), str(i.state),
          str(i.groups[0]) if len(i.groups) == 1 else ""), i.milestones.first_seen_s)
        for i in recent[:INCIDENTS_TOLD]
    )  # fmt: skip
    yield SUSPECT.rows([(labels, 1.0) for labels in _suspects(scene)])


def _suspects(scene: ScrapeView) -> list[tuple[str, ...]]:
    hosts: dict[tuple[RankName, str, str], Host] = {}
    for incident in scene.view.incidents:
        role = "culprit" if incident.culprits else "candidate"
        for rank in incident.suspects if incident.open else ():
            host = incident.hosts[0] if len(incident.hosts) == 1 else Host("")
            hosts[rank, str(incident.kind), role] = host
    suspects: list[tuple[str, ...]] = []
    for (rank, kind, role), host in sorted(hosts.items())[:SUSPECTS_TOLD]:
        group, number = split_rank_name(rank)
        seen = scene.view.by_rank.get(rank)
        at = host if seen is None else seen.identity.host
        suspects.append((group, str(number), at, kind, role))
    return suspects


# -- Evictions, what held others back, and the quarantine that follows them -----------------------

_HOSTS_TOLD: Final = 100
"""Most hosts with a record that have a series each: host names come and go."""

EVICTIONS = counter(
    "evictions",
    "Evictions that ended, by incident kind and outcome: left (the quorum), gone (its processes "
    "too), failed.",
    ("kind", "outcome"), series="at most 9 x 3", absent="none ended since this monitor started",
)  # fmt: skip
HOLDS = counter(
    "holds", "Evictions held back, by guard; a guard that keeps holding counts once.",
    ("guard",), series=f"at most {len(Guard)}", absent="none was since this monitor started",
)  # fmt: skip
HOLDING = gauge(
    "holding", "Firing incidents whose eviction is held back now, by guard.", ("guard",),
    series=f"{len(Guard)}", absent=ALONE,
)  # fmt: skip
COST = gauge(
    "eviction_cost_seconds", "Fleet seconds that an eviction costs, measured on this job's.",
    absent="no eviction of this job was measured yet",
)  # fmt: skip
PAUSED = gauge("paused", "1 while a person has paused evictions.", absent=ALONE)
OBSERVE = gauge(
    "observe_mode", "1 while the monitor evicts nobody and says whom it would (observe mode).",
    absent=ALONE,
)  # fmt: skip
POLICY_LOADED = gauge(
    "policy_loaded_timestamp_seconds",
    "Unix time at which the policy was loaded; 0: none was, the defaults hold.", absent=ALONE,
)  # fmt: skip
MAINTENANCE = gauge(
    "maintenance", "1 within a maintenance window of the policy.", absent=ALONE,
)  # fmt: skip
QUARANTINED_HOSTS = gauge("quarantined_hosts", "Hosts in quarantine.")
QUARANTINED_GROUPS = gauge("quarantined_groups", "Replica groups in quarantine.")
LEMONS = gauge("lemon_hosts", "Hosts that failed so often that they are lemons.")
OFFENCES = gauge(
    "host_offences", "What happened on a host within the window (28 days), of the 100 worst.",
    ("host", "signal"), series="at most 400", absent="hosts on which nothing happened",
)  # fmt: skip
SCHEDULER_REQUESTS = counter(
    "scheduler_requests",
    "Requests by which a scheduler follows the quarantine list, by action and outcome.",
    ("scheduler", "action", "outcome"), series="at most 8 a scheduler",
    absent="none was sent since this monitor started",
)  # fmt: skip
SCHEDULER_HOSTS = gauge(
    "scheduler_hosts",
    "Quarantined hosts by who keeps them out: ours, foreign (somebody else), failing.",
    ("scheduler", "state"), series="3 a scheduler", absent="no scheduler is configured",
)  # fmt: skip


def _policy(view: View) -> Iterator[Metric]:
    """What people set to hold evictions back, and what was learned for them."""
    if view.alone:
        return
    now_s, learned = view.snapshot.now_s, view.result.learned
    holding = Tally(_guards(view))
    yield HOLDING.each((guard, holding[guard]) for guard in Guard)
    yield PAUSED.value(view.snapshot.pause is not None)
    yield OBSERVE.value(view.observe)
    if learned.eviction_cost_s is not None:
        yield COST.value(learned.eviction_cost_s)
    if view.rules is not None:
        yield POLICY_LOADED.value(view.rules.loaded_s)
        yield MAINTENANCE.value(view.rules.policy.window(now_s) is not None)


def _guards(view: View) -> Iterator[str]:
    """The guard of each firing incident whose latest decision was to hold."""
    for incident in view.incidents:
        rows = rulings(view.decisions.get(incident.id, ()))
        last = max(rows, key=lambda row: row.at_s, default=None)
        if incident.state is State.FIRING and last is not None and last.guard is not None:
            yield last.guard


def _quarantine(view: View) -> Iterator[Metric]:
    """Hosts in quarantine, and the worst hosts with a record, bounded."""
    yield QUARANTINED_HOSTS.value(len(view.quarantine))
    yield QUARANTINED_GROUPS.value(len(view.quarantine_groups))
    yield LEMONS.value(sum(record.lemon is not None for record in view.hosts.values()))
    records = [record for record in view.hosts.values() if not record.clean]
    records.sort(
        key=lambda record: (record.lemon is None, -sum(record.incidents.values()), record.host)
    )
    yield OFFENCES.rows(
        [
            ((str(record.host), signal), float(count))
            for record in records[:_HOSTS_TOLD]
            for signal, count in (
                ("incidents", sum(record.incidents.values())),
                ("evictions", record.evictions),
                ("quarantines", record.quarantines),
                ("failed_readmissions", record.failed_readmissions),
            )
            if count or not (view.alone and signal == "evictions")
        ]
    )


# -- Goodput: rank-seconds that trained, those that did not by cause -----------------------------

EFFECTIVE = counter(
    "effective_rank_seconds",
    "Rank-seconds that went into committed steps at the job's usual pace, since this monitor "
    "looks.",
)
INEFFECTIVE = counter(
    "ineffective_rank_seconds",
    "Rank-seconds that did not, by cause: the kind of the incident that stood, recovering, "
    "starting, checkpoint, evaluation, compile, failed_commit, unexplained.",
    ("cause",), series=f"at most {len(FAULTS) + 7}",
    absent="causes that cost nothing since this monitor looks",
)  # fmt: skip


# -- all of this file -----------------------------------------------------------------------------


def export(scene: ScrapeView) -> Iterator[Metric]:
    """Metrics read from the view; counters count as it happens."""
    view = scene.view
    yield from _incidents(scene)
    yield from _policy(view)
    yield from _quarantine(view)
    yield EFFECTIVE.value(view.spent.effective_s)
    yield INEFFECTIVE.each(sorted(view.spent.ineffective_s.items()))
