"""Pieces that the pages of incidents share: tables, chips, links, spans and moments. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

from monitor.reports.markup import element, escaped, words

TONES: Final = {
    "worked": "good", "failed": "bad", "skipped": "start", "unknown": "away", "under way": "wait",
    "resolved": "good", "firing": "bad", "evicting": "wait", "pending": "wait",
    "critical": "bad", "warning": "wait", "info": "start",
    "evicted": "good", "held": "away", "observed": "start", "right": "good", "wrong": "bad",
}  # fmt: skip
_GLYPHS: Final = {"good": "✓", "bad": "✗", "wait": "…", "away": "?", "start": "•"}
"""A shape for each colour: some people tell no colours apart."""
_SEVERITIES: Final = {"critical": "!!", "warning": "!", "info": "i"}
_TAG: Final = re.compile("<[^>]*>")
_SHORT: Final = 18
"""Characters of a cell that is not broken into lines."""


def section(name: str, title: str, *inside: str, about: str = "") -> str:
    """A part of the page with a name to link to, and by which the script finds it again."""
    told = words("p", about, class_="meta") if about else ""
    return element("section", words("h2", title), told, *inside, id=name)


def table(heads: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are markup already. On a phone each cell stands on a line of its own, with its head."""
    names = list(heads)
    head = element("thead", element("tr", *(words("th", text, scope="col") for text in names)))
    body = element("tbody", *(element("tr", *map(_cell, names, row)) for row in rows))
    return element("div", element("table", head, body), class_="wide")


def _cell(head: str, markup: str) -> str:
    short = len(_TAG.sub("", markup)) <= _SHORT
    return element("td", markup, data_label=head, class_="short" if short else None)


def chip(word: str, tone: str | None = None) -> str:
    """A word in its colour, with the shape that goes with it."""
    found = tone or TONES.get(word, "idle")
    shape = _SEVERITIES.get(word) or _GLYPHS.get(found, "-")
    glyph = words("span", shape, aria_hidden="true")
    return element("span", glyph, " ", escaped(word), class_=f"chip {found}")


def page_path(incident_id: str) -> str:
    """Where an incident's page is."""
    return f"/incidents/{quote(incident_id, safe='')}"


def rank_link(rank: str) -> str:
    """To a rank's page."""
    return _link("ranks", rank)


def group_link(group: str) -> str:
    """To a replica group's page."""
    return _link("groups", group)


def host_link(host: str) -> str:
    """To a host's page."""
    return _link("hosts", host)


def _link(place: str, name: str) -> str:
    path = quote(name, safe="", errors="replace")
    return element("a", escaped(name, 120), href=f"/{place}/{path}")


def listed(links: Sequence[str], total: int) -> str:
    """Some of them, and how many more there are; markup already."""
    more = f" and {total - len(links):,} more" if total > len(links) else ""
    return ", ".join(links) + more


def plain(name: object) -> str:
    """A name of ours as words."""
    return str(name).replace("_", " ")


def seconds(value: float | None) -> str:
    """Short; what is not known is a dash."""
    return "-" if value is None else f"{value:.1f} s"


def lasting(seconds_: float) -> str:
    """`6.7 s`, `45 s`, `34 min`, `5 h`, `12 days`."""
    for below, one, unit in ((10, 0, "s"), (120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds_ < below:
            return f"{seconds_:.1f} s" if one == 0 else f"{seconds_ / one:.0f} {unit}"
    return f"{seconds_ / 86_400:,.0f} days"


def utc(at_s: float) -> str:
    """A moment for people anywhere."""
    return _moment(at_s, "%Y-%m-%d %H:%M:%S UTC")


def time_of_day(at_s: float) -> str:
    """`04:44:21 UTC`, where the day is told beside it."""
    return _moment(at_s, "%H:%M:%S UTC")


def _moment(at_s: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return "an unknown time"
