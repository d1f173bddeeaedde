"""Pieces of HTML and SVG. Every text and every attribute passes `escaped`; nothing else quotes."""

from __future__ import annotations

import html
from typing import Final

from monitor.reports.wording import clean

_SHRINKS: Final = 1750
"""Pixels of a drawing that a page of 1,300 may still shrink; wider ones scroll."""


def escaped(text: object, at_most: int = 2000) -> str:
    """Somebody's text, harmless between tags and inside quoted attributes."""
    return html.escape(clean(str(text), at_most), quote=True)


def element(name: str, *inside: str, **attributes: object) -> str:
    """`<name attributes>inside</name>`; `inside` is markup already, attributes are not.

    `class_` is `class`, and `view_box` and its like get their dash: `text_anchor`.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{''.join(inside)}</{name}>"


def words(name: str, text: object, **attributes: object) -> str:
    """An element that holds nothing but text."""
    return element(name, escaped(text), **attributes)


def drawing(width: float, height: float, label: str, *inside: str) -> str:
    """An SVG that keeps its size on a wide page and is read out by its label."""
    shrinks = ' class="shrinks"' if width < _SHRINKS else ""
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    named = f'aria-label="{escaped(label)}"'
    box = f'<div class="draw" tabindex="0" role="group" {named}>'  # scrolled by keys too
    return f'{box}<svg{shrinks} {size} role="img" {named}>{"".join(inside)}</svg></div>'


def fitted(text: str, width: float, size: float = 12) -> str:
    """As much as surely fits: SVG neither wraps nor measures. The whole belongs into a `<title>`.

    Widths are of a common sans-serif (DejaVu Sans, the widest of usual system fonts), in ems.
    """
    room = width / size
    text = clean(text, 400)
    for index, letter in enumerate(text):
        room -= 0.72 if letter.isupper() or letter in "@%&" or not letter.isascii() else 0.6
        if room < 0:
            return text[: max(0, index - 1)] + "…"
    return text
