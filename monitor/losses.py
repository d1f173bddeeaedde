"""Losses as the ranks report them, a minute of them, and how far the latest lie off.

One sample a sweep at most: the loss of the attempt that ended last. Robust: a median and its
absolute deviation, so that a few high ones do not hide the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from monitor.names import RankName
from worker_server.wire import StepState

LATEST: Final = 3
"""Samples that are compared with those before them."""
_KEPT: Final = 60
_FEWEST: Final = 20
_FLAT: Final = 0.02
"""Of the median: a loss that hardly moves must not make every tremor a spike."""


@dataclass(slots=True)
class _Course:
    incarnation: str
    attempt: int
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))


@dataclass(slots=True)
class LossBook:
    """The losses of every rank's present incarnation."""

    _courses: dict[RankName, _Course] = field(default_factory=dict)

    def push(self, readings: Iterable[tuple[RankName, str, StepState]]) -> None:
        """Take in one sweep: rank, incarnation and step of the participating ranks."""
        here: set[RankName] = set()
        for rank, incarnation, step in readings:
            here.add(rank)
            ended = step.commits + step.commit_failures
            course = self._courses.get(rank)
            if course is None or course.incarnation != incarnation:
                course = self._courses[rank] = _Course(incarnation, -1)
            if step.loss is not None and ended != course.attempt:
                course.attempt = ended
                course.losses.append(step.loss)
        self._courses = {rank: course for rank, course in self._courses.items() if rank in here}

    def risen(self, rank: RankName, times: float) -> bool:
        """Whether the latest samples may be so many times the usual one: a cheap first look."""
        course = self._courses.get(rank)
        if course is None or len(course.losses) < _FEWEST + LATEST:
            return False
        return course.losses[-1] > times * min(course.losses)

    def excess(self, rank: RankName) -> tuple[float, float, float] | None:
        """The smallest robust z-score among the latest samples, the latest loss and the usual one;
        None while there are too few.
        """
        course = self._courses.get(rank)
        if course is None or len(course.losses) < _FEWEST + LATEST:
            return None
        losses = list(course.losses)
        past, latest = losses[:-LATEST], losses[-LATEST:]
        usual = median(past)
        spread = median([abs(loss - usual) for loss in past])
        width = 1.4826 * max(spread, _FLAT * abs(usual), 1e-12)
        return (min(latest) - usual) / width, latest[-1], usual
