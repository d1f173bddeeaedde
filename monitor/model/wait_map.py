"""Who waited for whom when a fault was judged, folded until a person can read it. Pure.

It travels with the verdict, so an incident keeps the graph that its decision rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.model.plain import Moment, readable
from lightkeeper.monitor.model.units import counted

TOLD: Final = "verdict"
"""The witness of a wait that was not seen any more, or only in flight records."""


class WaitPart(StrEnum):
    CULPRIT = "culprit"
    CANDIDATE = "candidate"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class WaitNode:
    """Ranks in one situation."""

    part: str  # a `WaitPart`
    ranks: tuple[str, ...]
    """The names of some of them, sorted."""
    count: int
    depth: int  # waits between them and the suspects
    does: str  # `in all_reduce`; empty: they differ, or it is not known
    groups: tuple[str, ...] = ()  # the first of them
    group_count: int = 0
    hosts: tuple[str, ...] = ()
    host_count: int = 0

    @property
    def name(self) -> str:
        if self.count == 1:
            return self.ranks[0] if self.ranks else "a rank"
        of = self.groups[0] if self.group_count == 1 else counted(self.group_count, "group")
        return counted(self.count, "rank") + (f" of {of}" if self.group_count else "")

    @property
    def where(self) -> str:
        named = "" if self.count == 1 else ", ".join(self.ranks)
        if not self.hosts:
            return named
        hosts = self.hosts[0] if self.host_count == 1 else counted(self.host_count, "host")
        more = " ..." if self.groups and self.count > len(self.ranks) else ""
        return f"on {hosts}{named and f': {named}'}{more}"

    @property
    def says(self) -> str:
        """Both, and what they do."""
        does = f"{self.name} {self.does}" if self.does else self.name
        return f"{does}, {self.where}" if self.where else does


@dataclass(frozen=True, slots=True)
class WaitEdge:
    """Ranks of one node wait for ranks of another."""

    waiter: int
    """Index of the node."""
    holder: int
    by: str
    """The witness: `detect.graph.By`, `TOLD`, or the call in a flight record."""
    least_s: float | None = None
    """The shortest of these waits by then; None: not known."""
    most_s: float | None = None


@readable
@dataclass(frozen=True, slots=True)
class WaitMap:
    """The wait-for graph around the suspects of one fault."""

    at_s: Moment
    nodes: tuple[WaitNode, ...]
    """Suspects first, then by depth."""
    edges: tuple[WaitEdge, ...]

    @property
    def ranks(self) -> int:
        return sum(node.count for node in self.nodes)


def fuller(before: WaitMap | None, now: WaitMap | None) -> WaitMap | None:
    """The later of two of the same suspects, unless ranks that waited have ended or gone on."""
    if before is None or now is None:
        return now or before
    return before if before.ranks > now.ranks else now
