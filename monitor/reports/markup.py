"""Pieces of HTML. Every text and every attribute passes `escaped`; nothing else quotes."""

from __future__ import annotations

import html

from monitor.reports.wording import clean


def escaped(text: object, at_most: int = 2000) -> str:
    """Somebody's text, harmless between tags and inside quoted attributes."""
    return html.escape(clean(str(text), at_most), quote=True)


def element(name: str, *inside: str, **attributes: object) -> str:
    """`<name attributes>inside</name>`; `inside` is markup already, attributes are not.

    `class_` is `class`, and `data_key` and its like get their dash.
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
