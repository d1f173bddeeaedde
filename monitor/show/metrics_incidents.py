"""Incidents, their evictions, and what both cost in goodput. Counters count as it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from lightkeeper.monitor.decide.view import View
from lightkeeper.monitor.metric import ALONE, EVICTIONS, GOODPUT, INCIDENTS, RANK, Metrics, Values
from lightkeeper.monitor.model.eviction import Guard, rulings
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.names import Host, RankName, split_rank_name
from lightkeeper.monitor.model.verdict import FAULTS
from lightkeeper.monitor.show.exposition import ScrapeView

SUSPECTS_TOLD: Final = 100
INCIDENTS_TOLD: Final = 50
_RECENT_S: Final = 3600.0
_HOSTS_TOLD: Final = 100
"""Most hosts with a record that have a series each: host names come and go."""


def _open(scene: ScrapeView) -> Values:
    every = (incident for incident in scene.view.incidents if incident.open)
    tally = Counter((incident.kind, incident.state, incident.severity) for incident in every)
    return dict(sorted(tally.items()))


def _first_seen(scene: ScrapeView) -> Values:
    since_s = scene.view.snapshot.now_s - _RECENT_S
    recent = [
        incident
        for incident in scene.view.incidents
        if incident.open or incident.milestones.first_seen_s >= since_s
    ]
    recent.sort(
        key=lambda incident: (not incident.open, -incident.milestones.first_seen_s, incident.id)
    )
    return {
        (i.id, i.kind, i.severity, i.state, i.groups[0] if len(i.groups) == 1 else ""):
        i.milestones.first_seen_s
        for i in recent[:INCIDENTS_TOLD]
    }  # fmt: skip


def _suspects(scene: ScrapeView) -> Values:
    hosts: dict[tuple[RankName, str, str], Host] = {}
    for incident in scene.view.incidents:
        role = "culprit" if incident.culprits else "candidate"
        for rank in incident.suspects if incident.open else ():
            host = incident.hosts[0] if len(incident.hosts) == 1 else Host("")
            hosts[rank, incident.kind, role] = host
    suspects: dict[tuple[object, ...], float] = {}
    for (rank, kind, role), host in sorted(hosts.items())[:SUSPECTS_TOLD]:
        seen = scene.view.by_rank.get(rank)
        at = host if seen is None else seen.identity.host
        suspects[*split_rank_name(rank), at, kind, role] = 1
    return suspects


# What people set to hold evictions back, and what was learned for them; the quarantine.


def _policy(of: Callable[[View], float | None]) -> Callable[[ScrapeView], Values]:
    return lambda scene: None if scene.view.alone else of(scene.view)


def _holding(scene: ScrapeView) -> Values:
    holding = Counter(_guards(scene.view))
    return None if scene.view.alone else {guard: holding[guard] for guard in Guard}


def _guards(view: View) -> Iterator[str]:
    """The guard of each firing incident whose latest decision was to hold."""
    for incident in view.incidents:
        rows = rulings(view.decisions.get(incident.id, ()))
        last = max(rows, key=lambda row: row.at_s, default=None)
        if incident.state is State.FIRING and last is not None and last.guard is not None:
            yield last.guard


def _offences(scene: ScrapeView) -> Values:
    """Of the worst hosts with a record."""
    view = scene.view
    records = [record for record in view.hosts.values() if not record.clean]
    records.sort(
        key=lambda record: (record.lemon is None, -sum(record.incidents.values()), record.host)
    )
    return {
        (record.host, signal): count
        for record in records[:_HOSTS_TOLD]
        for signal, count in (
            ("incidents", sum(record.incidents.values())),
            ("evictions", record.evictions),
            ("quarantines", record.quarantines),
            ("failed_readmissions", record.failed_readmissions),
        )
        if count or not (view.alone and signal == "evictions")
    }


METRICS: Final[Metrics] = (
    INCIDENTS.gauge("incidents",
        "Open incidents, by kind, state and severity (info, warning, critical).",
        ("kind", "state", "severity"), _open, series=f"at most {len(FAULTS)} x 3 x 3",
        absent="none is open"),
    INCIDENTS.gauge("incident_first_seen_timestamp_seconds",
        "Unix time at which an incident was first seen: open ones and those of the last hour, the "
        "50 newest. The group is that of its culprits or candidates, if they are of one.",
        ("incident", "kind", "severity", "state", "replica_group"), _first_seen,
        series="at most 50", absent="none is open or of the last hour"),
    INCIDENTS.gauge("rank_suspect", "1 for each culprit of an open incident, and for each "
        "candidate of one that is unsure, 100 at most. The role is culprit or candidate.",
        (*RANK, "host", "kind", "role"), _suspects, series="at most 100",
        absent="nobody is suspected"),
    EVICTIONS.gauge("holding", "Firing incidents whose eviction is held back now, by guard.",
        ("guard",), _holding, series=f"{len(Guard)}", absent=ALONE),
    EVICTIONS.gauge("eviction_cost_seconds",
        "Fleet seconds that an eviction costs, measured on this job's.", (),
        _policy(lambda view: view.result.learned.eviction_cost_s),
        absent="no eviction of this job was measured yet"),
    EVICTIONS.gauge("paused", "1 while a person has paused evictions.", (),
        _policy(lambda view: view.snapshot.pause is not None), absent=ALONE),
    EVICTIONS.gauge("observe_mode",
        "1 while the monitor evicts nobody and says whom it would (observe mode).", (),
        _policy(lambda view: view.observe), absent=ALONE),
    EVICTIONS.gauge("policy_loaded_timestamp_seconds",
        "Unix time at which the policy was loaded; 0: none was, the defaults hold.", (),
        _policy(lambda view: None if view.rules is None else view.rules.loaded_s), absent=ALONE),
    EVICTIONS.gauge("quarantined_hosts", "Hosts in quarantine.", (),
        lambda scene: len(scene.view.quarantine)),
    EVICTIONS.gauge("quarantined_groups", "Replica groups in quarantine.", (),
        lambda scene: len(scene.view.quarantine_groups)),
    EVICTIONS.gauge("lemon_hosts", "Hosts that failed so often that they are lemons.", (),
        lambda scene: sum(record.lemon is not None for record in scene.view.hosts.values())),
    EVICTIONS.gauge("host_offences",
        "What happened on a host within the window (28 days), of the 100 worst.",
        ("host", "signal"), _offences, series="at most 400",
        absent="hosts on which nothing happened"),
    GOODPUT.counter("effective_rank_seconds", "Rank-seconds that went into committed steps at the "
        "job's usual pace, since this monitor looks.", (),
        lambda scene: scene.view.spent.effective_s),
    GOODPUT.counter("ineffective_rank_seconds", "Rank-seconds that did not, by cause: the kind of "
        "the incident that stood, recovering, starting, checkpoint, evaluation, compile, "
        "failed_commit, unexplained.", ("cause",),
        lambda scene: dict(sorted(scene.view.spent.ineffective_s.items())),
        series=f"at most {len(FAULTS) + 7}",
        absent="causes that cost nothing since this monitor looks"),
)  # fmt: skip
