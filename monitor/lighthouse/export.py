"""What the Lighthouse shows, as JSON: the body of `GET /v1/lighthouse`. Pure."""

from __future__ import annotations

from typing import Any, Final

from monitor.lighthouse_log import LighthouseRecord
from monitor.names import group_of_replica
from monitor.snapshot import LighthouseView

STRANGERS_SHOWN: Final = 1000
"""Heartbeats of ids that are no members, the youngest: the Lighthouse itself never forgets one."""


def lighthouse_json(record: LighthouseRecord, now_s: float) -> dict[str, Any]:
    """Its last view, however old, and whether it answers now."""
    view = record.view
    body: dict[str, Any] = {
        "up": record.away is None and view is not None,
        "reason": None if record.away is None else record.away.reason,
        "away_for_s": _age(record.away_since_s, now_s),
        "view_age_s": _age(record.view_s, now_s),
        "restarts": record.restarts,
        "last_restart_age_s": _age(record.restarted_s, now_s),
        "quorum_changes": record.quorum_changes,
    }
    return body if view is None else {**body, **_view_json(view)}


def _view_json(view: LighthouseView) -> dict[str, Any]:
    ages_s = view.heartbeat_ages_s
    members = [
        {
            "replica_id": member.replica_id,
            "group": group_of_replica(member.replica_id),
            "step": member.step,
            "recovering": member.recovering,
            "address": member.address,
            "store_address": member.store_address,
            "world_size": member.world_size,
            "heartbeat_age_s": _rounded(ages_s.get(member.replica_id)),
        }
        for member in view.members
    ]
    strangers = sorted((age_s, name) for name, age_s in ages_s.items() if name not in view.ids)
    return {
        "quorum_id": view.quorum_id,
        "status": view.status,
        "members": members,
        "others": [
            {
                "replica_id": name,
                "group": group_of_replica(name),
                "heartbeat_age_s": _rounded(age_s),
            }
            for age_s, name in strangers[:STRANGERS_SHOWN]
        ],
        "others_left_out": max(0, len(strangers) - STRANGERS_SHOWN),
    }


def _age(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else _rounded(max(0.0, now_s - at_s))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
