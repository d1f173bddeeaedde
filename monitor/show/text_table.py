"""Rows of cells as lines of a terminal: aligned, cut to a width, without boxes. Pure.

In a pipe nothing is cut, fields stand at least two spaces apart and none is empty or holds two
spaces in a row, so that `awk -F '  +'` reads any of our tables.
"""

from __future__ import annotations

import datetime
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.show.wording import clean


def clock(at_s: float | None, form: str = "%H:%M:%S") -> str:
    """In local time."""
    if at_s is None:
        return "-"
    at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).astimezone()
    return at.strftime(form)


Span = tuple[str, str]
"""Text and its style: an empty one is plain."""
Line = list[Span]
Cell = Span

GAP: Final = 2
CELL: Final = 300
"""Characters of a cell at most."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    right: bool = False
    """Numbers stand right."""
    spare: int = 0
    """Where it gets narrow those with the highest number go first; those with 0 never do."""
    least: int = 0
    """Cells that it has at least: what moves need not make the others move."""
    of: Callable[[Any], object] = str
    """What it shows of an item: a value, or a `Cell` where that has a style."""

    def cell(self, item: Any) -> Cell:
        value = self.of(item)
        return value if isinstance(value, tuple) else (word(value), "")


def width_of(text: str) -> int:
    """Terminal cells: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def cut(text: str, width: int) -> str:
    """At most so many cells; what is cut ends with an ellipsis."""
    if width_of(text) <= width:
        return text
    kept = ""
    for one in text:
        if width_of(kept + one) >= width:
            break
        kept += one
    return kept + "…" if width > 0 else ""


def table(columns: Sequence[Column], items: Iterable[Any], width: int | None = None) -> list[Line]:
    """A line of names and one an item."""
    rows = [[column.cell(item) for column in columns] for item in items]
    return lines_of(columns, rows, width)


def lines_of(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None = None
) -> list[Line]:
    """A line of names and one a row; in `width` cells spare columns go, then the last is cut."""
    rows = [
        [(" ".join(clean(text, CELL).split()) or "-", style) for text, style in row] for row in rows
    ]
    wide = [
        max([width_of(column.name), column.least, *(width_of(row[at][0]) for row in rows)])
        for at, column in enumerate(columns)
    ]
    kept = _kept(columns, wide, width)
    head = [(column.name, "bold") for column in columns]
    return [_line(columns, row, wide, kept, width) for row in (head, *rows)]


def _kept(columns: Sequence[Column], wide: Sequence[int], width: int | None) -> list[int]:
    kept = list(range(len(columns)))
    for at in sorted(kept, key=lambda one: -columns[one].spare):
        if width is None or _sum(wide, kept) <= width or not columns[at].spare:
            break
        kept.remove(at)
    return kept


def _sum(wide: Sequence[int], kept: Sequence[int]) -> int:
    return sum(wide[at] + GAP for at in kept) - GAP


def _line(
    columns: Sequence[Column],
    row: Sequence[Cell],
    wide: Sequence[int],
    kept: Sequence[int],
    width: int | None,
) -> Line:
    made: Line = []
    used = 0
    for at in kept:
        text, style = row[at]
        fill = " " * (wide[at] - width_of(text))
        before = " " * GAP if made else ""
        last = at == kept[-1]
        if columns[at].right:
            before += fill
        room = None if width is None else width - used - len(before)
        if room is not None and room <= 0:
            break
        shown = text if room is None else cut(text, room)
        after = "" if columns[at].right or last else fill
        if room is not None:
            after = after[: room - width_of(shown)]
        made += [(before, ""), (shown, style), (after, "")]
        used += len(before) + width_of(shown) + len(after)
    return [span for span in made if span[0]]


def text_of(line: Iterable[Span]) -> str:
    return "".join(text for text, _ in line).rstrip()


def show(value: object) -> str:
    """A value for a cell; a dash for what is not known."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(show(one) for one in value) or "-"
        case _:
            return " ".join(str(value).split())


def word(value: object) -> str:
    """The same as one word: without a space in it."""
    return "_".join(show(value).split()) or "-"


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
