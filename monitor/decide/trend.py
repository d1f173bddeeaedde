"""The last hour of the job in a few numbers: what the page draws as small lines. Pure.

One point each `EVERY_S`, `KEPT` of them, of the job as a whole: however large the fleet is, an hour
is 360 points. It begins with the monitor; what lasts is in Prometheus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.decide.headline import median_step_s
from monitor.decide.rank_seconds import Tempo
from monitor.model.names import RankName
from monitor.model.observation import Snapshot

EVERY_S: Final = 10.0
KEPT: Final = 360


@dataclass(frozen=True, slots=True)
class TrendPoint:
    """One moment; None is not known, and no zero."""

    at_s: float
    step: int | None
    """The highest that any rank has committed."""
    step_s: float | None
    """Median seconds of a step, of the ranks that moved lately."""


class TrendBook:
    """Takes a point when one is due."""

    def __init__(self) -> None:
        self._points: deque[TrendPoint] = deque(maxlen=KEPT)
        self._told: tuple[TrendPoint, ...] = ()

    def push(self, snapshot: Snapshot, tempos: Mapping[RankName, Tempo]) -> tuple[TrendPoint, ...]:
        """The points, oldest first."""
        now_s = snapshot.now_s
        if not self._points or now_s - self._points[-1].at_s >= EVERY_S:
            steps = (one.step.step for one in snapshot.observations if one.step is not None)
            point = TrendPoint(now_s, max(steps, default=None), median_step_s(tempos))
            self._points.append(point)
            self._told = tuple(self._points)
        return self._told
