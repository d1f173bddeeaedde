"""The monitor's one clock: Unix time that never jumps."""

from __future__ import annotations

import time
from collections.abc import Iterator


class Clock:
    """Wall time at the start, advanced by the monotonic clock.

    NTP steps and manual changes of the host's clock do not affect it, so ages and deadlines hold.
    The monitor starts again, with another clock, after the tick that sees such a change
    (`Service.run`); messages that leave before get `ahead_s` added.
    """

    def __init__(self) -> None:
        self._wall_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Seconds since the epoch; never goes backwards."""
        return self._wall_s + time.monotonic()

    def ahead_s(self) -> float:
        """By how much the wall clock is ahead of this one now, rounded to 10 s."""
        return round(time.time() - self.now_s(), -1)

    def troubles(self) -> Iterator[str]:
        if ahead_s := self.ahead_s():
            yield (
                f"the host's clock was set by {ahead_s:+.0f} s: this monitor follows once its "
                "store takes writes"
            )
