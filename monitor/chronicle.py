"""Incidents, decisions and evictions as the view shows them: in memory, newest first.

The store keeps the same on disk; this is what a scrape or a page reads without touching it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from monitor.incident import Incident
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow, Remembered

INCIDENTS_KEPT: Final = 500
DECISIONS_KEPT: Final = 50
"""For each incident."""


class Chronicle:
    """What happened, as far back as is shown. One thread writes; what it hands out is frozen."""

    def __init__(self, remembered: Remembered) -> None:
        self._incidents: dict[IncidentId, Incident] = {}
        self._decisions: dict[IncidentId, tuple[DecisionRow, ...]] = {}
        self._evictions: dict[IncidentId, EvictionProgress] = {}
        self.take_incidents(remembered.incidents[:INCIDENTS_KEPT])
        for row in remembered.decisions:
            self.take_decision(row)
        self.take_evictions(remembered.evictions)

    def take_incidents(self, incidents: Sequence[Incident]) -> None:
        """Incidents that are new or have changed."""
        for incident in incidents:
            self._incidents[incident.id] = incident
        excess = len(self._incidents) - INCIDENTS_KEPT
        if excess > 0:
            closed = [one for one in self.incidents()[::-1] if not one.open]
            for incident in closed[:excess]:
                self._incidents.pop(incident.id)
                self._decisions.pop(incident.id, None)
                self._evictions.pop(incident.id, None)

    def take_decision(self, row: DecisionRow) -> None:
        """One more decision, or how far one came."""
        rows = self._decisions.get(row.incident_id, ())
        for number, known in enumerate(rows):
            if (known.at_s, known.action) == (row.at_s, row.action):
                changed = (*rows[:number], row, *rows[number + 1 :])
                self._decisions[row.incident_id] = changed
                return
        self._decisions[row.incident_id] = (*rows, row)[-DECISIONS_KEPT:]

    def take_evictions(self, evictions: Sequence[EvictionProgress]) -> None:
        """How far evictions came, oldest first; the latest of each incident is kept."""
        for progress in evictions:
            self._evictions[progress.incident_id] = progress

    def incidents(self) -> tuple[Incident, ...]:
        """All, newest first."""
        found = self._incidents.values()
        return tuple(sorted(found, key=lambda one: (-one.milestones.first_seen_s, one.id)))

    def get(self, incident_id: IncidentId) -> Incident | None:
        """One incident."""
        return self._incidents.get(incident_id)

    def decisions(self) -> Mapping[IncidentId, Sequence[DecisionRow]]:
        """By incident, oldest first."""
        return dict(self._decisions)

    def evictions(self) -> Mapping[IncidentId, EvictionProgress]:
        """The latest of each incident."""
        return dict(self._evictions)
