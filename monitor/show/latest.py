"""The latest view: what is made of it, and the streams by which open pages follow it.

A page or a body of JSON is made once, however many ask for it, by the first who asks, in the thread
of the request. Who asks while it is being made gets the one of the view before, if there is one,
and else waits. What is much work, of thousands of ranks, is made beside the request: who asks gets
at once what may be some seconds old.
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
"""Keys of which values are kept; those asked for last."""
LONG_S: Final = 0.02
"""Of CPU; what takes less is made while who asks for it waits."""
_OLD_S: Final = 5.0
_SPARES: Final = 20.0
"""What is much work is made again after so many times as long as it took, and not before: a page of
100,000 ranks takes a twentieth of a core at the most."""
_VIEWS: Final = 32
"""Views for which a value is kept that nobody asks for."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[int, T] | None = None
    """Number of the view, and the value."""
    at_s: float = 0.0
    """When it was made; monotonic."""
    cpu_s: float = 0.0
    """That making it took."""


class Latest(Generic[T]):
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._view: View | None = None
        self._number = 0
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def number(self, view: View) -> int:
        """Of this view; later ones have higher numbers."""
        with self._lock:
            if view is not self._view:
                self._view = view
                self._number += 1
            return self._number

    def get(self, view: View, key: Hashable, make: Callable[[int, T | None], T]) -> T:
        """The value of this key in this view, or in the one before while that is being made.

        Args:
            make: makes it; takes the number of the view, and the value before.
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


# -- Streams of server-sent events: few, and each ends by itself when nobody reads it any more ----
# Each holds one of the server's threads for as long as its page is open, so there are at most half
# as many as threads; who comes later is told to poll. A stream ends when its client is gone (the
# next write fails), when what it was sent lies unread for `SLOW_S`, when it has lasted `LIFE_S`
# (the browser comes back by itself, to whichever monitor answers then), and when the monitor shuts
# down.

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
        with self._lock:
            return self._open

    def take(self) -> Callable[[], None] | None:
        """A place for one more, to be given back by what is returned; None: there is none."""
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
