"""Jinja2 templates, and what they share: every text is cleaned, then escaped.

A page's template extends document.html. An undefined name in a template is an error.
"""

from __future__ import annotations

import gzip
import shlex
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha1
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from lightkeeper.monitor.decide.headline import SICK
from lightkeeper.monitor.model.units import (
    LONGEST,
    NONE,
    ago,
    clean,
    counted,
    figure,
    plain,
    sentence,
    span,
    time_of_day,
    utc,
    whole,
)
from lightkeeper.monitor.show.graph_svg import wait_label, wait_sentence
from lightkeeper.monitor.show.wording import LOOKS, doing, pause_line

_FOLDERS: Final = [Path(__file__).with_name(name) for name in ("templates", "web")]
"""Templates, and the style sheets that a report carries along."""
_SHORT: Final = 24
_SHORT_MARKUP: Final = 18


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class Page:
    """As it is sent. A browser need not fetch the one it has, and may get it compressed."""

    text: str
    status: int = 200

    @cached_property
    def html(self) -> bytes:
        return self.text.encode(errors="replace")

    @cached_property
    def tag(self) -> str:
        return sha1(self.html, usedforsecurity=False).hexdigest()

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.html, 1)


def path_of(kind: str, name: str) -> str:
    """`/groups/rg_1`."""
    return f"/{kind}/{quote(name, safe='', errors='replace')}"


def harmless(value: object) -> str:
    """Clean a value for a template, which then escapes it; markup passes as it is."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else clean(str(value), LONGEST)


def attributes(**named: object) -> Markup:
    """` class="x" data-key="y"`: None and False are left out, True has no value."""
    return Markup("").join(
        Markup(' {}="{}"').format(
            name.rstrip("_").replace("_", "-"), "" if value is True else harmless(value)
        )
        for name, value in named.items()
        if value is not None and value is not False
    )


def lines(texts: Iterable[object]) -> Markup:
    """One a line, in a `pre`."""
    return Markup("\n").join(harmless(line) for line in texts)


def is_short(cell: object) -> bool:
    """True if a table cell must stay on one line; a date and time must too."""
    if isinstance(cell, Markup):
        return len(cell.striptags()) <= _SHORT_MARKUP
    return len(str(cell)) <= _SHORT


def elapsed(at_s: float, began_s: float) -> str:
    """`+11.0 s`, since the beginning; in larger units if it is long."""
    passed_s = at_s - began_s
    return f"+{passed_s:.1f} s" if passed_s < 600 else f"+{span(passed_s)}"


@cache
def environment() -> Environment:
    """Made with the first page."""
    env = Environment(
        loader=FileSystemLoader(_FOLDERS), autoescape=True, undefined=StrictUndefined,
        finalize=harmless, trim_blocks=True, lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    filters: tuple[Callable[..., object], ...] = (
        sentence, plain, span, utc, whole, time_of_day, figure, lines, elapsed, ago, shlex.quote,
        doing,
    )  # fmt: skip
    env.filters.update({function.__name__: function for function in filters})
    env.globals.update(
        attributes=attributes, counted=counted, path_of=path_of, clean=clean,
        pause_line=pause_line, NONE=NONE, SICK=SICK, NEWLINE=Markup("\n"),
        is_short=is_short, looks=LOOKS, wait_label=wait_label, wait_sentence=wait_sentence,
    )  # fmt: skip
    env.globals["ui"] = env.get_template("ui.html").module
    return env


def render(name: str, /, **values: Any) -> str:
    """Each template is compiled once."""
    return environment().get_template(name).render(values)


def render_text(name: str, /, **values: Any) -> str:
    """Plain text, every value of it one line."""
    return _texts().get_template(name).render(values)


@cache
def _texts() -> Environment:
    """One, since it keeps what it has compiled."""
    return environment().overlay(autoescape=False)


def filled(start: str, text: object, width: int = 100) -> Markup:
    """A text in lines that fit a terminal or a mail; each begins as far in as `start` is long."""
    return Markup(  # noqa: S704 - for `render_text`
        textwrap.fill(
            harmless(text), width, initial_indent=start, subsequent_indent=" " * len(start),
            break_long_words=False, break_on_hyphens=False,
        )
    )  # fmt: skip


def moment(at_s: float) -> Markup:
    """A time of day in the zone that the reader has chosen."""
    return Markup(macro("at")(at_s, "time"))  # noqa: S704 - our own markup


def macro(name: str) -> Callable[..., object]:
    """One of ui.html, for what is made in Python."""
    return getattr(environment().globals["ui"], name)  # type: ignore[no-any-return]
