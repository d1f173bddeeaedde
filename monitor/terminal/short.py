"""The screen of `status`: four answers, and the groups that matter, worst first. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from monitor.terminal.answers import Answer, Asked, answers
from monitor.terminal.fleet import Fleet, Group, Rank, count
from monitor.terminal.grid import STYLES, Line, cut, lines_of
from monitor.terminal.rows import GROUP_COLUMNS, group_cells, sorted_groups

_LABEL: Final = 14
"""Cells of the names at the left."""
_INCIDENTS: Final = 3
"""Incidents whose evidence is named."""
Link = Callable[[Mapping[str, Any]], str]


def short(asked: Asked, groups: int, width: int | None, link: Link) -> list[Line]:
    """At most so many groups; `link`: where an incident's evidence is, or nothing."""
    made: list[Line] = []
    for one in answers(asked):
        made += _answer(one, width)
        if one.about == "held back by":
            made += _evidence(asked.fleet, link)
    made += [_counted("groups", asked.fleet.groups), _counted("ranks", asked.fleet.ranks)]
    return made + list(_groups(asked.fleet, groups, width))


def _answer(one: Answer, width: int | None) -> Iterator[Line]:
    label = f"{one.about:<{_LABEL}}"
    said: Line = [(label, "bold"), (one.word, one.style)]
    rest = f"  {one.text}"
    left = None if width is None else max(0, width - _LABEL - len(one.word))
    yield [*said, (rest if left is None else cut(rest, left), "")]
    for text in one.more:
        for part in [text] if width is None else _wrapped(text, max(20, width - _LABEL)):
            yield [(" " * _LABEL, ""), (part, "")]


def _evidence(fleet: Fleet, link: Link) -> Iterator[Line]:
    """Whole however long: to be copied."""
    for one in fleet.incidents[:_INCIDENTS]:
        where = link(one)
        if where:
            yield [(" " * _LABEL, ""), (f"evidence: {where}", "dim")]


def _counted(about: str, rows: tuple[Group, ...] | tuple[Rank, ...]) -> Line:
    made: Line = [(f"{about:<{_LABEL}}", "bold"), (f"{len(rows):,}", "")]
    for at, (health, number) in enumerate(count(rows).items()):
        made += [("  " if at == 0 else ", ", ""), (f"{number:,} {health}", STYLES.get(health, ""))]
    return made


def _groups(fleet: Fleet, most: int, width: int | None) -> Iterator[Line]:
    if not most or not fleet.groups:
        return
    worst = sorted_groups(fleet.groups, "health")
    yield [("", "")]
    yield from lines_of(GROUP_COLUMNS, [group_cells(one) for one in worst[:most]], width)
    more = len(worst) - most
    if more > 0:
        yield [(f"and {more:,} more, none of them worse: lightkeeper groups", "dim")]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
