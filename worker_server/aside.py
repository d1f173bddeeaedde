"""Tags and counters of the user's own: any thread may use them, nothing raises into training."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from worker_server.complaint import complain
from worker_server.loop import Loop
from worker_server.page import layout

_NO_TAG: AbstractContextManager[Any] = nullcontext()
_MAX_KNOWN = 64
"""Spellings remembered; of a name that is too long many may be one."""


class _Once:
    """Warns of each thing once."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            complain(f"lightkeeper {text}", stacklevel=5)


class Counters:
    """At most 16, each of which only grows."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._page = loop.page
        self._ids: dict[str, int] = {}
        self._once = _Once()

    def add(self, name: str, amount: float = 1) -> None:
        """Count up. What is negative, not finite or no number is ignored, with one warning."""
        if not self._loop.on:
            return
        try:
            value = float(amount)
            if 0 <= value < math.inf:
                counter = self._ids.get(name)
                if counter is None:
                    counter = self._find(name)
                if counter is not None:
                    self._page.add_count(counter, value)
            else:
                self._once.say("amount", f"counts up only: {name!r} by {amount!r} is ignored")
        except Exception as exc:  # noqa: BLE001
            self._once.say("error", f"cannot count {name!r}: {exc!r}")

    def _find(self, name: str) -> int | None:
        counter = self._page.counter_id(name)
        if counter is None:
            self._once.say("full", f"keeps {layout.MAX_COUNTERS} counters: {name!r} is dropped")
        elif len(self._ids) < _MAX_KNOWN:
            self._ids[name] = counter
        return counter


class _Tag:
    """One tag; the same object serves every time."""

    __slots__ = ("_number", "_tags")

    def __init__(self, tags: Tags, number: int) -> None:
        self._tags = tags
        self._number = number

    def __enter__(self) -> None:
        self._tags.turn(self._number, on=True)

    def __exit__(self, *_: object) -> None:
        self._tags.turn(self._number, on=False)


class Tags:
    """At most 16; a tag is on while any block that names it runs."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._page = loop.page
        self._known: dict[str, _Tag] = {}
        self._once = _Once()

    def named(self, name: str) -> AbstractContextManager[Any]:
        """The tag of this name, as a context manager."""
        try:
            known = self._known.get(name)
            return self._find(name) if known is None else known
        except Exception as exc:  # noqa: BLE001
            self._once.say("error", f"cannot tag {name!r}: {exc!r}")
            return _NO_TAG

    def _find(self, name: str) -> AbstractContextManager[Any]:
        number = self._page.tag_id(name)
        if number is None:
            self._once.say("full", f"keeps {layout.MAX_TAGS} tags: {name!r} is dropped")
            return _NO_TAG
        tag = _Tag(self, number)
        if len(self._known) < _MAX_KNOWN:
            self._known[name] = tag
        return tag

    def turn(self, number: int, *, on: bool) -> None:
        """Turn it on or off."""
        if not self._loop.on:
            return
        try:
            if on:
                self._page.begin_tag(number)
            else:
                self._page.end_tag(number)
        except Exception as exc:  # noqa: BLE001
            self._once.say("error", f"cannot tag: {exc!r}")
