"""One tick of deciding: history, detectors, inhibition, incidents, policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Verdict
from monitor.incident import Incident
from monitor.names import RankName
from monitor.policy import Decision
from monitor.snapshot import EvictionProgress, Observation, Snapshot, Unreachable


class RankHealth(StrEnum):
    """How a rank looks in one tick."""

    HEALTHY = "healthy"
    WAITING = "waiting"  # held up by others
    STALLED = "stalled"  # alone, and not progressing
    DEAD = "dead"
    UNREACHABLE = "unreachable"
    STARTING = "starting"  # attached, not through its first commits


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick found and decided."""

    now_s: float
    verdicts: tuple[Verdict, ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Open ones and those resolved within the last hour, newest first."""
    changed: tuple[Incident, ...] = ()
    """Incidents that changed in this tick: what the store writes."""
    decisions: tuple[Decision, ...] = ()
    """A Hold is here when its guard or reason changed, not every tick."""
    wants_records: tuple[RankName, ...] = ()
    """Ranks whose flight records the next tick should carry."""
    rank_health: Mapping[RankName, RankHealth] = field(default_factory=dict)
    detector_failures: Mapping[str, str] = field(default_factory=dict)
    """Detector -> error, for each that crashed in this tick: its kind is unknown, not healthy."""


class Pipeline:
    """From snapshots to decisions; its only state is what earlier snapshots said."""

    def __init__(
        self,
        config: KeeperConfig,
        incidents: Sequence[Incident] = (),
        evictions: Sequence[EvictionProgress] = (),
    ) -> None:
        self._config = config
        self._incidents = tuple(incidents)
        self._evictions = tuple(evictions)

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot; call once per tick, in order of time."""
        health = {seen.rank: _health(seen) for seen in snapshot.observations}
        return TickResult(now_s=snapshot.now_s, incidents=self._incidents, rank_health=health)


def _health(seen: Observation) -> RankHealth:
    if isinstance(seen.outcome, Unreachable):
        return RankHealth.UNREACHABLE
    if not seen.outcome.process.alive:
        return RankHealth.DEAD
    if seen.outcome.step is None:
        return RankHealth.STARTING
    return RankHealth.HEALTHY
