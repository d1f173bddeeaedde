"""One deadline for the several questions that a request to a scheduler takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LEAST_S: Final = 0.05
"""Less is not worth asking for: a process starts in some milliseconds, a connection in one."""


@dataclass(frozen=True, slots=True)
class Clockwork:
    """Seconds that only grow, and waiting; tests bring their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class TooLate(Exception):  # noqa: N818 - an outcome, told in words
    """The deadline is over."""


class Deadline:
    """How much of a request's time is left."""

    def __init__(self, timeout_s: float, clockwork: Clockwork) -> None:
        self._timeout_s = timeout_s
        self._clockwork = clockwork
        self._end_s = clockwork.now() + timeout_s

    def left_s(self) -> float:
        """Seconds that are left.

        Raises:
            TooLate: none.
        """
        left_s = self._end_s - self._clockwork.now()
        if left_s < LEAST_S:
            raise TooLate(f"not within {self._timeout_s:g} s")
        return left_s

    def share_left(self) -> float:
        """What is left, as a share of the whole."""
        return max(0.0, (self._end_s - self._clockwork.now()) / max(self._timeout_s, LEAST_S))

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end.

        Raises:
            TooLate: nothing would be left afterwards.
        """
        if self.left_s() - seconds < LEAST_S:
            raise TooLate(f"not within {self._timeout_s:g} s")
        self._clockwork.sleep(seconds)
