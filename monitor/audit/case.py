"""All that is known of one incident, for its account. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from monitor.audit.facts import FleetFacts
from monitor.config import KeeperConfig
from monitor.incident import Incident, State
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow

_FAR_S: Final = 1e12
"""No moment lies so far from the epoch: 30,000 years."""


def is_time(value: object) -> TypeGuard[float]:
    """Whether this is a moment; a damaged store holds anything."""
    return isinstance(value, int | float) and abs(value) < _FAR_S


def sound_rows(rows: Iterable[DecisionRow]) -> tuple[DecisionRow, ...]:
    """Those with a time, oldest first."""
    found = [row for row in rows if is_time(row.at_s)]
    return tuple(sorted(found, key=lambda row: row.at_s))


def sound_evictions(evictions: Iterable[EvictionProgress]) -> tuple[EvictionProgress, ...]:
    """Those whose times are times, oldest first."""
    found = [one for one in evictions if all(is_time(at_s) for at_s in _times(one))]
    return tuple(sorted(found, key=lambda one: one.asked_s))


def _times(one: EvictionProgress) -> Iterator[object]:
    yield one.asked_s
    for rung in one.rungs:
        yield rung.started_s
        yield 0.0 if rung.finished_s is None else rung.finished_s
    yield from (at_s for at_s in (one.gone_s, one.left_quorum_s) if at_s is not None)


@dataclass(frozen=True, slots=True)
class Case:
    """One incident with everything that belongs to it."""

    incident: Incident
    now_s: float
    decisions: Sequence[DecisionRow] = ()
    """Oldest first (`sound_rows`)."""
    evictions: Sequence[EvictionProgress] = ()
    """Oldest first (`sound_evictions`)."""
    facts: FleetFacts | None = None
    config: KeeperConfig = field(default_factory=KeeperConfig)

    @property
    def began_s(self) -> float:
        """When the fault began, as nearly as it is known."""
        first_s, since_s = self.incident.milestones.first_seen_s, self.incident.verdict.since_s
        if is_time(since_s) and is_time(first_s) and 0 < since_s <= first_s:
            return since_s
        told = (first_s, self.incident.milestones.firing_s, self.incident.last_seen_s)
        return next((at_s for at_s in told if is_time(at_s)), 0.0)

    @property
    def ended_s(self) -> float | None:
        """When it was resolved; None while it is open."""
        if self.incident.open:
            return None
        ends = [line.at_s for line in self.incident.story if line.to == State.RESOLVED]
        return ends[-1] if ends else self.incident.last_seen_s

    @property
    def evicted(self) -> bool:
        """Whether anybody was told to go; what came of it is another matter."""
        return self.incident.milestones.evict_asked_s is not None or bool(self.evictions)

    @property
    def asked_s(self) -> float | None:
        """When the latest eviction was asked for."""
        asked_s = self.incident.milestones.evict_asked_s
        return self.evictions[-1].asked_s if asked_s is None and self.evictions else asked_s

    @property
    def followed(self) -> bool:
        """Whether what comes after it is still looked for."""
        since_s = self.asked_s or self.incident.milestones.firing_s
        if self.incident.open:
            return True
        return since_s is not None and self.now_s - since_s <= self.config.follow_s
