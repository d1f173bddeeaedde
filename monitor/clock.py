"""The one clock of the shell: Unix time that never jumps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Whoever tells the time, in seconds since the Unix epoch."""

    def now_s(self) -> float:
        """Seconds since the epoch; never goes backwards."""
        ...


class SteadyClock:
    """Wall time at the start, advanced by the monotonic clock.

    NTP steps and a hand on the host's clock do not touch it, so that ages and deadlines hold;
    the price is that it drifts from the wall by what the two clocks drift apart.
    """

    def __init__(self) -> None:
        self._wall_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch; never goes backwards."""
        return self._wall_s + time.monotonic()
