"""One page at one moment, and what is new of it at the next. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from monitor.pages.tree import Node

SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Frame:
    """A page; every part and item also as the JSON in which it travels, for comparing."""

    title: str
    head: tuple[Node, ...]
    """Parts above the main content."""
    parts: tuple[Node, ...]
    """Each has an id."""
    items: Mapping[str, Node]
    """Of the list with `data-items`, in order; a key each."""
    facts: Mapping[str, Any]
    """For programs."""
    found: bool = True
    """Whether there is such a thing; a page of what is not known says so."""
    wire: Mapping[str, str] = field(default_factory=dict)
    """Part -> JSON."""
    item_wire: Mapping[str, str] = field(default_factory=dict)


def frame(
    title: str,
    head: tuple[Node, ...],
    parts: tuple[Node, ...],
    *,
    items: Mapping[str, Node] | None = None,
    facts: Mapping[str, Any] | None = None,
    found: bool = True,
) -> Frame:
    """A frame with what travels of it."""
    items = items or {}
    return Frame(
        title=title, head=head, parts=parts, items=items, facts=facts or {}, found=found,
        wire={part.attributes["id"]: part.json() for part in (*head, *parts)},
        item_wire={key: one.json() for key, one in items.items()},
    )  # fmt: skip


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def state_of_all(after: Frame) -> str:
    """Everything, as the inside of a JSON object: its braces come from who sends it."""
    return ",".join(
        (
            '"full":true',
            f'"title":{_dump(after.title)}',
            f'"facts":{_dump(after.facts)}',
            f'"parts":{{{_joined(after.wire)}}}',
            f'"items":{{{_joined(after.item_wire)}}}',
            f'"order":{_dump(list(after.items))}',
        )
    )


def news(before: Frame, after: Frame) -> str:
    """What differs, in the same form; `order` only where items came or went."""
    said = ['"full":false', f'"title":{_dump(after.title)}', f'"facts":{_dump(after.facts)}']
    parts = {key: one for key, one in after.wire.items() if before.wire.get(key) != one}
    items = {key: one for key, one in after.item_wire.items() if before.item_wire.get(key) != one}
    said += [f'"parts":{{{_joined(parts)}}}', f'"items":{{{_joined(items)}}}']
    if list(before.items) != list(after.items):
        said.append(f'"order":{_dump(list(after.items))}')
    return ",".join(said)


def _joined(made: Mapping[str, str]) -> str:
    return ",".join(f"{_dump(key)}:{one}" for key, one in made.items())
