"""What every rung is, seen from the ladder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol, TypeVar

from monitor.clock import Clock
from monitor.evictors.look import Look
from monitor.snapshot import Rung, RungOutcome, RungResult

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class Climber(Protocol):
    """One rung at work. Nothing here waits: an answer is taken when it is there."""

    @property
    def rung(self) -> Rung:
        """Which."""
        ...

    def climb(self, look: Look) -> None:
        """Do what is due at this look; the first call starts its deadline."""
        ...

    def over(self) -> bool:
        """Whether there is nothing more to hope for from it: it cannot work, or had its time."""
        ...

    def settle(self, look: Look) -> None:
        """The eviction is over, and this is the last look: say how this rung ended."""
        ...

    def outcome(self) -> RungOutcome | None:
        """What it did so far; None while it had nothing to do."""
        ...


class Careful:
    """A rung whose crash is its failure, and never the eviction's: the next rung's turn comes."""

    def __init__(self, inner: Climber, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock
        self._crash: RungOutcome | None = None

    @property
    def rung(self) -> Rung:
        """Which."""
        return self._inner.rung

    def climb(self, look: Look) -> None:
        """As the rung itself, until it crashes."""
        if self._crash is None:
            self._guarded(lambda: self._inner.climb(look), None)

    def over(self) -> bool:
        """Also when it has crashed."""
        return self._crash is not None or self._guarded(self._inner.over, default=True)

    def settle(self, look: Look) -> None:
        """As the rung itself."""
        if self._crash is None:
            self._guarded(lambda: self._inner.settle(look), None)

    def outcome(self) -> RungOutcome | None:
        """What it did, or how it crashed."""
        if self._crash is None:
            told = self._guarded(self._inner.outcome, None)
            if self._crash is None:
                return told
        return self._crash

    def _guarded(self, call: Callable[[], _T], default: _T) -> _T:
        try:
            return call()
        except Exception as exc:
            log.exception("%s crashed", self.rung)
            now_s = self._clock.now_s()
            self._crash = RungOutcome(
                self.rung,
                now_s,
                now_s,
                f"crashed: {type(exc).__name__}: {exc}",
                RungResult.FAILED,
            )
            return default
