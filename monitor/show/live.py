"""The pages of the latest view, and what of them is new to an open page.

Of the pages of earlier views the hash of each section is kept: an open page is sent whole sections,
those whose hash differs.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from monitor.decide.view import SCHEMA, View
from monitor.show.answers import dump
from monitor.show.fleet_page import fleet_page
from monitor.show.latest import Latest
from monitor.show.pages import GROUPS, HOSTS, ITEMS, RANKS, Context, FleetIndex, Page, Place
from monitor.show.rank_pages import group_page, host_page, rank_page
from monitor.show.templating import document, prepare

_EARLIER: Final = 8
"""Moments of each page of which the hashes are kept: who is further behind gets the whole state."""


def make(context: Context) -> Page:
    """The page of this place, at this moment."""
    of_kind = {GROUPS: group_page, HOSTS: host_page, RANKS: rank_page}
    return of_kind.get(context.place.kind, fleet_page)(context)


def whole(page: Page, path: str, tag: str, tick_s: float) -> str:
    """The HTML that reads without a script; `tag` names this state for who follows."""
    items = "".join(page.items.values())
    parts = {key: one.replace(ITEMS, items) for key, one in page.sections.items()}
    banners = parts.pop("banners")
    return document(
        page.title,
        *parts.values(),
        script="/static/page.js",
        here="/" if path.startswith("/?") else path,
        notices='<div id="away" role="status"></div>' + banners,
        data={"place": path, "tag": tag, "tick": f"{tick_s:g}"},
    )


Hashes = Mapping[str, int]
"""Of sections and items; those of items have a key with `#`, which no section has."""


def hashes_of(page: Page) -> Hashes:
    """Of all that is sent of it."""
    return {
        **{key: hash(one) for key, one in page.sections.items()},
        **{f"#{key}": hash(one) for key, one in page.items.items()},
    }


class Made:
    """A page, and what who has seen it before has to be told.

    Args:
        number: of its view.
        tag: names the moment that it shows.
        page: the page.
        before: the one before it.
    """

    def __init__(self, number: int, tag: str, page: Page, before: Made | None = None) -> None:
        self.number = number
        self.tag = tag
        self.page = page
        earlier: Mapping[str, Hashes] = {} if before is None else before._earlier
        self._hashes = hashes_of(page)
        self._earlier: Mapping[str, Hashes] = {
            **dict(list(earlier.items())[1 - _EARLIER :]),
            tag: self._hashes,
        }
        self._html: bytes | None = None
        self._told: dict[str, bytes] = {}

    def html(self, path: str, tick_s: float) -> bytes:
        """The whole document; made once."""
        if self._html is None:
            self._html = whole(self.page, path, self.tag, tick_s).encode(errors="replace")
        return self._html

    def told(self, since: str) -> bytes:
        """What is new since that tag, as JSON; everything where nothing is known of it."""
        since = since if since in self._earlier else ""
        known = self._told.get(since)
        if known is None:
            inside = news(self.page, self._hashes, self._earlier.get(since))
            known = self._told[since] = dump({"schema": SCHEMA, "tag": self.tag, **inside}).rstrip()
        return known


def news(page: Page, now: Hashes, before: Hashes | None) -> dict[str, Any]:
    """Sections and items that differ; `order` only where items came or went."""
    full = before is None or _sections(before) != _sections(now)
    since: Hashes = {} if full or before is None else before
    body = {
        "full": full,
        "title": page.title,
        "facts": page.facts,
        "parts": {key: one for key, one in page.sections.items() if since.get(key) != now[key]},
        "items": {k: one for k, one in page.items.items() if since.get(f"#{k}") != now[f"#{k}"]},
    }
    order = [f"#{key}" for key in page.items]
    if full or order != [key for key in since if key.startswith("#")]:
        body["order"] = list(page.items)
    return body


def _sections(hashes: Hashes) -> list[str]:
    return [key for key in hashes if not key.startswith("#")]


class Pages:
    """Safe to use from any thread.

    Args:
        context: of the page of a place.
    """

    def __init__(self, context: Callable[[FleetIndex, Place], Context]) -> None:
        prepare("document.html", "fleet.html", "crowd.html", "rank.html", "acts.html")
        self._context = context
        self._latest: Latest[Made] = Latest()
        self._boot = secrets.token_hex(4)
        """A restarted monitor counts anew: its tags shall differ."""
        self._fleet: FleetIndex | None = None

    def latest(self, view: View, place: Place) -> Made:
        """The page in this view, or in the one before while that of this one is being made."""
        return self._latest.get(view, place, partial(self._make, view, place))

    def shows(self, made: Made, view: View) -> bool:
        """Whether a page is of this view."""
        return made.number >= self._latest.number(view)

    def _make(self, view: View, place: Place, number: int, before: Made | None) -> Made:
        fleet = self._fleet
        if fleet is None or fleet.view is not view:
            fleet = self._fleet = FleetIndex(view)
        page = make(self._context(fleet, place))
        return Made(number, f"{self._boot}-{number}", page, before)
