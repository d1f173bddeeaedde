"""Evictions, what held others back, and the quarantine that follows them."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.decide.view import View
from monitor.metrics.definition import GROUP, counter, gauge
from monitor.metrics.scene import Scene
from monitor.model.eviction import Guard
from monitor.model.incident import State

_HOSTS_TOLD: Final = 100
"""Hosts with a record that are told by name: a series each, and names of hosts come and go."""

EVICTIONS = counter(
    "evictions",
    "Evictions that ended, by incident kind and outcome: left (the quorum), gone (its processes "
    "too), failed.",
    ("kind", "outcome"), series="at most 9 x 3", absent="none ended since this monitor started",
)  # fmt: skip
HOLDS = counter(
    "holds", "Evictions held back, by guard; a guard that goes on holding counts once.",
    ("guard",), series="at most 17", absent="none was since this monitor started",
)  # fmt: skip
HOLDING = gauge(
    "holding", "Firing incidents whose eviction is held back now, by guard.", ("guard",),
    series="17",
)  # fmt: skip
LAST_HOUR = gauge(
    "evictions_last_hour", "Evictions of the last hour, by group: what the budgets count.", GROUP,
    series="groups evicted within the hour", absent="no eviction within the hour",
)  # fmt: skip
COST = gauge(
    "eviction_cost_seconds", "Fleet seconds that an eviction costs, measured on this job's.",
    absent="no eviction of this job was measured yet",
)  # fmt: skip
PAUSED = gauge("paused", "1 while a person has paused evictions.")
OBSERVE = gauge(
    "observe_mode", "1 while the monitor evicts nobody and says whom it would (observe mode)."
)
POLICY_LOADED = gauge(
    "policy_loaded_timestamp_seconds",
    "Unix time at which the policy was loaded; 0: none was, the defaults hold.",
)
MAINTENANCE = gauge("maintenance", "1 within a maintenance window of the policy.")
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
    ("scheduler", "state"), series="3 a scheduler", absent="no scheduler is told",
)  # fmt: skip

DEFINITIONS: Final = (
    EVICTIONS, HOLDS, HOLDING, LAST_HOUR, COST, PAUSED, OBSERVE, POLICY_LOADED, MAINTENANCE,
    QUARANTINED_HOSTS, QUARANTINED_GROUPS, LEMONS, OFFENCES, SCHEDULER_REQUESTS, SCHEDULER_HOSTS,
)  # fmt: skip


def export(scene: Scene) -> Iterator[Metric]:
    """What is read from the view; the counters count while it happens."""
    yield from _policy(scene.view)
    yield from _quarantine(scene.view)


def _policy(view: View) -> Iterator[Metric]:
    """What holds evictions back on a person's word, and what was learned for them."""
    now_s, learned = view.snapshot.now_s, view.result.learned
    held = Tally(_guards(view))
    yield HOLDING.each((guard, held[guard]) for guard in Guard)
    yield PAUSED.value(view.snapshot.pause is not None)
    yield OBSERVE.value(view.observe)
    yield LAST_HOUR.each(sorted(learned.evictions.items()))
    if learned.eviction_cost_s is not None:
        yield COST.value(learned.eviction_cost_s)
    if view.rules is not None:
        yield POLICY_LOADED.value(view.rules.loaded_s)
        yield MAINTENANCE.value(view.rules.policy.window(now_s) is not None)


def _guards(view: View) -> Iterator[str]:
    """The guard of the latest decision about each firing incident, where that was to hold."""
    for one in view.incidents:
        rows = view.decisions.get(one.id) if one.state is State.FIRING else None
        if rows and (guard := max(rows, key=lambda row: row.at_s).guard) is not None:
            yield guard


def _quarantine(view: View) -> Iterator[Metric]:
    """Hosts in quarantine, and those with a record: bounded, worst first."""
    yield QUARANTINED_HOSTS.value(len(view.quarantine))
    yield QUARANTINED_GROUPS.value(len(view.quarantine_groups))
    yield LEMONS.value(sum(record.lemon is not None for record in view.hosts.values()))
    told = [record for record in view.hosts.values() if not record.clean]
    told.sort(key=lambda one: (one.lemon is None, -sum(one.incidents.values()), one.host))
    yield OFFENCES.rows(
        [
            ((str(one.host), signal), float(count))
            for one in told[:_HOSTS_TOLD]
            for signal, count in (
                ("incidents", sum(one.incidents.values())),
                ("evictions", one.evictions),
                ("quarantines", one.quarantines),
                ("failed_readmissions", one.failed_readmissions),
            )
        ]
    )
