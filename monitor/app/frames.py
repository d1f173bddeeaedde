"""The pages of the latest views: each made once a view, however many look at it."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from monitor.pages import Frame, Place
from monitor.view import View

_PLACES: Final = 32
"""Pages of which frames are kept; those asked for last."""
_FRAMES: Final = 8
"""Of each: who is further behind gets the whole state."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A frame, and the name of the moment that it shows."""

    tag: str
    frame: Frame


class Frames:
    """Safe to use from any thread.

    Args:
        make: the page of a place in a view.
    """

    def __init__(self, make: Callable[[View, Place], Frame]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._boot = secrets.token_hex(4)
        """A restarted monitor counts anew: its tags shall differ."""
        self._serial = 0
        self._of: View | None = None
        self._kept: OrderedDict[Place, deque[Tagged]] = OrderedDict()

    def tag(self, view: View) -> str:
        """Of this view."""
        with self._lock:
            return self._tag(view)

    def latest(self, view: View, place: Place) -> Tagged:
        """The page in this view."""
        with self._lock:
            tag = self._tag(view)
            kept = self._kept.setdefault(place, deque(maxlen=_FRAMES))
            self._kept.move_to_end(place)
            while len(self._kept) > _PLACES:
                self._kept.popitem(last=False)
            if not kept or kept[-1].tag != tag:
                kept.append(Tagged(tag, self._make(view, place)))
            return kept[-1]

    def earlier(self, place: Place, tag: str) -> Frame | None:
        """The page at an earlier moment, if it is still known."""
        with self._lock:
            kept = self._kept.get(place, ())
            return next((one.frame for one in kept if one.tag == tag), None)

    def _tag(self, view: View) -> str:
        if view is not self._of:
            self._of = view
            self._serial += 1
        return f"{self._boot}-{self._serial}"
