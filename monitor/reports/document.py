"""The frame of every page of the monitor: title, navigation, style. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from monitor.reports.markup import element, escaped, words

_PLACES: Final = (("/", "Fleet"), ("/incidents", "Incidents"))
_DATA: Final = (
    ("/v1/snapshot", "snapshot"),
    ("/v1/incidents", "incidents"),
    ("/v1/quarantine", "quarantine"),
    ("/v1/policy", "policy"),
    ("/v1/sd", "targets"),
    ("/metrics", "metrics"),
    ("/healthz", "health"),
)


def document(
    title: str,
    *sections: str,
    script: str | None = None,
    styles: Sequence[str] = (),
    here: str = "",
    notice: str = "",
    data: Mapping[str, str] | None = None,
    again_s: int | None = None,
) -> str:
    """A whole page in the monitor's own clothes; it reads without its script.

    The page's policy allows files of ours only, and no style or script within the page.

    Args:
        title: of the tab.
        sections: markup.
        script: path of a JavaScript module of ours.
        styles: paths of style sheets over and above the common one.
        here: path of the place in the navigation that this page is, or belongs to.
        notice: markup between the header and the sections.
        data: `data-` attributes of the body, for the script.
        again_s: seconds after which the browser loads it again by itself.
    """
    sheets = ("/static/page.css", *styles)
    head = element(
        "head",
        '<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        "" if again_s is None else f'<meta http-equiv="refresh" content="{again_s}">',
        words("title", f"{title} · lightkeeper"),
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">',
        *(f'<link rel="stylesheet" href="{escaped(sheet)}">' for sheet in sheets),
        "" if script is None else element("script", src=script, type="module"),
    )
    body = element(
        "body",
        words("a", "Skip to the content", href="#main", class_="skip"),
        _header(here),
        element("section", notice, aria_label="Notices", class_="notices") if notice else "",
        element("main", *sections, id="main", tabindex="-1"),
        _footer(),
        **{f"data_{name}": value for name, value in (data or {}).items()},
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def _header(here: str) -> str:
    icon = '<img src="/static/icon.svg" alt="" width="26" height="26">'
    links = (
        words("a", name, href=path, aria_current="page" if path == here else None)
        for path, name in _PLACES
    )
    return element(
        "header",
        element("a", icon, words("span", "lightkeeper"), href="/", class_="home"),
        element("nav", *links, aria_label="Pages"),
    )


def _footer() -> str:
    links = (words("a", name, href=path) for path, name in _DATA)
    return element("footer", words("span", "As data:"), *links)
