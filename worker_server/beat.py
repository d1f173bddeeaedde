"""The beat: one daemon thread that stamps the page once a second and does the small chores.

Nothing it does may take long: what does (a profile) gets a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

from worker_server.complaint import complain

_BEAT_S = 1.0
_START_S = 0.1
"""Until the sidecar is up: its launcher wants to be reaped, and the sidecar to be let in."""


class Waiting(Protocol):
    """What is looked after more often while it is not settled."""

    @property
    def settled(self) -> bool:
        """Whether once a second is enough."""

    def look(self) -> None:
        """See to it."""


class Beat(threading.Thread):
    """Stamps the page: an interpreter that runs can do at least that."""

    def __init__(
        self, stamp: Callable[[], None], companion: Waiting, chores: Sequence[Callable[[], None]]
    ) -> None:
        super().__init__(name="lightkeeper-beat", daemon=True)
        self._stamp = stamp
        self._companion: Waiting | None = companion
        self._chores = list(chores)
        self._over = threading.Event()

    def run(self) -> None:
        """Until the interpreter ends."""
        due_s = monotonic()
        while not self._over.wait(self._pause_s(due_s)):
            self._stamp()
            if self._companion is not None and not self._try(self._companion.look):
                self._companion = None
            now_s = monotonic()
            if now_s >= due_s:
                due_s = now_s + _BEAT_S
                self.do_chores()

    def _pause_s(self, due_s: float) -> float:
        settled = self._companion is None or self._companion.settled
        return min(max(0.0, due_s - monotonic()), _BEAT_S if settled else _START_S)

    def do_chores(self) -> None:
        """All of them once; one that fails is not done again."""
        for chore in tuple(self._chores):
            if not self._try(chore):
                self._chores.remove(chore)

    def stop(self) -> None:
        """Do nothing any more."""
        self._over.set()

    def _try(self, chore: Callable[[], None]) -> bool:
        try:
            chore()
        except Exception as exc:  # noqa: BLE001  the beat goes on
            complain(f"lightkeeper: a chore of the beat failed: {exc!r}", stacklevel=2)
            return False
        return True
