"""The job's usual pace: seconds a commit while nothing stands. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

_SAMPLE_S: Final = 10.0
"""One sample for so many seconds: how long the median remembers does not depend on the tick."""
_KEPT: Final = 360
"""Samples: an hour of short steps."""
_FEWEST: Final = 3


class UsualPace:
    """A median over an hour of samples, each a median over ranks and ticks."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)
        self._gathered: list[float] = []
        self._since_s: float | None = None
        self.commit_s: float | None = None
        """None until there are three samples."""

    def push(self, now_s: float, paces: Sequence[float]) -> None:
        """Seconds a commit of the ranks that committed in a tick in which nothing stood."""
        if not paces:
            return
        if self._since_s is None:
            self._since_s = now_s
        self._gathered.append(median(paces))
        if len(self._samples) >= _FEWEST and now_s - self._since_s < _SAMPLE_S:
            return
        self._samples.append(median(self._gathered))
        self._gathered, self._since_s = [], None
        if len(self._samples) >= _FEWEST:
            self.commit_s = median(self._samples)
