"""Texts, names, numbers and times for people in few words, the same everywhere; and how names are
sorted, and values grouped. Pure.

Text from outside becomes one harmless line here (`clean`).
"""

from __future__ import annotations

import functools
import math
import re
import unicodedata
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
LONGEST: Final = 2000
NONE: Final = "\N{EN DASH}"
"""Shown for an unknown value."""
_DIGITS: Final = re.compile(r"([0-9]+)")
_NAMED: Final = 5
_UNKNOWN: Final = "an unknown time"


def clean(text: str, at_most: int = LONGEST) -> str:
    """Text from outside in one line, without characters that control a terminal or reorder text.

    Removes control, format (see "Trojan Source", CVE-2021-42574) and surrogate characters. Reads at
    most 8 characters for each that may be left.
    """
    if not (text.isascii() and text.isprintable()):
        text, cut = text[: 8 * at_most], "…" if len(text) > 8 * at_most else ""
        line = "".join(" " if char.isspace() else char for char in text)
        harmless = (char for char in line if unicodedata.category(char) not in {"Cc", "Cf", "Cs"})
        text = " ".join("".join(harmless).split()) + cut  # a removed character may leave two blanks
    return text if len(text) <= at_most else text[: at_most - 1] + "…"


def sentence(text: str) -> str:
    """A reason as a sentence. A rank's name at its start keeps its case."""
    line = clean(text)
    begins = line.split(" ", 1)[0]
    return line[:1].upper() + line[1:] if begins.isalpha() and begins.islower() else line


def plain(name: object) -> str:
    """An identifier as words."""
    return str(name).replace("_", " ")


def counted(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `2 microbatches`."""
    many = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def no_such(what: str, name: str, existing: Iterable[str]) -> str:
    """That nothing has this name, and the nearest names, else the first."""
    names = sorted({*existing} - {""})
    near = get_close_matches(name, names) or names
    some = ", ".join(clean(word, 80) for word in near[:_NAMED])
    more = f" and {len(near) - _NAMED:,} more" if len(near) > _NAMED else ""
    return f"no {what} {clean(name, 80)!r}" + (f"; there is {some}{more}" if some else "")


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
    return f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


def ago(seconds: float | None) -> str:
    """`12 s ago`, `1 min ago`."""
    if seconds is not None and 60 <= seconds < 120:
        return "1 min ago"
    return NONE if seconds is None else f"{span(seconds)} ago"


def age(seconds: float | None) -> str:
    """A short age in one word: 0.4s, 12s, 3m, 5h, 2d."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    for unit, length, most in (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48)):
        if seconds < length * most:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds / 86400:.0f}d"


def utc(at_s: float | None) -> str:
    """`2026-11-23 04:44:21 UTC`."""
    return NONE if at_s is None else _moment(at_s, "%Y-%m-%d %H:%M:%S UTC")


def time_of_day(at_s: float) -> str:
    """`04:44:21 UTC`, if the day is shown beside it."""
    return _moment(at_s, "%H:%M:%S UTC")


def _moment(at_s: float, form: str) -> str:
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime(form)
    except (OverflowError, ValueError, OSError):
        return _UNKNOWN


def time_of_rank(at_ns: int) -> str:
    """`04:44:21.123`, UTC, by a rank's own clock; unknown: a hyphen."""
    seconds, nanos = divmod(at_ns, 10**9)
    text = _moment(seconds, "%H:%M:%S") if at_ns >= 0 else _UNKNOWN
    return "-" if text == _UNKNOWN else f"{text}.{nanos // 10**6:03d}"


def whole(value: int | None) -> str:
    """`1,100`; unknown: a dash."""
    return NONE if value is None else f"{value:,}"


def figure(value: object) -> str:
    """0.3333333333 is 0.3333."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


@functools.lru_cache(maxsize=1 << 17)  # names recur at each look
def natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A key that sorts `rg_2` before `rg_10`."""
    return tuple(
        (False, int(part[:18]), part) if part.isascii() and part.isdigit() else (True, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Key -> its values, in order."""
    values: dict[K, list[V]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values
