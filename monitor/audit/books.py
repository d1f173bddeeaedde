"""What the account of every incident is made from, at one moment. Frozen. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.audit.case import DEFAULTS, Case, Terms, sound_evictions, sound_rows
from monitor.audit.facts import FleetFacts
from monitor.audit.review import Review
from monitor.incident import Incident
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow


@dataclass(frozen=True, slots=True)
class Books:
    """By incident."""

    facts: Mapping[IncidentId, FleetFacts] = field(default_factory=dict)
    reviews: Mapping[IncidentId, Review] = field(default_factory=dict)
    evictions: Mapping[IncidentId, Sequence[EvictionProgress]] = field(default_factory=dict)
    """All, where the view has the latest of each incident."""
    terms: Terms = DEFAULTS

    def case(self, incident: Incident, decisions: Sequence[DecisionRow], now_s: float) -> Case:
        """Everything that belongs to one incident."""
        return Case(
            incident=incident,
            now_s=now_s,
            decisions=sound_rows(decisions),
            evictions=sound_evictions(self.evictions.get(incident.id, ())),
            facts=self.facts.get(incident.id),
            review=self.reviews.get(incident.id),
            terms=self.terms,
        )
