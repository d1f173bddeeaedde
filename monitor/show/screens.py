"""What a terminal shows of the fleet: the screens of `status`, `top` and the incidents. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from monitor.decide.view import GroupView, IncidentReport
from monitor.decide.view_json import RankJson
from monitor.show.fleet_rows import (
    GROUP_COLUMNS,
    STYLES,
    Fleet,
    Wanted,
    count,
    group_cells,
    rank_cells,
    rank_columns,
    sorted_groups,
    sorted_ranks,
)
from monitor.show.status import Answer, StatusFacts, answers
from monitor.show.text_table import (
    Cell,
    Column,
    Line,
    clock,
    cut,
    lines_of,
    text_of,
    width_of,
    word,
)
from monitor.show.wording import listed

_LABEL: Final = 14
"""Cells of the names at the left."""
_INCIDENTS: Final = 3
"""Incidents whose evidence is named."""
Link = Callable[[IncidentReport], str]


def short(asked: StatusFacts, groups: int, width: int | None, link: Link) -> list[Line]:
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


def _counted(about: str, rows: tuple[GroupView, ...] | tuple[RankJson, ...]) -> Line:
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
        yield [(f"and {more:,} more, none of them worse: lightkeeper get groups", "dim")]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


_COLUMN_OF: Final = {"phase-age": "for", "commit-age": "commit"}
"""Where an order has another name than its column."""
_ALL: Final = Wanted()


def top_screen(
    asked: StatusFacts,
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


def _head(asked: StatusFacts, width: int) -> list[Line]:
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


# The live list of incidents.

_INCIDENT_COLUMNS: Final = (
    Column("since"),
    Column("state", least=8),
    Column("severity", spare=2),
    Column("kind"),
    Column("culprits"),
    Column("outcome", spare=1, least=8),
    Column("what", spare=3),
)
_INCIDENT_STYLES: Final = {
    "pending": "yellow", "firing": "bold red", "evicting": "bold yellow", "resolved": "green",
    "critical": "bold red", "warning": "yellow", "info": "cyan",
}  # fmt: skip


def incidents_screen(reports: Sequence[IncidentReport], width: int, height: int) -> list[Line]:
    """Newest first, as many as fit; the last line says how many do not, and how to leave."""
    room = max(0, height - 2)
    shown = lines_of(_INCIDENT_COLUMNS, [_incident_cells(one) for one in reports[:room]], width)
    more = len(reports) - room
    tail = f"and {more:,} more   " if more > 0 else ""
    none = "" if reports else "no incident   "
    return [*shown, [(cut(f"{none}{tail}Ctrl-C: leave", width), "dim")]]


def _incident_cells(one: IncidentReport) -> list[Cell]:
    incident = one.incident
    return [
        (clock(incident.milestones.first_seen_s), ""),
        (word(incident.state), _INCIDENT_STYLES.get(incident.state, "")),
        (word(incident.severity), _INCIDENT_STYLES.get(incident.severity, "")),
        (word(incident.kind), ""),
        (listed(incident.culprits, 2) or "-", ""),
        (word(one.account.outcome), ""),
        (one.face.says, ""),
    ]
