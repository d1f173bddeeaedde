"""What the saved evidence of an incident shows, or why it is not there to be seen. Pure.

Graph, timeline and stacks come from flight records, whose analysis takes a while: a process of its
own makes them (`monitor.evidence.draw`) and keeps them beside the bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from monitor.reports.incident_pieces import section
from monitor.reports.markup import element, escaped, words

PARTS: Final = ("look", "graph", "timeline", "stacks", "limits")
"""Of what is kept beside a bundle; each is markup."""


class Stage(StrEnum):
    """How far the pictures of a bundle are."""

    NONE = "none"  # there is no bundle
    WAITING = "waiting"  # another one's are being made
    MAKING = "making"
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Drawn:
    """What there is of one bundle."""

    stage: Stage
    why: str = ""
    """Why there are none, for a person."""
    parts: Mapping[str, str] = field(default_factory=dict)
    stamp: str = ""
    """Of the bundle that they were made from."""
    kept: bool = False
    """Whether the reader's page shows these parts already."""

    @property
    def awaited(self) -> bool:
        """Whether it is worth to ask again in a moment."""
        return self.stage in (Stage.WAITING, Stage.MAKING)


@dataclass(frozen=True, slots=True)
class Access:
    """Whether this reader may see what ranks said, and how else one gets it."""

    allowed: bool
    why: str = ""
    url: str = ""
    """Of the bundle, whole, for a command."""
    page: str = ""
    """Of the page, whole."""


def evidence_sections(body: Mapping[str, Any], drawn: Drawn, access: Access) -> Iterator[str]:
    """The sections that show what ranks said."""
    if drawn.kept:
        return
    if body["bundle"] is None:
        yield section("evidence", "What the ranks said", words("p", _none(body), class_="none"))
    elif not access.allowed:
        yield section("evidence", "What the ranks said", *_withheld(body, access))
    elif drawn.stage is Stage.READY or drawn.parts:
        yield from _shown(drawn)
    else:
        yield section("evidence", "What the ranks said", _told(drawn))


def _shown(drawn: Drawn) -> Iterator[str]:
    parts = drawn.parts
    anew = words("p", "More evidence has come: it is being drawn anew.", class_="none")
    look = (anew if drawn.awaited else "") + parts.get("look", "")
    about = "The records of the moment with the most of them, read apart from what the monitor saw."
    yield section("evidence", "What the ranks' records say", look, about=about)
    if parts.get("graph"):
        about = (
            "An arrow leads from ranks that wait to those for which they wait. "
            "Who stands on the left holds up the rest."
        )
        yield section("graph", "Who waits for whom", parts["graph"], about=about)
    if parts.get("timeline"):
        about = (
            "One row for each rank, or for ranks whose rows are alike. A collective stands in the "
            "same column on all its members: columns are order, not time. Point at a cell for its "
            "sizes, times and call site."
        )
        yield section("collectives", "The last collectives", parts["timeline"], about=about)
    if parts.get("stacks"):
        about = (
            "Where the Python code stood, innermost line first; ranks that stand alike together."
        )
        yield section("stacks", "The stacks", parts["stacks"], about=about)
    if parts.get("limits"):
        yield section("limits", "What limits this", parts["limits"])


def _told(drawn: Drawn) -> str:
    if drawn.stage is Stage.MAKING:
        told = "Graph, collectives and stacks are being made from the saved evidence."
        return words("p", told, class_="none making")
    if drawn.stage is Stage.WAITING:
        told = "Another incident's evidence is being drawn: this one's turn comes next."
        return words("p", told, class_="none making")
    return words("p", f"There is no picture of the evidence: {drawn.why}", class_="none")


def _none(body: Mapping[str, Any]) -> str:
    if body["state"] != "resolved":
        return "No evidence yet: ranks are asked for it when the incident begins to fire."
    return (
        "No evidence was kept: evidence_count is 0, nobody could be asked, or it has grown too old."
    )


def _withheld(body: Mapping[str, Any], access: Access) -> Iterator[str]:
    yield words(
        "p",
        f"Stacks and flight records may hold secrets of the job. {access.why}",
        class_="none",
        data_withheld="yes",
    )
    yield words("p", "This page with them, the bundle, and the same offline:", class_="meta")
    header = '-H "Authorization: Bearer $TOKEN"'
    commands = (
        f"curl {header} {access.page} > incident.html",
        f"curl -OJ {header} {access.url}",
        f"lightkeeper analyze {body['id']}.zip --html report.html",
    )
    shown = "\n".join(map(escaped, commands))
    yield element(
        "pre", shown, class_="commands", tabindex="0", role="group", aria_label="commands"
    )


def links(body: Mapping[str, Any], access: Access, json_path: str) -> Iterator[str]:
    """To the same for programs, and to the bundle."""
    yield element("a", "as JSON", href=json_path)
    bundle = body["bundle"]
    if bundle is not None and access.allowed:
        size = f"{max(1, round(bundle['bytes'] / 1024)):,} KiB"
        yield ", " + words("a", f"its evidence (zip, {size})", href=bundle["url"])
    elif bundle is not None:
        yield ", its evidence: needs the token"
