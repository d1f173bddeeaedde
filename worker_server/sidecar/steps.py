"""Follows the rank's ring of steps and folds every attempt into histograms, once.

Called about once a second and before each scrape; the ring holds four seconds at 1,000 steps a
second. What it missed all the same is counted, never guessed.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from worker_server.page.reader import PageReader

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds, two a decade, from a toy's step to the longest checkpoint worth waiting for. Finer
ones cost every rank 16 more series each, and a mean is exact anyway (_sum / _count)."""


class Histogram:
    """Counts by bucket, as Prometheus means it; not thread-safe."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one more; a bound belongs to its bucket."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulative(self) -> tuple[int, ...]:
        """How many lie at or below each bound; the last is how many there are."""
        total, rows = 0, []
        for count in self._counts:
            total += count
            rows.append(total)
        return tuple(rows)


@dataclass(frozen=True, slots=True)
class Folded:
    """A histogram at one moment."""

    cumulative: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """What the attempts took so far."""

    steps: Folded
    phases: Mapping[str, Folded]
    """Only steps that were in the phase at all."""
    missed: int
    """Attempts that were overwritten before the follower saw them."""


class StepFollower:
    """Has seen every attempt up to some number; any thread may call."""

    def __init__(self, page: PageReader, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.page = page
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._last = 0
        self._missed = 0
        self._steps = Histogram()
        self._phases: dict[str, Histogram] = {}

    def follow(self) -> None:
        """Fold what has ended since the last call."""
        with self._lock:
            self._follow()

    def look(self) -> StepTimes:
        """Everything up to now; of a dead rank up to its end."""
        with self._lock:
            self._follow()
            return StepTimes(
                steps=_fold(self._steps),
                phases={name: _fold(self._phases[name]) for name in sorted(self._phases)},
                missed=self._missed,
            )

    def _follow(self) -> None:
        rows, dropped = self.page.steps(self._last, self._clock_ns())
        self._last += len(rows) + dropped
        self._missed += dropped
        for row in rows:
            if row.duration_s > 0:  # else nobody knows when it began
                self._steps.observe(row.duration_s)
            for name, seconds in row.seconds.items():
                if name not in self._phases:
                    self._phases[name] = Histogram()
                self._phases[name].observe(seconds)


def _fold(histogram: Histogram) -> Folded:
    return Folded(histogram.cumulative(), histogram.sum_s)
