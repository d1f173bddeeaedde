"""Looks at a monitor again and again, in a thread: keys are heard while it is slow to answer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from monitor.commands.errors import CommandError

T = TypeVar("T")
_BUDGET: Final = 0.05
"""Largest share of one core that the process may take: with many ranks it looks less often."""


@dataclass(frozen=True, slots=True)
class Away:
    """The monitor gives no answer."""

    since_s: float
    """Unix time."""
    why: str


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """The latest answer, and whether it is old."""

    seen: T
    at_s: float
    away: Away | None = None


class Looking(Generic[T]):
    """One look each `every_s` seconds, or less often where looking is dear.

    Raises:
        CommandError: the first look failed.
    """

    def __init__(self, ask: Callable[[], T], every_s: float, wake: Callable[[], None]) -> None:
        self._ask, self._every_s, self._wake = ask, every_s, wake
        self._over = threading.Event()
        self._lock = threading.Lock()
        """Held while waking: who stops us may close at once what we would wake."""
        self.latest: Look[T] = Look(ask(), time.time())
        self._thread = threading.Thread(target=self._run, name="looking", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        pause_s, used_s = self._every_s, time.process_time()
        while not self._over.wait(pause_s):
            self.latest = self._look()
            with self._lock:
                if not self._over.is_set():
                    self._wake()
            before_s, used_s = used_s, time.process_time()  # drawing the look before is in it
            pause_s = max(self._every_s, (used_s - before_s) / _BUDGET)

    def _look(self) -> Look[T]:
        try:
            return Look(self._ask(), time.time())
        except CommandError as exc:
            before = self.latest
            since_s = before.at_s if before.away is None else before.away.since_s
            return Look(before.seen, before.at_s, Away(since_s, str(exc)))

    def stop(self) -> None:
        """No further look; one under way is not waited for."""
        with self._lock:
            self._over.set()


@contextlib.contextmanager
def looking(ask: Callable[[], T], every_s: float, wake_fd: int | None) -> Iterator[Looking[T]]:
    """Looks until the block is left; each is announced by a byte."""

    def wake() -> None:
        if wake_fd is not None:
            with contextlib.suppress(OSError):  # full, or closed a moment ago
                os.write(wake_fd, b"\0")

    made = Looking(ask, every_s, wake)
    try:
        yield made
    finally:
        made.stop()
