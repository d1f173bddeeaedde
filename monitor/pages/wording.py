"""Numbers and times as the pages put them. Pure."""

from __future__ import annotations

import math
from typing import Final
from urllib.parse import quote

from monitor.reports import incident_pieces

NONE: Final = "\N{EN DASH}"
"""Where nothing is known."""


def span(seconds: float | None) -> str:
    """`0.4 s`, `43 s`, `12 min`, `3 h`, `5 days`."""
    if seconds is None or not math.isfinite(seconds):
        return NONE
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"


def ago(seconds: float) -> str:
    """The same for what is over, in steps so coarse that a list seldom changes."""
    if seconds < 60:
        return "just now"
    return f"{span(seconds // 60 * 60 if seconds < 7200 else seconds)} ago"


def utc(at_s: float | None) -> str:
    """A moment for people anywhere."""
    return NONE if at_s is None else incident_pieces.utc(at_s)


def whole(value: int | None) -> str:
    """`1,100`; nobody knows: a dash."""
    return NONE if value is None else f"{value:,}"


def figure(value: object) -> str:
    """0.3333333333 is 0.3333."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def path_of(kind: str, name: str) -> str:
    """`/groups/rg_1`."""
    return f"/{kind}/{quote(name, safe='')}"


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts `rg_2` before `rg_10`."""
    parts: list[tuple[int, int, str]] = []
    word, digits = "", ""
    for letter in name:
        if letter.isascii() and letter.isdigit():
            if word:
                parts.append((1, 0, word))
                word = ""
            digits += letter
        else:
            if digits:
                parts.append((0, int(digits[:18]), digits))
                digits = ""
            word += letter
    if word or digits:
        parts.append((0, int(digits[:18]), digits) if digits else (1, 0, word))
    return tuple(parts)
