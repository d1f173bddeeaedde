"""Runs: each start of the job, from its first rank to the first of the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from lightkeeper.monitor.model.names import IncidentId, RunId
from lightkeeper.monitor.model.plain import Moment, readable


@readable
@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One moment; None: not known (never zero)."""

    at_s: Moment
    step_s: float | None
    """Median seconds a step, over the ranks that moved lately."""
    rate: float | None = None
    """Steps a second from `at_s` on, over the stretch of its resolution; 0: the job stood."""
    low: float | None = None
    """The lowest rate within it."""


RESOLUTIONS: Final = {"1h": (10.0, 360), "24h": (300.0, 288), "7d": (1800.0, 336)}
"""Seconds a point, and points kept: a thousand, 150 KB in the store, however long a job runs."""


@readable
@dataclass(frozen=True, slots=True)
class Run:
    """One start of the job: what its ranks have in common until nobody of them lives."""

    id: RunId
    """When it began, by UTC: `20261127-164512`."""
    job: str
    began_s: Moment
    """Unix time."""
    seen_s: Moment = 0.0
    """When a rank of it was last seen alive; 0: not yet."""
    ranks: int = 0
    """The most that were there at once."""
    step: int | None = None
    """The highest that any rank committed."""
    bringer: str = ""
    """The address from which its first rank registered."""
    trend: tuple[TrendPoint, ...] = ()
    """Its last hour; oldest first."""
    lost: Mapping[IncidentId, float] = field(default_factory=dict)
    """Incident -> rank-seconds lost to it, as far as they were watched (`decide.rank_seconds`)."""
