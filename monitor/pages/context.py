"""What a page is made from, and which page. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from monitor.incident import Incident, State
from monitor.names import RankName
from monitor.pages.states import states_of
from monitor.pages.wording import path_of
from monitor.snapshot import Observation
from monitor.store import QuarantineEvent
from monitor.view import Face, View, face_of

FLEET: Final = "fleet"
GROUPS: Final = "groups"
HOSTS: Final = "hosts"
RANKS: Final = "ranks"
_KINDS: Final = (GROUPS, HOSTS, RANKS)
_NAME_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Place:
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
    def of(path: str) -> Place | None:
        """The page at a path of ours; None: there is none."""
        url = urlsplit(path)
        if url.path in ("", "/"):
            return Place(FLEET, by_host=parse_qs(url.query).get("by") == ["host"])
        _, kind, *rest = url.path.split("/")
        name = unquote(rest[0]) if len(rest) == 1 else ""
        return Place(kind, name) if kind in _KINDS and 0 < len(name) <= _NAME_MAX else None


@dataclass(frozen=True)
class Context:
    """One moment of the monitor, as pages need it."""

    view: View
    place: Place
    guarded: bool = False
    """Whether pages of ranks need the token, which a link does not carry."""
    why_not: str | None = None
    """Why nothing can be changed from here; None: it can, with the token."""
    history: tuple[QuarantineEvent, ...] = ()
    """Of the group or host of this page, newest first."""
    states: Mapping[RankName, str] = field(init=False)
    """Of every rank."""
    faces: tuple[tuple[Incident, Face], ...] = field(init=False)
    """Open incidents in words, those that name somebody first, then the oldest."""

    def __post_init__(self) -> None:
        view = self.view
        opened = sorted(
            (one for one in view.incidents if one.open),
            key=lambda one: (one.state is State.PENDING, one.milestones.first_seen_s, one.id),
        )
        told = ((o, face_of(o, view.decisions.get(o.id, ()), self.now_s)) for o in opened)
        object.__setattr__(self, "faces", tuple(told))
        object.__setattr__(self, "states", states_of(self.view))

    @property
    def now_s(self) -> float:
        """Of the tick."""
        return self.view.snapshot.now_s

    def ranks_of(self, group: str) -> tuple[Observation, ...]:
        """The ranks of a replica group, by number."""
        found = (one for one in self.view.snapshot.observations if one.identity.group == group)
        return tuple(sorted(found, key=lambda one: one.identity.group_rank))
