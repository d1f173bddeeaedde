"""Rows as lines of text: which, in what order, in which columns. Pure.

Rows become lines: aligned, cut to a width, without boxes. Without a width nothing is cut. Fields
are at least two spaces apart and none is empty or has two spaces in a row, so that `awk -F '  +'`
reads any of our tables. A row is what the API says of one; `table` makes its texts safe.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

from lightkeeper.monitor.model.units import age, clean, figure, natural, utc
from lightkeeper.monitor.show.wording import ORDER, UNKNOWN

Row = Mapping[str, Any]

GAP: Final = 2
CELL: Final = 300
"""Most characters of a cell."""


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

    def cell(self, row: Any) -> str:
        value = self.of(row) if callable(self.of) else row[self.of or self.name]
        return " ".join(clean(cell_text(value), CELL).split()) or "-"


def width_of(text: str) -> int:
    """In terminal cells: East Asian wide characters take two."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, width: int | None) -> str:
    """Cut to at most `width` cells, with an ellipsis at the end."""
    if width is None or width_of(text) <= width:
        return text
    shown = text[: max(0, width)]
    while width_of(shown) >= width > 0:
        shown = shown[:-1]
    return shown + "…" if width > 0 else ""


def table(columns: Sequence[Column], rows: Iterable[Any], width: int | None = None) -> list[str]:
    """A heading and a line a row; to fit `width`, spare columns go, then the last is cut."""
    cells = [[column.name for column in columns]]
    cells += [[column.cell(row) for column in columns] for row in rows]
    widths = [
        max(column.least, *(width_of(row[at]) for row in cells))
        for at, column in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for at in sorted(kept, key=lambda at: -columns[at].spare):
        if width is None or sum(widths[at] + GAP for at in kept) - GAP <= width:
            break
        if columns[at].spare:
            kept.remove(at)
    gap = " " * GAP
    return [
        cut(gap.join(_filled(row[at], widths[at], columns[at]) for at in kept).rstrip(), width)
        for row in cells
    ]


def _filled(text: str, width: int, column: Column) -> str:
    fill = " " * (width - width_of(text))
    return fill + text if column.right else text + fill


def cell_text(value: object) -> str:
    """A value for a cell; a dash if unknown."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(map(cell_text, value)) or "-"
        case _:
            return figure(value)


# -- ranks, groups and hosts -----------------------------------------------------------------------

_LAST: Final = float("inf")
_WELL: Final = ("healthy", "waiting", "ended", "finished", None)
"""A waiting rank is held up by another; a host without ranks has no health."""
_BADNESS: Final = {**ORDER, UNKNOWN: -1}


def health_of(row: Row) -> str | None:
    """Health of a rank, a group or a host, in a word."""
    health: str | None = row.get("eviction") or row["health"]
    return health


def badness(health: str | None) -> int:
    """Place in an order of the worst first; unknown is worst."""
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


@dataclass(frozen=True, slots=True)
class RowsAsked:
    """Which rows, in what order, at most how many; what is not said: all, as they come."""

    groups: Collection[str] = ()
    hosts: Collection[str] = ()
    unhealthy: bool = False
    sort: str = ""
    limit: int | None = None
    wide: bool = False

    def among(self, rows: Iterable[Row]) -> list[Row]:
        """The rows that pass, in order. Ties: by health, but not between names; then by name."""
        chosen = filter(self._passes, rows)
        if not self.sort:
            return list(chosen)
        order, named = _ORDERS[self.sort], self.sort in ("rank", "group", "host")

        def key(row: Row) -> tuple[Any, ...]:
            health = 0 if named else badness(health_of(row))
            return order(row), health, natural(row.get("rank", row["group"]))

        return sorted(chosen, key=key)

    def _passes(self, row: Row) -> bool:
        """True if a rank, group or host is chosen; a host in quarantine counts as unhealthy."""
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
_TROUBLE: Final = Column("trouble", lambda rank: rank["trouble"] or "-")
_GROUP_COLUMNS: Final = (
    Column("group"),
    Column("health", health_of, least=11),
    Column("host", spare=3),
    Column("ranks", lambda group: len(group["ranks"]), right=True, spare=2),
    Column("step", right=True),
    Column("commits", right=True, spare=1),
    Column("quorum", "in_quorum"),
    Column("heartbeat", lambda group: age(group["heartbeat_age_s"]), right=True, spare=4),
)
_HOST_COLUMNS: Final = (
    Column("host"),
    Column("health"),
    Column("groups", lambda host: len(host["groups"]), right=True),
    Column("ranks", lambda host: len(host["ranks"]), right=True),
    Column("busy", "busy_s", right=True),
    Column("incidents", lambda host: sum(host["incidents"].values()), right=True, spare=2),
    Column("evictions", right=True, spare=1),
    Column("lemon", lambda host: host["lemon"] is not None),
    Column("quarantine", lambda host: f"until {_until(host)}" if host["quarantined"] else "-"),
    Column("machine", lambda host: host["machine"][0]["text"] if host["machine"] else "-"),
)
_KEEPERS: Final = ("quorum", "heartbeat", "evictions", "of")


def _until(row: Row) -> str:
    return "released" if row["until_s"] is None else utc(row["until_s"])


def _at(key: str) -> Callable[[Row], str | None]:
    return lambda row: None if row[key] is None else utc(row[key])


def _why(entry: Row) -> str:
    return f"{entry['reason']} ({entry['note']})" if entry.get("note") else str(entry["reason"])


def _work(row: Row) -> str | None:
    """`ack ann`, `resolved ann`."""
    work = row["work"]
    by = work["resolved_by"] or work["acknowledged_by"]
    return None if by is None else f"{'resolved' if work['resolved_by'] else 'ack'} {by}"


_INCIDENT_COLUMNS: Final = (
    Column("id"),
    Column("since", lambda row: utc(row["milestones"]["first_seen_s"]), spare=3),
    Column("kind"),
    Column("state"),
    Column("severity", spare=4),
    Column("who"),
    Column("outcome", lambda row: row["account"]["outcome"], spare=1),
    Column("work", _work, spare=5),
    Column("lost", lambda row: amount(row["account"]["lost"]), right=True, spare=2),
    Column("what", "says"),
)
_RUN_COLUMNS: Final = (
    Column("run", "id"),
    Column("began", _at("began_s")),
    Column("job"),
    Column("lasted", lambda run: age(run["lasted_s"]), right=True),
    Column("ranks", right=True),
    Column("step", right=True),
    Column("incidents", right=True),
)
_QUARANTINE_COLUMNS: Final = (
    Column("host", lambda row: row.get("host") or f"group {row['group']}"),
    Column("since", _at("since_s"), spare=3),
    Column("until", _until),
    Column("by", "author", spare=2),
    Column("incident", "incident_id", spare=4),
    Column("offences 28 d", lambda row: row.get("offences"), right=True, spare=5),
    Column("lemon", lambda row: row["lemon"] is not None if "lemon" in row else None, spare=1),
    Column("why", _why),
)
_SILENCE_COLUMNS: Final = (
    Column("silence", "id"),
    Column("of", lambda row: " ".join(f"{key}={row['match'][key]}" for key in row["match"])),
    Column("until", _until),
    Column("by", "author"),
    Column("why", "text"),
)
_TIMED: Final = ("added", "extended", "shortened")
_HISTORY_COLUMNS: Final = (
    Column("when", _at("at_s")),
    Column("what", "change"),
    Column("until", lambda row: _until(row) if row["change"] in _TIMED else None, spare=2),
    Column("by", "author"),
    Column("incident", "incident_id", spare=1),
    Column("why", "reason"),
)
_ACTION_COLUMNS: Final = (
    Column("kind", itemgetter(0)),
    Column("info", lambda row: row[1]["info"], spare=1),
    Column("warning", lambda row: row[1]["warning"]),
    Column("critical", lambda row: row[1]["critical"]),
)
_OPTION_COLUMNS: Final = (
    Column("name", itemgetter(0)),
    Column("value", lambda row: row[1]["value"]),
    Column("said by", lambda row: row[1]["from"]),
    Column("changes by", lambda row: row[1]["change"]),
)


def amount(rank_seconds: float | None) -> str:
    """What was lost, where that is known."""
    return "cannot tell" if rank_seconds is None else f"{rank_seconds:.0f}"


def columns_of(what: str, *, wide: bool = False, watch_only: bool = False) -> list[Column]:
    """Columns that say something: without a Lighthouse there are no quorums and no evictions.

    Args:
        wide: more columns, of ranks.
    """
    columns: Sequence[Column] = {
        "ranks": (*_RANK_COLUMNS, *(_WIDE_COLUMNS if wide else ()), _TROUBLE),
        "groups": _GROUP_COLUMNS,
        "hosts": _HOST_COLUMNS,
        "incidents": _INCIDENT_COLUMNS,
        "runs": _RUN_COLUMNS,
        "quarantine": _QUARANTINE_COLUMNS,
        "silences": _SILENCE_COLUMNS,
        "history": _HISTORY_COLUMNS,
        "actions": _ACTION_COLUMNS,
        "options": _OPTION_COLUMNS,
    }[what]
    return [column for column in columns if not (watch_only and column.name in _KEEPERS)]
