"""A view as JSON, for the API, the page and the command line: the policy, hosts, incidents, and
the fleet of one tick. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs, to_builtins

from lightkeeper.monitor.decide.headline import headline_of
from lightkeeper.monitor.decide.rules import (
    GUARDS,
    THRESHOLDS,
    Effective,
    needs_restart,
    policy_to_json,
)
from lightkeeper.monitor.decide.view import (
    SCHEMA,
    IncidentReport,
    View,
    bundle_url,
    finite,
    trouble_of,
)
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import (
    Decision,
    Hold,
    QuarantineEntry,
    QuarantineEvent,
    Scope,
    eviction_to_json,
)
from lightkeeper.monitor.model.incident import incident_to_json
from lightkeeper.monitor.model.names import Host, RankName, split_rank_name
from lightkeeper.monitor.model.observation import Observation, Unreachable, lighthouse_to_json
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.quarantine import HostRecord
from lightkeeper.monitor.model.wording import who
from lightkeeper.worker_server.wire import Testimony

if TYPE_CHECKING:
    from lightkeeper.monitor.decide.pipeline import Learned


def effective_to_json(effective: Effective) -> dict[str, Any]:
    """Rules, options with their sources, and what waits for a restart."""
    rules = policy_to_json(effective.policy)
    return {
        "source": None if effective.path is None else str(effective.path),
        "loaded_s": effective.loaded_s or None,
        "loads": effective.number,
        "mode": "observe" if effective.config.observe else "act",
        "actions": rules["actions"],
        "guards": {name: _option(effective, name) for name in GUARDS},
        "thresholds": {name: _option(effective, name) for name in THRESHOLDS},
        "prometheus": rules["prometheus"],
        "links": rules["links"],
        "after_restart": dict(effective.waiting),
    }


def learned_to_json(config: KeeperConfig, learned: Learned) -> dict[str, Any]:
    """What decisions are based on beyond the file."""
    flag = learned.min_replicas
    measured_s = learned.eviction_cost_s
    return {
        "min_replicas": {
            "configured": config.min_replicas,
            "lighthouse": flag,
            "in_force": max(config.min_replicas, flag or 0),
        },
        "eviction_cost_s": {
            "configured": config.eviction_cost_s,
            "measured": None if measured_s is None else round(measured_s, 3),
            "evictions": learned.cost_evictions,
            "in_force": config.eviction_cost_s if measured_s is None else round(measured_s, 3),
        },
        "evictions_last_hour": {str(group): n for group, n in sorted(learned.evictions.items())},
    }


def _option(effective: Effective, name: str) -> dict[str, Any]:
    return {
        "value": getattr(effective.config, name),
        "from": effective.said.get(name, "default"),
        "change": "restart" if needs_restart(name) else "reload",
    }


# Hosts: their quarantine, its history, their record.


def entry_to_json(
    entry: QuarantineEntry, hosts: Mapping[Host, HostRecord], bundle: bool
) -> dict[str, Any]:
    """One quarantined host or group; `bundle`: whether its incident has one."""
    url = bundle_url(entry.incident_id) if bundle and entry.incident_id is not None else None
    body = {**scoped_to_json(entry), "bundle": url}
    if entry.scope is Scope.HOST:
        record = hosts.get(entry.host, HostRecord(entry.host))
        body |= {"offences": sum(record.incidents.values()), "lemon": record.lemon}
    return body


def scoped_to_json(record: QuarantineEntry | QuarantineEvent) -> dict[str, Any]:
    """One quarantined host or group, or a line of its history, with its name under its scope."""
    body = to_plain(record)
    name, scope = body.pop("name"), body.pop("scope")
    return {"scope": scope, scope: name, **body}


def host_to_json(
    record: HostRecord,
    entry: QuarantineEntry | None,
    ranks: Sequence[RankName],
    machine: Sequence[Testimony] = (),
) -> dict[str, Any]:
    """One host: its ranks, its history, and what is said of its machine now."""
    body = asdict(record)
    return {
        "host": body.pop("host"),
        "ranks": list(ranks),
        "groups": sorted({split_rank_name(rank)[0] for rank in ranks}),
        "quarantined": entry is not None,
        "until_s": None if entry is None else entry.until_s,
        "machine": [to_builtins(structs.asdict(row)) for row in machine],
        **body,
        "incidents": dict(record.incidents),
    }


# One incident: its story, decisions, evictions, account and evidence.


_WHO: Final = 12
"""Most suspects named in a row."""


def report_to_json(report: IncidentReport) -> dict[str, Any]:
    """One incident for programs: its story, the decisions, and the eviction."""
    incident, bundle = report.incident, report.bundle
    plain = incident_to_json(incident)
    del plain["incarnations"]  # who knows one could ask as that process
    return {
        **plain,
        "who": who(incident, _WHO),
        "says": report.face.says,
        "next": report.face.next,
        "for_s": report.for_s,
        "waiting": report.waiting,
        "seen": report.seen,
        "victims": report.victims,
        "victim_count": report.victim_count,
        "lost_s": finite(incident.verdict.lost_s),
        "decisions": [ruling_to_json(row) for row in report.decisions],
        "eviction": None if report.latest is None else eviction_to_json(report.latest),
        "evictions": [eviction_to_json(eviction) for eviction in report.evictions],
        "account": to_plain(report.account),
        "work": report.work.to_json(),
        "silence": None if report.silence is None else to_plain(report.silence),
        "links": report.links,
        "bundle": None if bundle is None else {
            "url": bundle_url(incident.id), "bytes": bundle.nbytes, "written_s": bundle.written_s,
        },
    }  # fmt: skip


_ROW: Final = (
    "at_s", "action", "guard", "reason", "state", "author", "epoch", "attempt", "ended_s",
    "outcome",
)  # fmt: skip


def ruling_to_json(row: Decision) -> dict[str, Any]:
    """One decision for a reader; `would` is the eviction that observe mode held back."""
    plain: dict[str, Any] = {name: getattr(row, name) for name in _ROW}
    if isinstance(row, Hold):
        plain["release"] = row.release
        if row.would is not None:
            group, hosts = row.would.group, list(row.would.quarantine)
            plain["would"] = {"group": group, "quarantine": hosts}
    return plain


# The fleet: groups, ranks, the Lighthouse, the monitor's own health.


def snapshot_to_json(view: View) -> dict[str, Any]:
    """The body of `GET /v1/snapshot`."""
    return {
        "schema": SCHEMA,
        "now_s": view.snapshot.now_s,
        "tick": view.snapshot.tick,
        "lateness_s": round(view.snapshot.lateness_s, 3),
        "observe": view.observe,
        "tokenless": view.tokenless,
        "monitor": None if view.standing is None else view.standing.to_json(),
        "pause": None if view.snapshot.pause is None else asdict(view.snapshot.pause),
        "headline": {**to_plain(headline := headline_of(view)), "text": str(headline)},
        "troubles": list(view.troubles),
        "warnings": list(view.warnings),
        "ended": view.ended,
        "usual_step_s": finite(view.spent.usual_s),
        "unknown": [
            {"kind": kind, "why": why} for kind, why in sorted(view.result.unknown.items())
        ],
        "self_health": self_health_to_json(view),
        "lighthouse": lighthouse_to_json(view.snapshot.lighthouse),
        "groups": view.groups,
        "ranks": ranks_to_json(view),
        "incidents": [
            report_to_json(view.report(incident)) for incident in view.incidents if incident.open
        ],
        "quarantine": _entries(view, view.quarantine),
        "quarantine_groups": _entries(view, view.quarantine_groups),
    }


def _entries(view: View, entries: Iterable[QuarantineEntry]) -> list[dict[str, Any]]:
    return [entry_to_json(each, view.hosts, each.incident_id in view.bundles) for each in entries]


def self_health_to_json(view: View) -> dict[str, Any]:
    """How much the monitor trusts itself."""
    health = view.result.health
    return {
        "state": str(health.state),
        "scale": health.scale,
        "hold": health.hold,
        "conditions": {str(condition): seen for condition, seen in health.conditions.items()},
    }


def degraded(view: View) -> tuple[str, ...]:
    """What does not work in this monitor, one line each; empty when it is well."""
    unknown = [f"unknown: {kind}: {why}" for kind, why in sorted(view.result.unknown.items())]
    return (*unknown, *view.troubles)


def ranks_to_json(view: View) -> list[dict[str, Any]]:
    """Every rank, sorted; None: not known."""
    return [_rank_to_json(view, seen) for seen in view.snapshot.observations]


_OF_STEP: Final = (
    "phase", "phase_age_s", "step", "commits", "last_commit_age_s", "quorum_id", "participants",
    "loss",
)  # fmt: skip


def _rank_to_json(view: View, seen: Observation) -> dict[str, Any]:
    identity, outcome, tempo = seen.identity, seen.outcome, view.tempos.get(seen.rank)
    paces = (None, None, None) if tempo is None else (tempo.step_s, tempo.busy_s, tempo.rest_s)
    step_s, busy_s, wait_s = (None if pace is None else round(pace, 4) for pace in paces)
    return {
        "rank": seen.rank,
        "group": identity.group,
        "host": identity.host,
        "pid": identity.pid,
        "place": identity.place,
        "url": seen.url,
        "health": str(view.result.rank_health.get(seen.rank, "unknown")),
        "process_state": None if seen.report is None else seen.report.process.state,
        **{name: _plain(getattr(seen.step, name, None)) for name in _OF_STEP},
        "step_s": step_s,
        "busy_s": busy_s,
        "wait_s": wait_s,  # seconds a step beyond its own work
        "trouble": trouble_of(seen),
        "unreachable": to_plain(outcome) if isinstance(outcome, Unreachable) else None,
    }


def runs_to_json(view: View) -> Iterator[dict[str, Any]]:
    """Newest first; the first is that of the ranks that are registered now."""
    fired = Counter(i.run for i in view.incidents if i.milestones.firing_s is not None)
    for run in view.runs:
        plain = to_plain(run)
        del plain["trend"], plain["bringer"], plain["lost"]
        yield {**plain, "lasted_s": max(0.0, run.seen_s - run.began_s), "incidents": fired[run.id]}


def _plain(value: Any) -> Any:
    return finite(value) if isinstance(value, float) else value
