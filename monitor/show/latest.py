"""The latest view: what is made from it, and the streams by which open pages follow it.

A page or a JSON body is made once a view, in the thread of the first request for it. Requests that
come meanwhile get the one of the view before if there is one, else they wait. One that takes long,
of thousands of ranks, is made in another thread: requests at once get one some seconds old.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from monitor.decide.view import View

T = TypeVar("T")
_ENTRIES: Final = 32
"""Keys whose values are kept: those used last."""
LONG_S: Final = 0.02
"""CPU seconds; what takes less is made while the request waits."""
_OLD_S: Final = 5.0
_SPARES: Final = 20.0
"""What takes long is made again only after this many times the CPU time that it took: a page of
100,000 ranks takes at most a twentieth of a core."""
_VIEWS: Final = 32
"""Views for which an unused value is kept."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[int, T] | None = None
    """The view's number, and the value."""
    at_s: float = 0.0
    """When it was made; monotonic."""
    cpu_s: float = 0.0
    """CPU time to make it."""


class Latest(Generic[T]):
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: View | None = None
        self._number = 0
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def number(self, view: View) -> int:
        """Number this view; later ones have higher numbers."""
        with self._lock:
            if view is not self._view:
                self._view = view
                self._number += 1
            return self._number

    def get(self, view: View, key: Hashable, make: Callable[[int, T | None], T]) -> T:
        """The key's value in this view; an earlier one while this is being made.

        Args:
            make: takes the number of the view and the previous value.
        """
        number = self.number(view)
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > 1 and self._goes(next(iter(self._entries.values()))):
                self._entries.popitem(last=False)
        value = entry.value
        if value is not None:
            older, making = number - value[0], entry.making.locked()
            if older <= 0 or (older == 1 and making):
                return value[1]
            age_s, rest_s = time.monotonic() - entry.at_s, _SPARES * entry.cpu_s
            if entry.cpu_s > LONG_S and age_s < max(_OLD_S, rest_s):
                if not making and age_s >= rest_s:
                    work = (entry, number, make)
                    threading.Thread(target=_renew, args=work, name="page", daemon=True).start()
                return value[1]
        return _renew(entry, number, make)

    def _goes(self, first: _Entry[T]) -> bool:
        old = first.value is not None and first.value[0] < self._number - _VIEWS
        return old or len(self._entries) > _ENTRIES


def _renew(entry: _Entry[T], number: int, make: Callable[[int, T | None], T]) -> T:
    """Its value in this view or a later one."""
    with entry.making:
        if entry.value is None or entry.value[0] < number:
            before, began_s = None if entry.value is None else entry.value[1], time.thread_time()
            entry.value = number, make(number, before)
            entry.at_s, entry.cpu_s = time.monotonic(), time.thread_time() - began_s
        return entry.value[1]


# -- Streams of server-sent events: few, and each ends when nobody reads it ------------------------
# Each holds one of the server's threads while its page is open, so there are at most half as many
# as threads; further pages have to poll. A stream ends when its client is gone (the next write
# fails), when data lies unread for `SLOW_S`, after `LIFE_S` (the browser reconnects by itself, to
# whichever monitor answers then), and when the monitor shuts down.

STREAMS: Final = 12
"""Most open at once."""
LIFE_S: Final = 1800.0
SLOW_S: Final = 15.0
BEAT_S: Final = 5.0
"""A comment is sent after this long without news, to show proxies and clients a live stream."""
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
        with self._lock:
            return self._open

    def take(self) -> Callable[[], None] | None:
        """Take a place; returns the function that gives it back, or None: all are taken."""
        with self._lock:
            if self._open >= self._at_most or self._closing.is_set():
                return None
            self._open += 1
        returned = threading.Event()

        def give_back() -> None:
            with self._lock:
                if not returned.is_set():
                    returned.set()
                    self._open -= 1

        return give_back

    def close(self) -> None:
        """End all within `LOOK_S`, and start no new one."""
        self._closing.set()

    def run(
        self, news: Callable[[], bytes | None], unread: Callable[[], int], *, slow_s: float = SLOW_S
    ) -> Iterator[bytes]:
        """What one stream sends.

        Args:
            news: what is new since it was last asked; None: nothing.
            unread: bytes that the client has not taken yet.
            slow_s: how long some may stay unread.
        """
        began_s = beat_s = taken_s = time.monotonic()
        yield b"retry: 2000\n\n"
        while not self._closing.is_set():
            now_s = time.monotonic()
            if not unread():
                taken_s = now_s
            if now_s - taken_s > slow_s or now_s - began_s > LIFE_S:
                return
            said = None if now_s != taken_s else news()  # a slow client gets no more
            if said is None and now_s - beat_s > BEAT_S and now_s == taken_s:
                said = b":\n\n"
            if said is not None:
                beat_s = now_s
                yield said
            self._closing.wait(LOOK_S)


def unread_of(environ: Mapping[str, Any]) -> Callable[[], int]:
    """Bytes of this request's answer that waitress still holds; 0 on other servers."""
    channel = getattr(environ.get("waitress.client_disconnected"), "__self__", None)
    return lambda: int(getattr(channel, "total_outbufs_len", 0))
