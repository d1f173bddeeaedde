"""The screen of `top`: facts of the fleet above, its ranks below; what each key does. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from monitor.terminal.answers import Asked, answers
from monitor.terminal.fleet import Fleet, Rank, count
from monitor.terminal.grid import STYLES, Line, cut, lines_of, text_of, width_of
from monitor.terminal.rows import (
    RANK_ORDERS,
    Wanted,
    rank_cells,
    rank_columns,
    sorted_ranks,
)
from monitor.terminal.words import clock

_ORDERS: Final = tuple(RANK_ORDERS)
_COLUMN_OF: Final = {"phase-age": "for", "commit-age": "commit"}
"""Where an order has another name than its column."""
HELP: Final = (
    ("q", "leave"),
    ("s, right", "sort by the next column"),
    ("S, left", "sort by the one before"),
    ("r", "the other way round"),
    ("u", "only who is neither healthy nor waiting for others"),
    ("w", "more columns"),
    ("up, down, page up, page down, home, end", "move"),
    ("?, h", "this help, and away with it"),
)
_KEYS: Final = "q leave  s/S sort  r reverse  u unhealthy  w wide  ? help"


@dataclass(slots=True)
class Top:
    """What the keys have chosen."""

    order: str = "busy"
    reverse: bool = False
    wide: bool = False
    wanted: Wanted = field(default_factory=Wanted)
    at: int = 0
    """The first rank shown."""
    helping: bool = False
    _page: int = 1
    _rows: int = 0
    _sorted: tuple[object, list[Rank]] = (None, [])

    def struck(self, key: str) -> None:
        """What a key changes; others do nothing."""
        match key:
            case "s" | "right":
                self._next(1)
            case "S" | "left":
                self._next(-1)
            case "r":
                self.reverse = not self.reverse
            case "u":
                self.wanted = replace(self.wanted, unhealthy=not self.wanted.unhealthy)
                self.at = 0
            case "w":
                self.wide = not self.wide
            case "?" | "h":
                self.helping = not self.helping
            case _:
                self._move(key)

    def _next(self, by: int) -> None:
        self.order = _ORDERS[(_ORDERS.index(self.order) + by) % len(_ORDERS)]
        self.at = 0

    def _move(self, key: str) -> None:
        by = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self._page, "page down": self._page,
              " ": self._page, "home": -self._rows, "end": self._rows}.get(key, 0)  # fmt: skip
        self.at += by

    def screen(self, asked: Asked, width: int, height: int) -> list[Line]:
        """Exactly what is shown, at most `height` lines of at most `width` cells."""
        head = _head(asked, width)
        if self.helping:
            return [*head, *_help(width)][:height]
        ranks = self._chosen(asked.fleet)
        self._rows, self._page = len(ranks), max(1, height - len(head) - 3)
        self.at = max(0, min(self.at, self._rows - self._page))
        shown = ranks[self.at : self.at + self._page]
        columns = rank_columns(wide=self.wide)
        rows = lines_of(columns, [rank_cells(one, wide=self.wide) for one in shown], width)
        foot: Line = [(cut(self._foot(), width), "dim")]
        return [*head, [("", "")], self._titles(rows[0]), *rows[1:], foot][:height]

    def _chosen(self, fleet: Fleet) -> list[Rank]:
        """Sorted once a look, however many keys are struck."""
        asked = (fleet.now_s, id(fleet), self.order, self.reverse, self.wanted)
        if self._sorted[0] != asked:
            wanted = filter(self.wanted.rank, fleet.ranks)
            self._sorted = (asked, sorted_ranks(wanted, self.order, reverse=self.reverse))
        return self._sorted[1]

    def _titles(self, line: Line) -> Line:
        chosen = _COLUMN_OF.get(self.order, self.order)
        return [(text, "bold reverse" if text == chosen else style) for text, style in line]

    def _foot(self) -> str:
        last = min(self.at + self._page, self._rows)
        which = "unhealthy " if self.wanted.unhealthy else ""
        turned = ", reversed" if self.reverse else ""
        place = f"{min(self.at + 1, last):,}-{last:,} of {self._rows:,} {which}ranks"
        return f"{place} by {self.order}{turned}   {_KEYS}"


def _head(asked: Asked, width: int) -> list[Line]:
    fleet, told = asked.fleet, answers(asked)
    title = [("lightkeeper top", "bold"), (f"  {clock(fleet.now_s)}  {told[0].text}", "")]
    words: Line = []
    for one in told:
        words += [("  " if words else "", ""), (f"{one.about} ", ""), (one.word, one.style)]
    counts = _counts(fleet)
    said = next((line for one in (told[1], told[3]) for line in one.more), told[1].text)
    return [fitted(line, width) for line in (title, words, counts, [(said, "")])]


def _counts(fleet: Fleet) -> Line:
    made: Line = []
    for name, rows in (("ranks", fleet.ranks), ("groups", fleet.groups)):
        made.append((f"{'   ' if made else ''}{len(rows):,} {name}:", ""))
        for health, number in count(rows).items():
            made.append((f" {number:,} {health}", STYLES.get(health, "")))
    return made


def fitted(line: Line, width: int) -> Line:
    """Cut to a width."""
    made: Line = []
    left = width
    for text, style in line:
        kept = cut(text, left)
        made.append((kept, style))
        left -= width_of(kept)
        if kept != text:
            break
    return made


def _help(width: int) -> list[Line]:
    rows = [[(keys, "bold"), (does, "")] for keys, does in HELP]
    widest = max(len(keys) for keys, _ in HELP)
    return [
        [("", "")],
        *(fitted([(f"{row[0][0]:<{widest}}  ", "bold"), row[1]], width) for row in rows),
    ]


def plain(lines: list[Line]) -> str:
    """A screen without its styles, for a look at it in a test or a picture."""
    return "\n".join(text_of(line) for line in lines)
