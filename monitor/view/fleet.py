"""The fleet of one tick as JSON: groups, ranks, the Lighthouse, the monitor's own health. Pure."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from monitor.names import group_of_replica
from monitor.snapshot import LighthouseAway, LighthouseView, Observation, Unreachable
from monitor.view.condition import ended_of, warnings_of
from monitor.view.hosts import entry_to_json
from monitor.view.incidents import incident_json
from monitor.view.ranks import trouble_of
from monitor.view.values import finite
from monitor.view.view import SCHEMA, View, groups_of


def snapshot_to_json(view: View) -> dict[str, Any]:
    """The body of `GET /v1/snapshot`."""
    return {
        "schema": SCHEMA,
        "now_s": view.snapshot.now_s,
        "tick": view.snapshot.tick,
        "lateness_s": round(view.snapshot.lateness_s, 3),
        "observe": view.observe,
        "monitor": None if view.standing is None else view.standing.to_json(),
        "pause": None if view.snapshot.pause is None else asdict(view.snapshot.pause),
        "maintenance": _maintenance(view),
        "troubles": list(view.troubles),
        "warnings": list(warnings_of(view)),
        "ended": None if (ended := ended_of(view)) is None else asdict(ended),
        "usual_step_s": finite(view.spent.usual_s),
        "unknown": [
            {"kind": kind, "why": why} for kind, why in sorted(view.result.unknown.items())
        ],
        "self_health": self_health_to_json(view),
        "lighthouse": lighthouse_to_json(view.snapshot.lighthouse),
        "groups": groups_to_json(view),
        "ranks": ranks_to_json(view),
        "incidents": [incident_json(view, one) for one in view.incidents if one.open],
        "quarantine": [
            entry_to_json(entry, view.hosts, entry.incident_id in view.bundles)
            for entry in view.quarantine
        ],
        "quarantine_groups": [
            entry_to_json(entry, {}, entry.incident_id in view.bundles)
            for entry in view.quarantine_groups
        ],
    }


def _maintenance(view: View) -> dict[str, Any] | None:
    """The maintenance window that is open, if one is."""
    found = None if view.rules is None else view.rules.policy.window(view.snapshot.now_s)
    return None if found is None else {"name": found[0].name, "until_s": found[1]}


def self_health_to_json(view: View) -> dict[str, Any]:
    """How far the monitor trusts itself."""
    health = view.result.health
    return {
        "state": str(health.state),
        "scale": health.scale,
        "hold": health.hold,
        "conditions": {str(one): seen for one, seen in health.conditions.items()},
    }


def degraded(view: View) -> tuple[str, ...]:
    """What this monitor cannot do as it should, one line each; empty when it is well."""
    unknown = [f"unknown: {kind}: {why}" for kind, why in sorted(view.result.unknown.items())]
    return (*unknown, *view.troubles)


def lighthouse_to_json(lighthouse: LighthouseView | LighthouseAway) -> dict[str, Any]:
    """The Lighthouse, up or not."""
    if isinstance(lighthouse, LighthouseAway):
        return {"up": False, "reason": lighthouse.reason}
    return {
        "up": True,
        "quorum_id": lighthouse.quorum_id,
        "status": lighthouse.status,
        "members": [
            {
                "replica_id": member.replica_id,
                "group": group_of_replica(member.replica_id),
                "step": member.step,
            }
            for member in lighthouse.members
        ],
        "heartbeat_ages_s": {
            replica_id: round(age_s, 3)
            for replica_id, age_s in sorted(lighthouse.heartbeat_ages_s.items())
        },
    }


def groups_to_json(view: View) -> list[dict[str, Any]]:
    """Every group, sorted."""
    return [
        {
            "group": one.group,
            "host": one.host,
            "replica_id": one.replica_id,
            "in_quorum": one.in_quorum,
            "launched_as": one.launched_as,
            "ranks": list(one.ranks),
            "health": one.health,
            "step": one.step,
            "commits": one.commits,
            "heartbeat_age_s": finite(one.heartbeat_age_s),
            "eviction": "evicting" if one.group in view.evicting else None,
        }
        for one in groups_of(view)
    ]


def ranks_to_json(view: View) -> list[dict[str, Any]]:
    """Every rank, sorted."""
    return [_rank_json(view, seen) for seen in view.snapshot.observations]


def _rank_json(view: View, seen: Observation) -> dict[str, Any]:
    identity, report = seen.identity, seen.report
    step = None if report is None else report.step
    tempo = view.tempos.get(seen.rank)
    away = seen.outcome if isinstance(seen.outcome, Unreachable) else None
    return {
        "rank": seen.rank,
        "group": identity.group,
        "host": identity.host,
        "pid": identity.pid,
        "incarnation": identity.incarnation,
        "place": dict(identity.place),
        "url": seen.url,
        "health": str(view.result.rank_health.get(seen.rank, "unknown")),
        "process_state": None if report is None else report.process.state,
        "phase": None if step is None else step.phase,
        "phase_age_s": None if step is None else finite(step.phase_age_s),
        "step": None if step is None else step.step,
        "commits": None if step is None else step.commits,
        "last_commit_age_s": None if step is None else finite(step.last_commit_age_s),
        "quorum_id": None if step is None else step.quorum_id,
        "participants": None if step is None else step.participants,
        "loss": None if step is None else finite(step.loss),
        "step_s": None if tempo is None else round(tempo.step_s, 4),
        "busy_s": None if tempo is None else round(tempo.busy_s, 4),
        "trouble": trouble_of(seen),
        "unreachable": None
        if away is None
        else {"reason": str(away.reason), "detail": away.detail},
    }
