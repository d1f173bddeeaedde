"""The big red switch: while it is pressed, nobody is evicted but by hand. Survives a restart."""

from __future__ import annotations

import json
import logging
import threading
from typing import Final

from monitor.clock import Clock
from monitor.model.observation import Pause
from monitor.model.plain import from_plain, to_plain
from monitor.store.store import Store

log = logging.getLogger(__name__)

SWITCH: Final = "pause"
"""Its name in the store."""


class PauseSwitch:
    """Safe to use from any thread."""

    def __init__(self, clock: Clock, store: Store) -> None:
        self._clock = clock
        self._store = store
        self._lock = threading.Lock()
        self._pause: Pause | None = None

    def take_over(self, body: str | None) -> None:
        """Take over what an earlier monitor had saved; what cannot be read pauses: who knows."""
        pause: Pause | None = None
        try:
            pause = None if body is None else from_plain(Pause, json.loads(body))
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            log.warning("the saved pause cannot be read (%s): paused until resumed", exc)
            pause = Pause("a saved pause cannot be read", "lightkeeper", self._clock.now_s(), None)
        with self._lock:
            self._pause = pause

    def press(self, reason: str, author: str, hours: float | None) -> Pause:
        """Evict nobody from now on; pressed again it is another pause."""
        now_s = self._clock.now_s()
        until_s = None if hours is None else now_s + hours * 3600.0
        pause = Pause(reason, author, now_s, until_s)
        with self._lock:
            self._pause = pause
            self._store.save_switch(SWITCH, json.dumps(to_plain(pause)))
        self._store.flush()
        log.warning("paused by %s: %s", author, reason)
        return pause

    def release(self) -> Pause | None:
        """Go on; the pause that ended, None when there was none."""
        with self._lock:
            pause, self._pause = self._pause, None
            self._store.save_switch(SWITCH, None)
        self._store.flush()
        if pause is not None:
            log.warning("resumed: the pause by %s is over (%s)", pause.author, pause.reason)
        return pause

    def current(self) -> Pause | None:
        """The pause that holds now; one whose time is over is forgotten."""
        with self._lock:
            pause = self._pause
            if pause is None or pause.until_s is None or self._clock.now_s() < pause.until_s:
                return pause
            self._pause = None
            self._store.save_switch(SWITCH, None)
        log.warning("the pause by %s is over (%s)", pause.author, pause.reason)
        return None

    def why(self) -> str | None:
        """Why nobody is evicted now, in a few words; None while nothing is paused."""
        pause = self.current()
        return None if pause is None else f"paused by {pause.author}: {pause.reason}"
