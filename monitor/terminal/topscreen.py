"""The screen of `top`: facts of the fleet above, its ranks below. Pure."""

from __future__ import annotations

from typing import Final

from monitor.terminal.answers import Asked, answers
from monitor.terminal.fleet import Fleet, count
from monitor.terminal.grid import STYLES, Line, cut, lines_of, text_of, width_of
from monitor.terminal.rows import (
    Wanted,
    rank_cells,
    rank_columns,
    sorted_ranks,
)
from monitor.terminal.words import clock

_COLUMN_OF: Final = {"phase-age": "for", "commit-age": "commit"}
"""Where an order has another name than its column."""
_ALL: Final = Wanted()


def top_screen(
    asked: Asked,
    width: int,
    height: int,
    *,
    order: str = "busy",
    reverse: bool = False,
    wide: bool = False,
    wanted: Wanted = _ALL,
) -> list[Line]:
    """Exactly what is shown, at most `height` lines of at most `width` cells."""
    head = _head(asked, width)
    ranks = sorted_ranks(filter(wanted.rank, asked.fleet.ranks), order, reverse=reverse)
    shown = ranks[: max(1, height - len(head) - 3)]
    rows = lines_of(rank_columns(wide=wide), [rank_cells(one, wide=wide) for one in shown], width)
    chosen = _COLUMN_OF.get(order, order)
    titles = [(text, "bold reverse" if text == chosen else style) for text, style in rows[0]]
    which = "unhealthy " if wanted.unhealthy else ""
    turned = ", reversed" if reverse else ""
    foot = f"{len(shown):,} of {len(ranks):,} {which}ranks by {order}{turned}   Ctrl-C: leave"
    return [*head, [("", "")], titles, *rows[1:], [(cut(foot, width), "dim")]][:height]


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


def plain(lines: list[Line]) -> str:
    """A screen without its styles, for a look at it in a test or a picture."""
    return "\n".join(text_of(line) for line in lines)
