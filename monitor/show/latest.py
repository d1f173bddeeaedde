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
from weakref import ref

from lightkeeper.monitor.decide.view import View

T = TypeVar("T")
_ENTRIES: Final = 32
"""Keys whose values are kept: those used last."""
LONG_S: Final = 0.02
"""CPU seconds; what takes less is made while the request waits."""
_OLD_S: Final = 5.0
"""Nobody gets an older one, unless it takes long."""
_SPARES: Final = 20.0
"""What takes long is made again only after this many times the CPU time that it took: a page of
100,000 ranks takes at most a twentieth of a core."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[ref[View], T] | None = None
    """Does not keep the view, which may be large."""
    at_s: float = 0.0
    """When it was made; monotonic."""
    cpu_s: float = 0.0
    """CPU time to make it."""


class Latest(Generic[T]):
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[T]] = OrderedDict()

    def get(self, view: View, key: Hashable, make: Callable[[], T]) -> T:
        """The key's value in this view; an earlier one while this is being made."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > _ENTRIES:
                self._entries.popitem(last=False)
        if entry.value is not None and entry.value[0]() is not view:
            making, rest_s = entry.making.locked(), _SPARES * entry.cpu_s
            age_s, long = time.monotonic() - entry.at_s, entry.cpu_s > LONG_S
            if (long or making) and age_s < max(_OLD_S, rest_s * long):
                if not making and age_s >= rest_s:
                    work = (entry, view, make)
                    threading.Thread(target=_renew, args=work, name="page", daemon=True).start()
                return entry.value[1]
        return _renew(entry, view, make)


def _renew(entry: _Entry[T], view: View, make: Callable[[], T]) -> T:
    with entry.making:
        if entry.value is None or entry.value[0]() is not view:
            began_s = time.thread_time()
            entry.value = ref(view), make()
            entry.at_s, entry.cpu_s = time.monotonic(), time.thread_time() - began_s
        return entry.value[1]
