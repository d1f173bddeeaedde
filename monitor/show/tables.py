"""Tables on a terminal, and the fleet's rows in them. Pure.

Rows of cells become lines: aligned, cut to a width, without boxes. In a pipe nothing is cut, fields
are at least two spaces apart and none is empty or has two spaces in a row, so that
`awk -F '  +'` reads any of our tables. Texts come from outside: `lines_of` makes them safe.

The fleet of one tick, read from `GET /v1/snapshot`: filters and orders of ranks, groups and hosts,
and their columns.
"""

from __future__ import annotations

import datetime
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from lightkeeper.monitor.decide.headline import Headline
from lightkeeper.monitor.decide.view import Ended, GroupView, IncidentReport
from lightkeeper.monitor.decide.view_json import RankJson, report_from_json
from lightkeeper.monitor.model.verdict import WORST_FIRST
from lightkeeper.monitor.show.wording import clean, natural


def clock(at_s: float | None, form: str = "%H:%M:%S") -> str:
    """In local time."""
    if at_s is None:
        return "-"
    at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).astimezone()
    return at.strftime(form)


Span = tuple[str, str]
"""Text and its style; an empty style is plain."""
Line = list[Span]
Cell = Span

GAP: Final = 2
CELL: Final = 300
"""Most characters of a cell."""


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    of: str | Callable[[Any], object] = ""
    """An attribute of the item (default: the one called `name`), or a function of the item; a
    value, or a `Cell` for one with a style.
    """
    right: bool = False
    """Align right (numbers)."""
    spare: int = 0
    """Without enough width the highest numbers are dropped first; 0: never."""
    least: int = 0
    """Least width, so that changing values do not move other columns."""

    def cell(self, item: Any) -> Cell:
        of = self.of
        value = of(item) if callable(of) else getattr(item, of or self.name)
        return value if isinstance(value, tuple) else (word(value), "")


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
    shown = ""
    for char in text:
        if width_of(shown + char) >= width:
            break
        shown += char
    return shown + "…" if width > 0 else ""


def table(columns: Sequence[Column], items: Iterable[Any], width: int | None = None) -> list[Line]:
    """A line of headings, one an item."""
    rows = [[column.cell(item) for column in columns] for item in items]
    return lines_of(columns, rows, width)


def lines_of(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None = None
) -> list[Line]:
    """A heading and a line a row; to fit `width`, spare columns go, then the last is cut."""
    rows = [
        [(" ".join(clean(text, CELL).split()) or "-", style) for text, style in row] for row in rows
    ]
    widths = [
        max([width_of(column.name), column.least, *(width_of(row[at][0]) for row in rows)])
        for at, column in enumerate(columns)
    ]
    indices = _fitting(columns, widths, width)
    head = [(column.name, "bold") for column in columns]
    return [_line(columns, row, widths, indices, width) for row in (head, *rows)]


def _fitting(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    indices = list(range(len(columns)))
    for at in sorted(indices, key=lambda index: -columns[index].spare):
        if width is None or _sum(widths, indices) <= width or not columns[at].spare:
            break
        indices.remove(at)
    return indices


def _sum(widths: Sequence[int], indices: Sequence[int]) -> int:
    return sum(widths[at] + GAP for at in indices) - GAP


def _line(
    columns: Sequence[Column],
    row: Sequence[Cell],
    widths: Sequence[int],
    indices: Sequence[int],
    width: int | None,
) -> Line:
    spans: Line = []
    used = 0
    for at in indices:
        text, style = row[at]
        fill = " " * (widths[at] - width_of(text))
        before = " " * GAP if spans else ""
        last = at == indices[-1]
        if columns[at].right:
            before += fill
        room = None if width is None else width - used - len(before)
        if room is not None and room <= 0:
            break
        shown = text if room is None else cut(text, room)
        after = "" if columns[at].right or last else fill
        if room is not None:
            after = after[: room - width_of(shown)]
        spans += [(before, ""), (shown, style), (after, "")]
        used += len(before) + width_of(shown) + len(after)
    return [span for span in spans if span[0]]


def text_of(line: Iterable[Span]) -> str:
    return "".join(text for text, _ in line).rstrip()


def show(value: object) -> str:
    """A value for a cell; a dash if unknown."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case list():
            return ", ".join(show(item) for item in value) or "-"
        case _:
            return " ".join(str(value).split())


def word(value: object) -> str:
    """As `show`, in one word without spaces."""
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


# -- the fleet -------------------------------------------------------------------------------------

T = TypeVar("T")
HEALTHS: Final = tuple(str(health) for health in WORST_FIRST)


class SelfHealthFacts(msgspec.Struct, frozen=True):
    """How far the monitor trusts itself."""

    conditions: Mapping[str, str]
    hold: str | None
    """Why it does not evict."""


class UnknownFault(msgspec.Struct, frozen=True):
    kind: str
    why: str


class LighthouseFacts(msgspec.Struct, frozen=True):
    up: bool
    quorum_id: int | None = None
    reason: str = ""


class LeaseFacts(msgspec.Struct, frozen=True):
    """Whether this monitor acts, and who does."""

    role: str
    holder: str | None


class WindowFacts(msgspec.Struct, frozen=True):
    name: str
    until_s: float


class QuarantinedFacts(msgspec.Struct, frozen=True):
    host: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What `status`, `ranks`, `groups` and `top` show of one tick."""

    now_s: float
    tick: int
    ranks: tuple[RankJson, ...]
    groups: tuple[GroupView, ...]
    incidents: tuple[IncidentReport, ...]
    """Open ones."""
    headline: Headline
    observe: bool
    warnings: tuple[str, ...]
    troubles: tuple[str, ...]
    unknown: tuple[UnknownFault, ...]
    self_health: SelfHealthFacts
    lighthouse: LighthouseFacts
    quarantine: tuple[QuarantinedFacts, ...]
    quarantine_groups: tuple[QuarantinedFacts, ...]
    tokenless: bool = False
    ended: Ended | None = None
    monitor: LeaseFacts | None = None
    maintenance: WindowFacts | None = None


def count(rows: Iterable[RankJson | GroupView]) -> dict[str, int]:
    """Health -> count, worst first; counts of zero are left out."""
    counts = Counter(row.shown if isinstance(row, GroupView) else row.health for row in rows)
    return dict(sorted(counts.items(), key=lambda item: badness(item[0])))


def badness(health: str) -> int:
    """For sorting, worst first; unknown is worst."""
    return HEALTHS.index(health) if health in HEALTHS else -1


def fleet_of(body: Mapping[str, Any]) -> Fleet:
    fleet = msgspec.convert({**body, "incidents": ()}, Fleet)
    return replace(fleet, incidents=tuple(map(report_from_json, body["incidents"])))


def ranks_of(rows: Sequence[Mapping[str, Any]]) -> tuple[RankJson, ...]:
    """`ranks` of `/v1/ranks` or of a snapshot."""
    return msgspec.convert(rows, tuple[RankJson, ...])


def groups_of(rows: Sequence[Mapping[str, Any]]) -> tuple[GroupView, ...]:
    """`groups` of `/v1/groups` or of a snapshot."""
    return msgspec.convert(rows, tuple[GroupView, ...])


_LAST: Final = float("inf")
_WELL: Final = ("healthy", "waiting", "ended", "finished")
"""A waiting rank is held up by another."""


RANK_ORDERS: Final[Mapping[str, Callable[[RankJson], Any]]] = {
    "rank": lambda rank: natural(rank.rank),
    "busy": lambda rank: _most(rank.busy_s),
    "wait": lambda rank: _most(rank.wait_s),
    "phase-age": lambda rank: _most(rank.phase_age_s),
    "step": lambda rank: _LAST if rank.step is None else rank.step,
    "commit-age": lambda rank: _most(rank.last_commit_age_s),
    "health": lambda rank: badness(rank.health),
    "host": lambda rank: natural(rank.host),
}
"""What each order puts first: names in order, the longest busy, waiting or in a phase, the step
furthest behind, the worst health. Ties by name; unknown values last."""

GROUP_ORDERS: Final[Mapping[str, Callable[[GroupView], Any]]] = {
    "group": lambda group: natural(group.group),
    "health": lambda group: badness(group.shown),
    "step": lambda group: _LAST if group.step is None else group.step,
    "heartbeat": lambda group: _most(group.heartbeat_age_s),
    "host": lambda group: natural(group.host or "-"),
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """An empty filter lets everything pass."""

    groups: Collection[str] = ()
    hosts: Collection[str] = ()
    unhealthy: bool = False

    def rank(self, rank: RankJson) -> bool:
        return self._fits(rank.group, rank.host, well=rank.health in _WELL)

    def group(self, group: GroupView) -> bool:
        return self._fits(group.group, group.host, well=group.shown in _WELL)

    def host(self, host: HostRow) -> bool:
        """Whether the host passes; one in quarantine is unhealthy."""
        well = not host.quarantined and host.health in (*_WELL, "-")
        return self._fits("", host.name, well=well)

    def _fits(self, group: str, host: str | None, *, well: bool) -> bool:
        named = all(not names or has in names
                    for names, has in ((self.groups, group), (self.hosts, host)))  # fmt: skip
        return named and not (self.unhealthy and well)


def sorted_ranks(ranks: Iterable[RankJson], order: str) -> list[RankJson]:
    """In this order; ties by health and name, unknown values last."""
    named = sorted(ranks, key=lambda rank: natural(rank.rank))
    if order not in ("rank", "host"):
        named.sort(key=lambda rank: badness(rank.health))
    return sorted(named, key=RANK_ORDERS[order])


def sorted_groups(groups: Iterable[GroupView], order: str) -> list[GroupView]:
    """In this order; ties by name, unknown values last."""
    named = sorted(groups, key=lambda group: natural(group.group))
    return sorted(named, key=GROUP_ORDERS[order])


def _most(value: float | None) -> float:
    return _LAST if value is None else -value


STYLES: Final = {
    "healthy": "green",
    "waiting": "yellow",
    "starting": "blue",
    "stalled": "bold red",
    "dead": "red",
    "unreachable": "magenta",
    "evicting": "bold yellow",
    "late": "yellow",
    "slow": "bold yellow",
    "corrupt": "bold red",
    "traced": "bold magenta",
    "ended": "dim",
    "finished": "dim",
    "pending": "yellow",
    "firing": "bold red",
    "resolved": "green",
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
}
"""Colours of healths, and of incidents' states and severities; the word is shown too."""


def styled(name: str) -> Cell:
    return (word(name), STYLES.get(name, ""))


_RANK_COLUMNS: Final = (
    Column("rank"),
    Column("health", lambda rank: styled(rank.health), least=11),
    Column("host", spare=5),
    Column("phase", spare=1, least=13),
    Column("for", lambda rank: age(rank.phase_age_s), right=True, least=5),
    Column("step", right=True, spare=2, least=6),
    Column("s/step", "step_s", right=True, spare=4, least=7),
    Column("busy", "busy_s", right=True, least=7),
    Column("wait", "wait_s", right=True, spare=3, least=7),
)
_WIDE_COLUMNS: Final = (
    Column("commits", right=True),
    Column("commit", lambda rank: age(rank.last_commit_age_s), right=True),
    Column("loss", right=True),
    Column("quorum", "quorum_id", right=True),
    Column("of", "participants", right=True),
    Column("pid", right=True),
    Column("url"),
)
_TROUBLE: Final = Column(
    "trouble", lambda rank: (rank.trouble or "-", "magenta" if rank.trouble else "dim")
)
GROUP_COLUMNS: Final = (
    Column("group"),
    Column("health", lambda group: styled(group.shown), least=11),
    Column("host", spare=3),
    Column("ranks", lambda group: len(group.ranks), right=True, spare=2),
    Column("step", right=True),
    Column("commits", right=True, spare=1),
    Column("quorum", "in_quorum"),
    Column("heartbeat", lambda group: age(group.heartbeat_age_s), right=True, spare=4),
)


def rank_columns(*, wide: bool) -> tuple[Column, ...]:
    return (*_RANK_COLUMNS, *(_WIDE_COLUMNS if wide else ()), _TROUBLE)


@dataclass(frozen=True, slots=True)
class HostRow:
    name: str
    health: str
    """Of its worst rank; `-` without ranks."""
    groups: int
    ranks: int
    busy_s: float | None
    """Of its busiest rank."""
    incidents: int
    evictions: int
    """In the last 28 days."""
    lemon: bool
    quarantined: bool
    until: str


def _quarantine(host: HostRow) -> Cell:
    return (f"until {host.until}", "bold yellow") if host.quarantined else ("-", "dim")


HOST_COLUMNS: Final = (
    Column("host", "name"),
    Column("health", lambda host: styled(host.health)),
    Column("groups", right=True),
    Column("ranks", right=True),
    Column("busy", "busy_s", right=True),
    Column("incidents", right=True, spare=2),
    Column("evictions", right=True, spare=1),
    Column("lemon"),
    Column("quarantine", _quarantine),
)


def sorted_hosts(hosts: Iterable[HostRow]) -> list[HostRow]:
    """Quarantined ones first, then the worst; hosts without ranks last."""
    return sorted(
        hosts,
        key=lambda host: (
            not host.quarantined, not host.ranks, badness(host.health), natural(host.name)
        ),
    )  # fmt: skip
