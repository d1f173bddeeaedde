"""The worker that stands by, and another in its place once it is gone.

One that died unseen would be missed only when the worker dies: the next would begin to import while
all clients wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

log = logging.getLogger("lightkeeper.gate")

_LOOK_S: Final = 1.0
_STEADY_S: Final = 60.0
"""One that stood by for so long had no fault of its own."""
_PAUSES_S: Final = (0.0, 1.0, 5.0, 30.0)
"""Before another is started: one that cannot stay must not cost a core."""


class Standby(Protocol):
    """A process that waits to be needed."""

    def gone(self) -> bool:
        """Whether it has ended; then nothing of it is left."""


S = TypeVar("S", bound=Standby)


class Spare(Generic[S]):
    """Keeps one standing by."""

    def __init__(self, start: Callable[[], S], clock: Callable[[], float] = time.monotonic) -> None:
        self._start = start
        self._clock = clock
        self._lost = 0
        self._due_s = self._looked_s = clock()
        self.there: S | None = None
        self._begin()

    def look(self) -> None:
        """Start another when there is none; about once a second, however often it is called."""
        now_s = self._clock()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        if self.there is not None and self.there.gone():
            self._lost = 0 if now_s - self._began_s > _STEADY_S else self._lost + 1
            self._due_s = now_s + _PAUSES_S[min(self._lost, len(_PAUSES_S) - 1)]
            self.there = None
            log.warning("the spare worker is gone: another is started")
        if self.there is None and now_s >= self._due_s:
            self._begin()

    def take(self) -> S:
        """The one that stands by, or a new one; the next look starts another."""
        taken, self.there = self.there, None
        self._due_s = self._clock()
        self._looked_s = self._due_s - _LOOK_S
        if taken is None or taken.gone():
            return self._start()
        return taken

    def _begin(self) -> None:
        self.there = self._start()
        self._began_s = self._clock()
