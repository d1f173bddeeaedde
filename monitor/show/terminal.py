"""What is drawn on a terminal: tables, and the screens of `status` and `top`. Pure.

Rows become lines: aligned, cut to a width, without boxes. In a pipe nothing is cut, fields are at
least two spaces apart and none is empty or has two spaces in a row, so that `awk -F '  +'` reads
any of our tables. A row is what the monitor answered; its texts come from outside: `lines_of`
makes them safe.
"""

from __future__ import annotations

import datetime
import textwrap
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lightkeeper.monitor.show.wording import ORDER, UNKNOWN, clean, figure, natural
from lightkeeper.worker_server.plain_text import escaped

Span = tuple[str, str]
"""Text and its style; an empty style is plain."""
Line = list[Span]
Row = Mapping[str, Any]

GAP: Final = 2
CELL: Final = 300
"""Most characters of a cell."""
STYLES: Final = {
    **dict.fromkeys(("healthy", "resolved"), "green"),
    **dict.fromkeys(("waiting", "late", "pending", "warning"), "yellow"),
    **dict.fromkeys(("slow", "evicting"), "bold yellow"),
    **dict.fromkeys(("stalled", "corrupt", "firing", "critical"), "bold red"),
    **dict.fromkeys(("unreachable", "unknown"), "magenta"),
    **dict.fromkeys(("-", "ended", "finished"), "dim"),
    "dead": "red", "traced": "bold magenta", "starting": "blue", "info": "cyan",
}  # fmt: skip
"""Colours of healths, and of incidents' states and severities; the word is shown too."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    of: str | Callable[[Any], object] = ""
    """A key of the row (default: the column's name), or a function of the row."""
    right: bool = False
    """Align right (numbers)."""
    spare: int = 0
    """Without enough width the highest numbers are dropped first; 0: never."""
    least: int = 0
    """Least width, so that changing values do not move other columns."""
    style: str = ""
    """Of values that have none of their own."""


def width_of(text: str) -> int:
    """In terminal cells: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, width: int) -> str:
    """Cut to at most `width` cells, with an ellipsis at the end."""
    if width_of(text) <= width:
        return text
    shown = text[: max(0, width)]
    while width_of(shown) >= width > 0:
        shown = shown[:-1]
    return shown + "…" if width > 0 else ""


def fitted(line: Line, width: int | None) -> Line:
    if width is None:
        return line
    spans: Line = []
    for text, style in line:
        shown = cut(text, width)
        spans.append((shown, style))
        width -= width_of(shown)
        if shown != text:
            break
    return spans


def table(columns: Sequence[Column], rows: Iterable[Row], width: int | None = None) -> list[Line]:
    """A line of headings, one a row. All fields but the last are single words."""
    last = columns[-1]
    texts = [
        [
            show(value) if column is last else "_".join(show(value).split())
            for column in columns
            for value in (column.of(row) if callable(column.of) else row[column.of or column.name],)
        ]
        for row in rows
    ]
    return lines_of(columns, texts, width)


def lines_of(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[Line]:
    """A heading and a line a row; to fit `width`, spare columns go, then the last is cut."""
    rows = [[" ".join(clean(text, CELL).split()) or "-" for text in row] for row in rows]
    widths = [
        max([width_of(column.name), column.least, *(width_of(row[at]) for row in rows)])
        for at, column in enumerate(columns)
    ]
    kept = _kept(columns, widths, width)
    head = [(column.name, "bold") for column in columns]
    styled = [
        [(text, STYLES.get(text, column.style)) for column, text in zip(columns, row, strict=True)]
        for row in rows
    ]
    return [
        fitted(_line([(columns[at], widths[at], row[at]) for at in kept]), width)
        for row in (head, *styled)
    ]


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    kept = list(range(len(columns)))
    for at in sorted(kept, key=lambda at: -columns[at].spare):
        if width is None or sum(widths[at] + GAP for at in kept) - GAP <= width:
            break
        if columns[at].spare:
            kept.remove(at)
    return kept


def _line(cells: Sequence[tuple[Column, int, Span]]) -> Line:
    line: Line = []
    for column, width, (text, style) in cells:
        fill = " " * (width - width_of(text))
        before, after = (fill, "") if column.right else ("", fill)
        line += [(" " * GAP * bool(line) + before, ""), (text, style), (after, "")]
    return [span for span in line if span[0]]


def text_of(line: Iterable[Span]) -> str:
    return escaped("".join(text for text, _ in line).rstrip())


def plain(lines: Iterable[Line]) -> str:
    """A screen without styles, as text."""
    return "\n".join(map(text_of, lines))


def show(value: object) -> str:
    """A value for a cell; a dash if unknown."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(show, value)) or "-"
        case _:
            return figure(value)


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


def moment(at_s: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """In local time."""
    if at_s is None:
        return "-"
    return datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).astimezone().strftime(form)


# -- ranks, groups and hosts -----------------------------------------------------------------------

_LAST: Final = float("inf")
_WELL: Final = ("healthy", "waiting", "ended", "finished", None)
"""A waiting rank is held up by another; a host without ranks has no health."""
_BADNESS: Final = {**ORDER, UNKNOWN: -1}


def health_of(row: Row) -> str | None:
    """Of a rank, a group or a host, in a word."""
    health: str | None = row.get("eviction") or row["health"]
    return health


def badness(health: str | None) -> int:
    """For sorting, worst first; unknown is worst."""
    return _BADNESS.get(health or "", -1)


def _name(key: str) -> Callable[[Row], Any]:
    return lambda row: natural(row[key] or "-")


def _most(key: str) -> Callable[[Row], Any]:
    return lambda row: _LAST if row[key] is None else -row[key]


_ORDERS: Final[Mapping[str, Callable[[Row], Any]]] = {
    "rank": _name("rank"),
    "group": _name("group"),
    "host": _name("host"),
    "busy": _most("busy_s"),
    "wait": _most("wait_s"),
    "phase-age": _most("phase_age_s"),
    "commit-age": _most("last_commit_age_s"),
    "heartbeat": _most("heartbeat_age_s"),
    "step": lambda row: _LAST if row["step"] is None else row["step"],
    "health": lambda row: badness(health_of(row)),
}
"""What each order puts first: names in order, the longest busy, waiting or in a phase, the step
furthest behind, the worst health. Unknown values last."""
RANK_ORDERS: Final = (
    "rank", "busy", "wait", "phase-age", "step", "commit-age", "health", "host",
)  # fmt: skip
GROUP_ORDERS: Final = ("group", "health", "step", "heartbeat", "host")


def in_order(rows: Iterable[Row], order: str, name: str) -> list[Row]:
    """Ties by health, but not between names; then by `name`, the key of the row's own."""
    by_name = sorted(rows, key=_ORDERS[name])
    if order not in ("rank", "group", "host"):
        by_name.sort(key=_ORDERS["health"])
    return sorted(by_name, key=_ORDERS[order])


@dataclass(frozen=True, slots=True)
class RowFilter:
    """An empty filter lets everything pass."""

    groups: Collection[str] = ()
    hosts: Collection[str] = ()
    unhealthy: bool = False

    def __call__(self, row: Row) -> bool:
        """Whether a rank, a group or a host passes; a host in quarantine is unhealthy."""
        if self.groups and row["group"] not in self.groups:
            return False
        if self.hosts and row["host"] not in self.hosts:
            return False
        return not self.unhealthy or health_of(row) not in _WELL or bool(row.get("quarantined"))


_RANK_COLUMNS: Final = (
    Column("rank"),
    Column("health", least=11),
    Column("host", spare=5),
    Column("phase", spare=1, least=13),
    Column("for", lambda rank: age(rank["phase_age_s"]), right=True, least=5),
    Column("step", right=True, spare=2, least=6),
    Column("s/step", "step_s", right=True, spare=4, least=7),
    Column("busy", "busy_s", right=True, least=7),
    Column("wait", "wait_s", right=True, spare=3, least=7),
)
_WIDE_COLUMNS: Final = (
    Column("commits", right=True),
    Column("commit", lambda rank: age(rank["last_commit_age_s"]), right=True),
    Column("loss", right=True),
    Column("quorum", "quorum_id", right=True),
    Column("of", "participants", right=True),
    Column("pid", right=True),
    Column("url"),
)
_TROUBLE: Final = Column("trouble", lambda rank: rank["trouble"] or "-", style="magenta")
GROUP_COLUMNS: Final = (
    Column("group"),
    Column("health", health_of, least=11),
    Column("host", spare=3),
    Column("ranks", lambda group: len(group["ranks"]), right=True, spare=2),
    Column("step", right=True),
    Column("commits", right=True, spare=1),
    Column("quorum", "in_quorum"),
    Column("heartbeat", lambda group: age(group["heartbeat_age_s"]), right=True, spare=4),
)
HOST_COLUMNS: Final = (
    Column("host"),
    Column("health"),
    Column("groups", lambda host: len(host["groups"]), right=True),
    Column("ranks", lambda host: len(host["ranks"]), right=True),
    Column("busy", "busy_s", right=True),
    Column("incidents", lambda host: sum(host["incidents"].values()), right=True, spare=2),
    Column("evictions", right=True, spare=1),
    Column("lemon", lambda host: host["lemon"] is not None),
    Column(
        "quarantine",
        lambda host: f"until {until(host['until_s'])}" if host["quarantined"] else "-",
        style="bold yellow",
    ),
)


_KEEPERS: Final = ("quorum", "heartbeat", "evictions", "of")


def columns_of(columns: Sequence[Column], body: Row) -> list[Column]:
    """Those that say something: a monitor without a Lighthouse knows no quorum, evicts nobody."""
    return [c for c in columns if not (body.get("watch_only") and c.name in _KEEPERS)]


def rank_columns(*, wide: bool) -> tuple[Column, ...]:
    return (*_RANK_COLUMNS, *(_WIDE_COLUMNS if wide else ()), _TROUBLE)


def until(until_s: float | None) -> str:
    """When a quarantine ends."""
    return "released" if until_s is None else moment(until_s)


# -- the screens of `status` and `top`, from `GET /v1/status` --------------------------------------

_ANSWERS: Final = ("training", "held_back_by", "keeper", "monitor")
_ANSWER_STYLES: Final = {
    **dict.fromkeys(("yes", "finished", "nobody", "acting", "trusted"), "green"),
    **dict.fromkeys(("disturbed", "pausing", "stopped", "suspected"), "yellow"),
    **dict.fromkeys(("standby", "maintenance", "doubtful"), "yellow"),
    **dict.fromkeys(("no", "stalling", "ended", "named", "unknown", "paused"), "bold red"),
    "starting": "blue", "observing": "bold cyan", "watching": "cyan",
}  # fmt: skip
_LABEL: Final = 14
"""Width of the names at the left."""
_INCIDENTS: Final = 3
"""Incidents whose evidence is shown."""


def status_screen(status: Row, width: int | None, base: str) -> list[Line]:
    """`base`: URL of the monitor, for links."""
    indent = (" " * _LABEL, "")
    lines: list[Line] = []
    for about in _ANSWERS:
        answer = status[about]
        label = f"{about.replace('_', ' '):<{_LABEL}}"
        lines.append(fitted([(label, "bold"), *_word(answer), (f"  {clean(answer['says'])}", "")],
                            width))  # fmt: skip
        lines += [[indent, (part, "")] for text in answer["more"] for part in _wrapped(text, width)]
        for incident in answer.get("incidents", ())[:_INCIDENTS]:
            if incident["bundle"]:  # never cut: people copy it
                lines.append([indent, (f"evidence: {base}{incident['bundle']}", "dim")])
    for about in ("groups", "ranks"):
        healths = dict(status[about])
        line = [(f"{about:<{_LABEL}}", "bold"), (f"{healths.pop('all'):,}", "")]
        for health, number in healths.items():
            gap = "  " if len(line) == 2 else ", "
            line += [(gap, ""), (f"{number:,} {health}", STYLES.get(health, ""))]
        lines.append(line)
    worst = status["worst_groups"]
    if worst:
        lines += [[("", "")], *table(columns_of(GROUP_COLUMNS, status), worst, width)]
    if (more := status["groups"]["all"] - len(worst)) > 0:
        text = f"and {more:,} more, none of them worse: lightkeeper get groups"
        lines.append([(text, "dim")])
    return lines


def _word(answer: Row) -> Line:
    return [(answer["is"], _ANSWER_STYLES.get(answer["is"], ""))]


def _wrapped(text: str, width: int | None) -> Iterator[str]:
    text = clean(text)
    if width is None:
        yield text
    else:
        width = max(20, width - _LABEL)
        yield from textwrap.wrap(text, width, break_on_hyphens=False) or [""]


_COLUMN_OF: Final = {"phase-age": "for", "commit-age": "commit"}
"""Orders whose column has another name."""
_ALL: Final = RowFilter()


def top_screen(
    look: tuple[Row, Sequence[Row]],
    width: int,
    height: int,
    *,
    order: str = "busy",
    wide: bool = False,
    wanted: RowFilter = _ALL,
) -> list[Line]:
    """At most `height` lines of at most `width` cells; `look`: the status and the ranks."""
    status, rows = look
    head = _head(status, width)
    ranks = in_order(filter(wanted, rows), order, "rank")
    shown = ranks[: max(1, height - len(head) - 3)]
    titles, *lines = table(columns_of(rank_columns(wide=wide), status), shown, width)
    chosen = _COLUMN_OF.get(order, order)
    titles = [(text, "bold reverse" if text == chosen else style) for text, style in titles]
    which = "unhealthy " if wanted.unhealthy else ""
    foot = f"{len(shown):,} of {len(ranks):,} {which}ranks by {order}   Ctrl-C: leave"
    return [*head, [("", "")], titles, *lines, [(cut(foot, width), "dim")]][:height]


def _head(status: Row, width: int) -> list[Line]:
    title = f"  {moment(status['now_s'], '%H:%M:%S')}  {clean(status['training']['says'])}"
    words: Line = []
    counts: Line = []
    for about in _ANSWERS:
        name = about.replace("_", " ")
        words += [(f"{'  ' if words else ''}{name} ", ""), *_word(status[about])]
    for about in ("ranks", "groups"):
        healths = dict(status[about])
        counts.append((f"{'   ' if counts else ''}{healths.pop('all'):,} {about}:", ""))
        counts += [(f" {number:,} {health}", STYLES.get(health, ""))
                   for health, number in healths.items()]  # fmt: skip
    held_by = status["held_back_by"]
    says = next(iter((*held_by["more"], *status["monitor"]["more"])), held_by["says"])
    lines = ([("lightkeeper top", "bold"), (title, "")], words, counts, [(clean(says), "")])
    return [fitted(line, width) for line in lines]
