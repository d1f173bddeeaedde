"""What one tick hands on: to the store, the evictors, the view and the journal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.detectors.verdict import Verdict
from monitor.incident import Incident
from monitor.names import GroupName, RankName
from monitor.pipeline.rank_health import RankHealth
from monitor.policy import Decision
from monitor.self_health import Health


@dataclass(frozen=True, slots=True)
class Learned:
    """What decisions rest on beyond the configuration, for people."""

    min_replicas: int | None = None
    """The Lighthouse's own flag; None until its page has told it."""
    eviction_cost_s: float | None = None
    """Measured, in fleet seconds; None until an eviction of this job was."""
    cost_evictions: int = 0
    """From which it was learned."""
    evictions: Mapping[GroupName, int] = field(default_factory=dict)
    """Of the last hour, by group; in observe mode also those that were only observed."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick found and decided."""

    now_s: float
    verdicts: tuple[Verdict, ...] = ()
    """Those that stand: what another fault explains is left out."""
    incidents: tuple[Incident, ...] = ()
    """Open ones and those resolved within the last hour, newest first."""
    changed: tuple[Incident, ...] = ()
    """Incidents that changed in this tick: what the store writes."""
    decisions: tuple[Decision, ...] = ()
    """A Hold is here when its guard or reason changed, not every tick."""
    wants_records: tuple[RankName, ...] = ()
    """Ranks whose flight records the next tick should carry."""
    wants_steps: tuple[RankName, ...] = ()
    """Ranks whose past steps (`/v1/steps`) the next tick should carry."""
    watches: tuple[RankName, ...] = ()
    """Ranks that the next tick should ask themselves, whoever tells of their hosts."""
    look_again_s: float = math.inf
    """The moment at which a tick settles something, should it come before the schedule's next."""
    rank_health: Mapping[RankName, RankHealth] = field(default_factory=dict)
    detector_failures: Mapping[str, str] = field(default_factory=dict)
    """Detector -> error, for each that crashed in this tick: its kind is unknown, not healthy."""
    detectors: Mapping[str, bool] = field(default_factory=dict)
    """Every detector that should have looked -> whether it did."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Kind of fault -> why nothing can be said about it in this tick."""
    health: Health = field(default_factory=Health)
    """The monitor's own."""
    learned: Learned = field(default_factory=Learned)

    @property
    def blind(self) -> bool:
        """Whether nobody looked for any fault at all."""
        return bool(self.unknown) and not any(self.detectors.values())
