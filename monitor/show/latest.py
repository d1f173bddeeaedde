"""The latest view: what is made from it.

A page or a JSON body is made once a view, in the thread of the first request for it. Requests that
come meanwhile get the one of the view before if there is one, else they wait. One that takes long,
of thousands of ranks, is made in another thread: requests at once get one some seconds old.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from lightkeeper.monitor.decide.view import View

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

    def get(self, view: View, key: Hashable, make: Callable[[], T]) -> T:
        """The key's value in this view; an earlier one while this is being made."""
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


def _renew(entry: _Entry[T], number: int, make: Callable[[], T]) -> T:
    """Its value in this view or a later one."""
    with entry.making:
        if entry.value is None or entry.value[0] < number:
            began_s = time.thread_time()
            entry.value = number, make()
            entry.at_s, entry.cpu_s = time.monotonic(), time.thread_time() - began_s
        return entry.value[1]
