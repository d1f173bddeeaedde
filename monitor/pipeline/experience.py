"""What a pipeline has learned for its decisions: of past evictions, and of the Lighthouse. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from monitor.config import KeeperConfig
from monitor.incident import Incident
from monitor.names import GroupName, IncidentId
from monitor.policy import Lesson, PastEviction
from monitor.policy.lessons import COSTS_KEPT, lesson_of, min_replicas_told
from monitor.snapshot import LighthouseAway, LighthouseView

_HOUR_S: Final = 3600.0
_FOLLOW_S: Final = 1.0
"""Beyond `follow_s`, within which milestones of an eviction still come in."""


@dataclass(slots=True)
class Experience:
    """Kept from tick to tick, and read back from the store's incidents."""

    min_replicas: int | None = None
    """The Lighthouse's own flag, as its page told it last."""
    would: list[PastEviction] = field(default_factory=list)
    """Evictions that observe mode held back: for the budget's hour, and while they are open."""
    _lessons: dict[IncidentId, Lesson] = field(default_factory=dict)

    def all(self) -> tuple[Lesson, ...]:
        """Every lesson, oldest first."""
        return tuple(sorted(self._lessons.values(), key=lambda one: (one.ended_s, one.incident_id)))

    def see(self, lighthouse: LighthouseView | LighthouseAway) -> None:
        """A Lighthouse's page; one that does not name its flag leaves what is known."""
        if isinstance(lighthouse, LighthouseView):
            told = min_replicas_told(lighthouse.status)
            self.min_replicas = self.min_replicas if told is None else told

    def take(self, incidents: Iterable[Incident], now_s: float, config: KeeperConfig) -> None:
        """Incidents as they are now; what is too old to matter goes."""
        open_ids: set[IncidentId] = set()
        observed = {one.incident_id for one in self.would}
        for incident in incidents:
            if incident.open:
                open_ids.add(incident.id)
            elif (one := lesson_of(incident, observed=incident.id in observed)) is not None:
                self._lessons[incident.id] = one
        self.would = [
            one
            for one in self.would
            if now_s - one.asked_s < _HOUR_S or one.incident_id in open_ids
        ]
        self._forget(now_s, config)

    def hold_back(self, incident_id: IncidentId, group: GroupName, now_s: float) -> None:
        """An eviction that only observe mode held back."""
        if not any(one.incident_id == incident_id and one.group == group for one in self.would):
            self.would.append(PastEviction(incident_id, group, now_s))

    def _forget(self, now_s: float, config: KeeperConfig) -> None:
        """All but those young enough for a crash loop, and the latest that tell a cost."""
        told = [one for one in self.all() if one.stall_s is not None and one.away_s is not None]
        kept = {one.incident_id for one in told[-COSTS_KEPT:]}
        memory_s = max(config.crash_loop_memory_s, config.follow_s + _FOLLOW_S)
        self._lessons = {
            key: one
            for key, one in self._lessons.items()
            if key in kept or now_s - one.ended_s <= memory_s
        }
