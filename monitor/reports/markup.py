"""Pieces of HTML and SVG. Every text and every attribute passes `escaped`; nothing else quotes."""

from __future__ import annotations

import html

from monitor.reports.wording import clean


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
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    named = f'role="img" aria-label="{escaped(label)}"'
    return f'<div class="draw"><svg {size} {named}>{"".join(inside)}</svg></div>'


def clipped(text: str, letters: int) -> str:
    """At most so many letters; the whole text belongs into a `<title>` then."""
    return text if len(text) <= letters else text[: letters - 1] + "…"
