"""Streams of server-sent events: few, and each ends by itself when nobody reads it any more.

Each holds one of the server's threads for as long as its page is open, so there are at most half
as many as threads; who comes later is told to poll. A stream ends when its client is gone (the next
write fails), when what it was sent lies unread for `SLOW_S`, when it has lasted `LIFE_S` (the
browser comes back by itself, to whichever monitor answers then), and when the monitor shuts down.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

STREAMS: Final = 12
"""Open ones at most."""
LIFE_S: Final = 1800.0
SLOW_S: Final = 15.0
BEAT_S: Final = 5.0
"""A comment after so long without news, so that proxies and clients know that somebody is there."""
LOOK_S: Final = 0.2
"""Between two looks for a new view; it costs microseconds."""


class Streams:
    """Counts and ends them. Safe to use from any thread."""

    def __init__(self, at_most: int = STREAMS) -> None:
        self._at_most = at_most
        self._lock = threading.Lock()
        self._open = 0
        self._closing = threading.Event()

    @property
    def open(self) -> int:
        """How many there are."""
        with self._lock:
            return self._open

    def take(self) -> Callable[[], None] | None:
        """A place for one more, to be given back by what is returned; None: there is none."""
        with self._lock:
            if self._open >= self._at_most or self._closing.is_set():
                return None
            self._open += 1
        given = threading.Event()

        def give_back() -> None:
            with self._lock:
                if not given.is_set():
                    given.set()
                    self._open -= 1

        return give_back

    def close(self) -> None:
        """End all, within `LOOK_S`, and begin none any more."""
        self._closing.set()

    def run(
        self, news: Callable[[], bytes | None], unread: Callable[[], int], *, slow_s: float = SLOW_S
    ) -> Iterator[bytes]:
        """What one stream sends.

        Args:
            news: what is new since it was last asked; None: nothing.
            unread: bytes that the client has not taken yet.
            slow_s: how long some may lie there.
        """
        began_s = beat_s = taken_s = time.monotonic()
        yield b"retry: 2000\n\n"
        while not self._closing.is_set():
            now_s = time.monotonic()
            if not unread():
                taken_s = now_s
            if now_s - taken_s > slow_s or now_s - began_s > LIFE_S:
                return
            said = None if now_s != taken_s else news()  # to a slow one nothing is added
            if said is None and now_s - beat_s > BEAT_S and now_s == taken_s:
                said = b":\n\n"
            if said is not None:
                beat_s = now_s
                yield said
            self._closing.wait(LOOK_S)


def unread_of(environ: Mapping[str, Any]) -> Callable[[], int]:
    """How much waitress still holds of the answer to this request; on other servers nothing."""
    channel = getattr(environ.get("waitress.client_disconnected"), "__self__", None)
    return lambda: int(getattr(channel, "total_outbufs_len", 0))
