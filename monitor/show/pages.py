"""What the pages of fleet, group, host and rank are made from, and what they are made into. Pure.

A page is its sections, each rendered by itself, so that an open page is sent those that changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from monitor.decide.view import View, trouble_of
from monitor.model.eviction import QuarantineEvent
from monitor.model.incident import Incident, State
from monitor.model.names import RankName
from monitor.model.observation import LighthouseAway, Observation
from monitor.model.wording import Face
from monitor.show.incident_page import title
from monitor.show.templating import sections
from monitor.show.wording import natural, path_of, states_of

FLEET: Final = "fleet"
GROUPS: Final = "groups"
HOSTS: Final = "hosts"
RANKS: Final = "ranks"
_KINDS: Final = (GROUPS, HOSTS, RANKS)
_NAME_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class PagePlace:
    """One page."""

    kind: str
    name: str = ""
    by_host: bool = False
    """Of the fleet: whether the grid is grouped by host."""

    @property
    def path(self) -> str:
        """Where it is."""
        if self.kind == FLEET:
            return "/?by=host" if self.by_host else "/"
        return path_of(self.kind, self.name)

    @staticmethod
    def of(path: str) -> PagePlace | None:
        """The page at a path of ours; None: there is none."""
        url = urlsplit(path)
        if url.path in ("", "/"):
            return PagePlace(FLEET, by_host=parse_qs(url.query).get("by") == ["host"])
        _, kind, *rest = url.path.split("/")
        name = unquote(rest[0]) if len(rest) == 1 else ""
        return PagePlace(kind, name) if kind in _KINDS and 0 < len(name) <= _NAME_MAX else None


class FleetIndex:
    """One view, and what pages work out of it: once, whichever of them asks first."""

    def __init__(self, view: View) -> None:
        self.view = view

    @property
    def now_s(self) -> float:
        """Of the tick."""
        return self.view.snapshot.now_s

    @cached_property
    def states(self) -> Mapping[RankName, str]:
        """Of every rank."""
        return states_of(self.view)

    @cached_property
    def by_group(self) -> Mapping[str, list[Observation]]:
        """The ranks of each replica group, by number."""
        found: dict[str, list[Observation]] = defaultdict(list)
        for seen in self.view.snapshot.observations:
            found[seen.identity.group].append(seen)
        for ranks in found.values():
            ranks.sort(key=lambda seen: seen.identity.group_rank)
        return dict(found)

    @cached_property
    def by_host(self) -> Mapping[str, list[Observation]]:
        """The ranks on each host, by group and number."""
        found: dict[str, list[Observation]] = defaultdict(list)
        for seen in self.view.snapshot.observations:
            found[seen.identity.host].append(seen)
        for ranks in found.values():
            ranks.sort(key=lambda seen: (natural(seen.identity.group), seen.identity.group_rank))
        return dict(found)

    @cached_property
    def faces(self) -> tuple[tuple[Incident, Face], ...]:
        """Open incidents in words, those that name somebody first, then the oldest."""
        view = self.view
        opened = sorted(
            (one for one in view.incidents if one.open),
            key=lambda one: (one.state is State.PENDING, one.milestones.first_seen_s, one.id),
        )
        return tuple((one, view.face(one)) for one in opened)


@dataclass(frozen=True, slots=True)
class Context:
    """One page to make."""

    fleet: FleetIndex
    place: PagePlace
    guarded: bool = False
    """Whether pages of ranks need the token, which a link does not carry."""
    why_not: str | None = None
    """Why nothing can be changed from here; None: it can, with the token."""
    history: tuple[QuarantineEvent, ...] = ()
    """Of the group or host of this page, newest first."""

    @property
    def view(self) -> View:
        """What it shows."""
        return self.fleet.view


@dataclass(frozen=True, slots=True)
class Page:
    """A page at one moment."""

    title: str
    sections: Mapping[str, str]
    """Id -> markup, in order; `banners` stand above the others."""
    items: Mapping[str, str] = field(default_factory=dict)
    """Key -> markup, of the list that waits for them (`ITEMS`), in order."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""
    found: bool = True
    """Whether there is such a thing; a page of what is not known says so."""


ITEMS: Final = "<!--items-->"
"""Stands in the list of a section where the items go; no text of anybody can be a comment."""
SOURCES: Final = ("state", "steps", "flight_recorder", "stacks", "last_words", "wait_counters")
"""Pages of a rank itself."""


def made_of(
    context: Context, template: str, page_title: str, *, found: bool = True, **values: Any
) -> Page:
    """A page from the sections of its template."""
    made = sections(
        template, context=context, view=context.view, states=context.fleet.states,
        now_s=context.fleet.now_s, name=context.place.name,
        away=isinstance(context.view.snapshot.lighthouse, LighthouseAway),
        found=found, title_of=title, trouble_of=trouble_of, SOURCES=SOURCES, **values,
    )  # fmt: skip
    return Page(page_title, made, found=found)
