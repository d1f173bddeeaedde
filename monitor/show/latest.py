"""The latest view: what is made from it.

A page or a JSON body is made once a view, in the thread of the first request for it. Requests that
come meanwhile get the one of the view before if there is one, else they wait. One that takes long,
of thousands of ranks, is made again only once it is some seconds old.
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
"""CPU seconds; what takes less is made of every view."""
_OLD_S: Final = 5.0
"""Who asks while it is made waits rather than get one that is older."""
_SPARES: Final = 20.0
"""What takes long is made again only after this many times the CPU time that it took: a page of
100,000 ranks takes at most a twentieth of a core."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    value: tuple[ref[View], T] | None = None
    """Does not keep the view, which may be large."""
    good_s: float = 0.0
    """Until when it serves later views as well; monotonic."""


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
        good_s = entry.good_s + (_OLD_S if entry.making.locked() else 0.0)
        if entry.value is not None and time.monotonic() < good_s:
            return entry.value[1]
        with entry.making:
            if entry.value is None or entry.value[0]() is not view:
                began_s = time.thread_time()
                entry.value = ref(view), make()
                cpu_s = time.thread_time() - began_s
                entry.good_s = time.monotonic() + (_SPARES * cpu_s if cpu_s > LONG_S else 0.0)
            return entry.value[1]
