"""What the monitor can measure of itself: wall clock, waiting for a core, disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from monitor.model.observation import Vitals

_TASKS: Final = Path("/proc/self/task")


class VitalSigns:
    """Measures once a tick; what cannot be measured here is None, never zero.

    Args:
        disks: each says why it does not write, or None.
    """

    def __init__(self, disks: Sequence[Callable[[], str | None]] = ()) -> None:
        self._disks = tuple(disks)
        self._waited_s: dict[str, float] = {}
        self._at_s: float | None = None

    def measure(self) -> Vitals:
        """The signs of this moment, and of the time since the last one."""
        troubles = [trouble for disk in self._disks if (trouble := disk()) is not None]
        return Vitals(wall_s=time.time(), starved=self._starved(), disk="; ".join(troubles) or None)

    def _starved(self) -> float | None:
        """The largest share of the time in which one of our threads waited for a core."""
        before, before_s = self._waited_s, self._at_s
        self._at_s, self._waited_s = time.monotonic(), _waited_s()
        if before_s is None or not self._waited_s or self._at_s <= before_s:
            return None
        span_s = self._at_s - before_s
        shares = [
            (waited_s - before[task]) / span_s
            for task, waited_s in self._waited_s.items()
            if task in before
        ]
        return min(1.0, max(shares, default=0.0))


def _waited_s() -> dict[str, float]:
    """Thread -> seconds for which it was ready to run and did not (proc(5), schedstat)."""
    found: dict[str, float] = {}
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return found
    for task in tasks:
        try:
            found[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            continue  # the thread is gone, or this kernel does not count
    return found
