"""Pages as trees of elements, which become HTML here and live elements in the browser. Pure.

One description of a page serves both: a reader without JavaScript gets `to_html`, an open page gets
`to_wire` of what has changed, and builds it with `createElement` and `textContent`. Text is text on
both ways: neither knows markup.
"""

from __future__ import annotations

import json
from typing import Any, Final

from monitor.reports.markup import element, escaped
from monitor.reports.wording import clean

_LONGEST: Final = 2000


class Node:
    """One element: its name, its attributes, and what is in it. Never changed."""

    __slots__ = ("_json", "attributes", "inside", "name")

    def __init__(
        self, name: str, inside: tuple[Node | str, ...], attributes: dict[str, str]
    ) -> None:
        self.name = name
        self.inside = inside
        self.attributes = attributes
        self._json: str | None = None

    def json(self) -> str:
        """As it travels; made once."""
        if self._json is None:
            wire = to_wire(self)
            told = json.dumps(wire, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
            self._json = told
        return self._json

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.json() == other.json()

    def __hash__(self) -> int:
        return hash(self.json())

    def __repr__(self) -> str:
        return to_html(self)


def el(name: str, *inside: Node | str | None, **attributes: object) -> Node:
    """An element; None inside is left out, and so is an attribute that is None or False.

    `class_` is `class`, `aria_label` is `aria-label`. Other people's text may stand anywhere.
    """
    kept = tuple(
        clean(one, _LONGEST) if isinstance(one, str) else one for one in inside if one is not None
    )
    told = {
        key.rstrip("_").replace("_", "-"): "" if value is True else clean(str(value), _LONGEST)
        for key, value in attributes.items()
        if value is not None and value is not False
    }
    return Node(name, kept, told)


def to_html(node: Node | str) -> str:
    """Markup, with everything escaped."""
    if isinstance(node, str):
        return escaped(node)
    attributes = {f"{key}_": value for key, value in node.attributes.items()}
    return element(node.name, *(to_html(one) for one in node.inside), **attributes)


def to_wire(node: Node | str) -> Any:
    """`[name, {attributes}, child, ...]` of plain JSON types; a text is itself."""
    if isinstance(node, str):
        return node
    return [node.name, node.attributes, *(to_wire(one) for one in node.inside)]
