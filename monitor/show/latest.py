"""What is made of the latest view, a page or a body of JSON: once, however many ask for it.

It is made by the first who asks, in the thread of the request. Who asks while it is being made gets
the one of the view before, if there is one, and else waits. What is much work, of thousands of
ranks, is made beside the request: who asks gets at once what may be some seconds old.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from monitor.decide.view import View

T = TypeVar("T")
_KEPT: Final = 32
"""Keys of which values are kept; those asked for last."""
LONG_S: Final = 0.02
"""Of CPU; what takes less is made while who asks for it waits."""
_OLD_S: Final = 5.0
_VIEWS: Final = 32
"""Views for which a value is kept that nobody asks for."""


@dataclass(slots=True)
class _Kept(Generic[T]):
    making: threading.Lock = field(default_factory=threading.Lock)
    made: tuple[int, T] | None = None
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
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()

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
            view: the latest.
            key: what is asked for.
            make: makes it; takes the number of the view, and the value before.
        """
        number = self.number(view)
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > 1 and self._goes(next(iter(self._kept.values()))):
                self._kept.popitem(last=False)
        made = kept.made
        if made is not None:
            older, making = number - made[0], kept.making.locked()
            if older <= 0 or (older == 1 and making):
                return made[1]
            if kept.cpu_s > LONG_S and time.monotonic() - kept.at_s < _OLD_S:
                if not making:
                    work = (kept, number, make)
                    threading.Thread(target=_renew, args=work, name="page", daemon=True).start()
                return made[1]
        return _renew(kept, number, make)

    def _goes(self, first: _Kept[T]) -> bool:
        old = first.made is not None and first.made[0] < self._number - _VIEWS
        return old or len(self._kept) > _KEPT


def _renew(kept: _Kept[T], number: int, make: Callable[[int, T | None], T]) -> T:
    """Its value in this view or a later one."""
    with kept.making:
        if kept.made is None or kept.made[0] < number:
            before, began_s = None if kept.made is None else kept.made[1], time.thread_time()
            kept.made = number, make(number, before)
            kept.at_s, kept.cpu_s = time.monotonic(), time.thread_time() - began_s
        return kept.made[1]
