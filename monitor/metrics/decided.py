"""What the monitor makes of the fleet: of itself, incidents, policy and quarantine, as gauges."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from monitor.metrics.gauge import gauge
from monitor.self_health import Condition
from monitor.view import View

_HOSTS_TOLD: Final = 100
"""Hosts with a record that are told by name: a series each, and names of hosts come and go."""


def self_health(view: View) -> Iterator[Metric]:
    """What the monitor knows of itself."""
    result = view.result
    up = [((name,), float(works)) for name, works in sorted(result.detectors.items())]
    text = "1 while the detector works; 0: it crashed in the last tick, its fault is unknown."
    yield gauge("detector_up", text, ("detector",), up)
    states = [((str(one),), float(one is result.health.state)) for one in Condition]
    text = "1 for the state of the monitor's own health, 0 for the others."
    yield gauge("self_health", text, ("state",), states)
    text = "What thresholds are multiplied by because the monitor doubts itself; 1 when well."
    yield gauge("self_health_scale", text, (), [((), result.health.scale)])


def policy(view: View) -> Iterator[Metric]:
    """What holds evictions back on a person's word, and what was learned for them."""
    now_s, learned = view.snapshot.now_s, view.result.learned
    text = "1 while a person has paused evictions."
    yield gauge("paused", text, (), [((), float(view.snapshot.pause is not None))])
    text = "1 while the monitor evicts nobody and says whom it would (observe mode)."
    yield gauge("observe_mode", text, (), [((), float(view.observe))])
    text = "Evictions of the last hour, by group: what the budgets count."
    rows = [((str(group),), float(n)) for group, n in sorted(learned.evictions.items())]
    yield gauge("evictions_last_hour", text, ("replica_group",), rows)
    if learned.eviction_cost_s is not None:
        text = "Fleet seconds that an eviction costs, measured on this job's."
        yield gauge("eviction_cost_seconds", text, (), [((), learned.eviction_cost_s)])
    if view.rules is not None:
        text = "Unix time at which the policy was loaded; 0: none was, the defaults hold."
        yield gauge("policy_loaded_timestamp_seconds", text, (), [((), view.rules.loaded_s)])
        open_now = float(view.rules.policy.window(now_s) is not None)
        text = "1 within a maintenance window of the policy."
        yield gauge("maintenance", text, (), [((), open_now)])


def incidents(view: View) -> Iterator[Metric]:
    """How many are open."""
    tally = Tally(
        (str(one.kind), str(one.state), str(one.severity)) for one in view.incidents if one.open
    )
    rows = [(labels, float(count)) for labels, count in sorted(tally.items())]
    text = "Open incidents, by kind, state and severity (info, warning, critical)."
    yield gauge("incidents", text, ("kind", "state", "severity"), rows)


def quarantine(view: View) -> Iterator[Metric]:
    """Hosts in quarantine, and those with a record: bounded, worst first."""
    hosts, groups = float(len(view.quarantine)), float(len(view.quarantine_groups))
    yield gauge("quarantined_hosts", "Hosts in quarantine.", (), [((), hosts)])
    yield gauge("quarantined_groups", "Replica groups in quarantine.", (), [((), groups)])
    lemons = float(sum(record.lemon is not None for record in view.hosts.values()))
    yield gauge(
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
    yield gauge("host_offences", text, ("host", "signal"), rows)
