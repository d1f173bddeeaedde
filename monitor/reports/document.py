"""The frame of every page that is written on the monitor: title, navigation, style. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from monitor.reports.markup import element, words

_PLACES: Final = (("/", "fleet"), ("/incidents", "incidents"))


def document(
    title: str,
    *sections: str,
    script: str | None = None,
    styles: Sequence[str] = (),
    here: str = "",
) -> str:
    """A whole page in the monitor's own clothes; it reads without its script.

    `sections` are markup. `script` is the path of a file of ours: the page's policy allows no
    other, and no style or script within the page. `styles` are more style sheets of ours, `here`
    is the path of the place to which the page belongs.
    """
    head = element(
        "head",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        words("title", f"{title} · lightkeeper"),
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">',
        '<link rel="stylesheet" href="/static/page.css">',
        *(f'<link rel="stylesheet" href="{sheet}">' for sheet in styles),
        "" if script is None else element("script", src=script, type="module"),
    )
    links = " ".join(
        words("a", name, href=path, aria_current="page" if path == here else None)
        for path, name in _PLACES
    )
    body = element(
        "body",
        element("header", words("a", "lightkeeper", href="/", class_="home"),
                element("nav", links, aria_label="pages")),
        element("main", *sections),
        element("footer", links),
        class_="plain",
    )  # fmt: skip
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'
