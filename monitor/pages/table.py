"""Tables that become lists of labelled lines on a phone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from monitor.pages.tree import Node, el

_SHORT: Final = 24
"""Characters of a cell that is not broken into lines: a date and time too."""

Cell = Node | str


def table(heads: Sequence[str], rows: Iterable[tuple[str, Sequence[Cell]]], label: str) -> Node:
    """A table; each row has a key, by which an open page knows it again."""
    head = el("thead", el("tr", *(el("th", one, scope="col") for one in heads)))
    body = el(
        "tbody",
        *(
            el("tr", *(_cell(one, name) for one, name in zip(cells, heads, strict=True)),
               data_key=key)
            for key, cells in rows
        ),
    )  # fmt: skip
    return el("div", el("table", head, body, aria_label=label), class_="wide")


def _cell(cell: Cell, head: str) -> Node:
    text = isinstance(cell, str)
    return el("td", cell, data_label=head,
              class_="short" if text and len(str(cell)) <= _SHORT else None)  # fmt: skip


def facts(pairs: Iterable[tuple[str, Cell]], class_: str = "pairs") -> Node:
    """Names and what they are."""
    return el(
        "dl",
        *(el("div", el("dt", name), el("dd", told), data_key=name) for name, told in pairs),
        class_=class_,
    )


def section(part: str, title: str, *inside: Node | str | None) -> Node:
    """A part with a heading; `part` is its id."""
    name = f"{part}-title"
    return el("section", el("h2", title, id=name), *inside, id=part, aria_labelledby=name)


def nothing(text: str) -> Node:
    """Said where a list is empty."""
    return el("p", text, class_="none")
