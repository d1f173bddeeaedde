"""What the monitor ever said: every incident, and everybody it accused while it was open."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from lightkeeper.trainer.demo import MonitorAwayError, MonitorClient, unhealthy


@dataclass
class Seen:
    """One incident over its life."""

    latest: dict[str, Any]
    accused: dict[str, str] = field(default_factory=dict)
    """Rank -> the furthest state in which it stood accused: pending or firing."""
    unsure: set[str] = field(default_factory=set)
    """Ranks that were named only as candidates."""

    def look(self, incident: dict[str, Any]) -> None:
        """Take in what it says now."""
        self.latest = incident
        fired = incident["milestones"].get("firing_s") is not None
        for rank in (*incident["culprits"], *incident["candidates"]):
            if incident["state"] == "pending" and self.accused.get(rank) != "firing":
                self.accused[rank] = "pending"
            elif fired:
                self.accused[rank] = "firing"
            if incident["confidence"] == "unsure":
                self.unsure.add(rank)
            else:
                self.unsure.discard(rank)


class Watch:
    """Looks at the monitor; keeps what it saw."""

    def __init__(self, client: MonitorClient, groups: int, ranks_per_group: int) -> None:
        self.client = client
        self.groups = groups
        self.ranks_per_group = ranks_per_group
        self.seen: dict[str, Seen] = {}
        self.snapshot: dict[str, Any] | None = None
        self.lateness_s = 0.0
        self._fresh_from = 0.0

    def look(self) -> dict[str, Any] | None:
        """One look; None while the monitor is away."""
        try:
            self.snapshot = self.client.snapshot()
            incidents = self.client.incidents()
        except MonitorAwayError:
            self.snapshot = None
            return None
        self.lateness_s = max(self.lateness_s, float(self.snapshot.get("lateness_s") or 0.0))
        for incident in incidents:
            if incident["id"] in self._old:
                continue
            self.seen.setdefault(incident["id"], Seen(incident)).look(incident)
        return self.snapshot

    _old: frozenset[str] = frozenset()

    def forget(self) -> None:
        """A new run: what was seen so far belongs to others."""
        self._old = self._old | frozenset(self.seen)
        self.seen = {}
        self.lateness_s = 0.0

    def not_whole(self) -> str | None:
        """Why the fleet is not committing, all of it, with no incident open; None when it is."""
        if self.snapshot is None:
            return "the monitor does not answer"
        why = unhealthy(self.snapshot, self.groups, self.ranks_per_group)
        pending = [item["kind"] for item in self.snapshot["incidents"]]
        return why or (f"{pending[0]} is open" if pending else None)

    def step(self) -> int:
        """The furthest step of any rank."""
        ranks = self.snapshot["ranks"] if self.snapshot else []
        return max((rank.get("step") or 0 for rank in ranks), default=0)

    def processes(self, group: str) -> frozenset[tuple[str, int]]:
        """Host and pid of each of a group's ranks now."""
        ranks = self.snapshot["ranks"] if self.snapshot else []
        return frozenset((rank["host"], rank["pid"]) for rank in ranks if rank["group"] == group)


def pause(seconds: float) -> None:
    """Between two looks."""
    time.sleep(seconds)
