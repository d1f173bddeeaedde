"""The monitor's one clock: Unix time that never jumps."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_s(self) -> float:
        """Seconds since the Unix epoch; never goes backwards."""
        ...


class SteadyClock:
    """Wall time at the start, advanced by the monotonic clock.

    NTP steps and manual changes of the host's clock do not affect it, so ages and deadlines hold.
    The price: it drifts from wall time as far as the two clocks drift apart.
    """

    def __init__(self) -> None:
        self._wall_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch; never goes backwards."""
        return self._wall_s + time.monotonic()
