"""What the saved evidence of an incident shows, or why it is not there to be seen. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from monitor.reports.incident_pieces import section
from monitor.reports.markup import element, escaped, words


@dataclass(frozen=True, slots=True)
class Stacks:
    """What is shown of one bundle."""

    markup: str = ""
    why: str = ""
    """Why there are none, for a person."""
    stamp: str = ""
    """Of the bundle that they are from."""
    kept: bool = False
    """Whether the reader's page shows them already."""


@dataclass(frozen=True, slots=True)
class Access:
    """Whether this reader may see what ranks said, and how else one gets it."""

    allowed: bool
    why: str = ""
    url: str = ""
    """Of the bundle, whole, for a command."""
    page: str = ""
    """Of the page, whole."""


def evidence_sections(body: Mapping[str, Any], stacks: Stacks, access: Access) -> Iterator[str]:
    """The sections that show what ranks said."""
    if stacks.kept:
        return
    if body["bundle"] is None:
        yield section("evidence", "What the ranks said", words("p", _none(body), class_="none"))
    elif not access.allowed:
        yield section("evidence", "What the ranks said", *_withheld(body, access))
    else:
        none = stacks.why or "No rank was asked for its stacks."
        about = "Where the Python code stood, innermost line first; ranks that stand alike once."
        shown = stacks.markup or words("p", none, class_="none")
        yield section("stacks", "The stacks", shown, _offline(body, access), about=about)


def _offline(body: Mapping[str, Any], access: Access) -> str:
    """How to see the rest of the bundle."""
    return words("p", "Who waits for whom by the flight records:", class_="meta") + _commands(
        f"curl -OJ {access.url}", f"lightkeeper analyze {body['id']}.zip --html report.html"
    )


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
    yield _commands(*commands)


def _commands(*lines: str) -> str:
    shown = "\n".join(map(escaped, lines))
    return element(
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
