"""What the account of every incident is made from, at one moment. Frozen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from monitor.audit.aftermath import Aftermath, aftermath_from_json
from monitor.audit.case import Case, sound_evictions, sound_rows
from monitor.audit.facts import FleetFacts, facts_from_json
from monitor.config import KeeperConfig
from monitor.incident import Incident
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow, Remembered

FACTS: Final = "facts"
AFTERMATH: Final = "aftermath"
"""Parts of an incident's books in the store."""


@dataclass(frozen=True, slots=True)
class Books:
    """By incident."""

    facts: Mapping[IncidentId, FleetFacts] = field(default_factory=dict)
    aftermaths: Mapping[IncidentId, Aftermath] = field(default_factory=dict)
    """Of evictions by hand."""
    evictions: Mapping[IncidentId, Sequence[EvictionProgress]] = field(default_factory=dict)
    """All, where the view has the latest of each incident."""
    config: KeeperConfig = field(default_factory=KeeperConfig)

    def case(self, incident: Incident, decisions: Sequence[DecisionRow], now_s: float) -> Case:
        """Everything that belongs to one incident."""
        return Case(
            incident=incident,
            now_s=now_s,
            decisions=sound_rows(decisions),
            evictions=sound_evictions(self.evictions.get(incident.id, ())),
            facts=self.facts.get(incident.id),
            config=self.config,
        )


def books_of(remembered: Remembered, config: KeeperConfig) -> Books:
    """What the store holds of them; a part that cannot be read is left out."""
    facts: dict[IncidentId, FleetFacts] = {}
    aftermaths: dict[IncidentId, Aftermath] = {}
    for incident_id, part, body in remembered.audit:
        if part == FACTS and (noted := facts_from_json(body)) is not None:
            facts[incident_id] = noted
        elif part == AFTERMATH and (after := aftermath_from_json(body)) is not None:
            aftermaths[incident_id] = after
    return Books(facts, aftermaths, by_incident(remembered.evictions), config)


def by_incident(
    evictions: Iterable[EvictionProgress],
) -> dict[IncidentId, tuple[EvictionProgress, ...]]:
    """Every eviction of each incident, in their order."""
    found: dict[IncidentId, list[EvictionProgress]] = {}
    for one in evictions:
        found.setdefault(one.incident_id, []).append(one)
    return {incident_id: tuple(some) for incident_id, some in found.items()}
