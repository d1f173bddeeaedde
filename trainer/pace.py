"""How long a step's own work takes, and how to make it longer.

A rank's work is its forward and backward pass on the wall clock. Two things stretch it, both
by sleeping at the start of the forward phase, where slow hardware would lose its time too:

- a minimum (`--step-time`), so that a demo fleet runs at a calm pace on two cores;
- a factor (fault `slow`), so that a rank is x times slower than it was.

A third, fault `slow-data`, loses the same time while data is loaded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from statistics import median

_WINDOW = 5
"""Steps of which the median counts as the measured work: one hiccup does not scale up."""


class Pace:
    """Stretches the work of each step."""

    def __init__(
        self,
        step_time_s: float = 0.0,
        *,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._step_time_s = step_time_s
        self._clock = clock
        self._sleep = sleep
        self._work_s: deque[float] = deque(maxlen=_WINDOW)
        self._began = 0.0

    def load_data(self, slow_factor: float = 1.0) -> None:
        """Sleep as long as the work of a step takes, times what is above 1 in the factor."""
        if slow_factor > 1.0:
            self._sleep(max(self._step_time_s, self._measured_s()) * (slow_factor - 1.0))

    def begin_work(self, slow_factor: float = 1.0) -> None:
        """Sleep what this step lacks, then measure from here."""
        work_s = self._measured_s()
        stretched_s = max(self._step_time_s, work_s) * slow_factor
        if stretched_s > work_s:
            self._sleep(stretched_s - work_s)
        self._began = self._clock()

    def end_work(self) -> None:
        """The work of this step is done."""
        self._work_s.append(self._clock() - self._began)

    def _measured_s(self) -> float:
        return median(self._work_s) if self._work_s else 0.0
