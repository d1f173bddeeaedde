"""The Lighthouse over time: how old its last view is, its restarts, its quorums. Pure.

Theory of operation. A Lighthouse that starts anew counts its quorums from 0 and has heard nobody;
one that runs never forgets a heartbeat. So an id that goes back, or a heartbeat that is missing,
is another process. Counters start with the monitor: Prometheus expects that of counters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from monitor.model.names import group_of_replica
from monitor.model.observation import LighthouseAway, LighthouseView


@dataclass(frozen=True, slots=True)
class LighthouseRecord:
    """What is known of a Lighthouse beyond its present page."""

    view: LighthouseView | None = None
    """The last one, however old."""
    view_s: float | None = None
    """Unix time of that view."""
    away: LighthouseAway | None = None
    """Why it does not answer now; None while it does."""
    away_since_s: float | None = None
    restarts: int = 0
    """Seen by this monitor."""
    restarted_s: float | None = None
    """Unix time at which the last of them was seen."""
    quorum_changes: int = 0
    """Quorums formed since this monitor looks, those of an absence that can be counted too."""
    formed_s: float | None = None
    """Unix time at which the last quorum was first seen; None before there was one."""

    def after(self, seen: LighthouseView | LighthouseAway, now_s: float) -> LighthouseRecord:
        """The record with one more look in it."""
        if isinstance(seen, LighthouseAway):
            since_s = now_s if self.away is None else self.away_since_s
            return replace(self, away=seen, away_since_s=since_s)
        restarts, changes, restarted_s = self.restarts, self.quorum_changes, self.restarted_s
        if self.view is not None:
            anew = seen.anew(self.view)
            changes += seen.quorum_id - (0 if anew else self.view.quorum_id)
            if anew:
                restarts, restarted_s = restarts + 1, now_s
        formed_s = self.formed_s
        other = self.view is None or seen.quorum_id != self.view.quorum_id
        if other or formed_s is None or restarts > self.restarts:
            formed_s = now_s
        return LighthouseRecord(
            view=seen,
            view_s=now_s,
            restarts=restarts,
            restarted_s=restarted_s,
            quorum_changes=max(changes, self.quorum_changes),
            formed_s=formed_s if seen.members else None,
        )


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
