"""The live list of incidents. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from monitor.reports.wording import clean
from monitor.terminal.grid import Cell, Column, Line, cut, lines_of, word
from monitor.terminal.words import clock, listed

_COLUMNS: Final = (
    Column("since"),
    Column("state", least=8),
    Column("severity", spare=2),
    Column("kind"),
    Column("culprits"),
    Column("outcome", spare=1, least=8),
    Column("what", spare=3),
)
_STYLES: Final = {
    "pending": "yellow", "firing": "bold red", "evicting": "bold yellow", "resolved": "green",
    "critical": "bold red", "warning": "yellow", "info": "cyan",
}  # fmt: skip


def incidents_screen(incidents: Sequence[Mapping[str, Any]], width: int, height: int) -> list[Line]:
    """Newest first, as many as fit; the last line says how many do not, and how to leave."""
    room = max(0, height - 2)
    shown = lines_of(_COLUMNS, [_cells(one) for one in incidents[:room]], width)
    more = len(incidents) - room
    tail = f"and {more:,} more   " if more > 0 else ""
    none = "" if incidents else "no incident   "
    return [*shown, [(cut(f"{none}{tail}Ctrl-C: leave", width), "dim")]]


def _cells(one: Mapping[str, Any]) -> list[Cell]:
    account = one.get("account") or {}
    state, severity = str(one["state"]), str(one["severity"])
    return [
        (clock(one["milestones"]["first_seen_s"]), ""),
        (word(state), _STYLES.get(state, "")),
        (word(severity), _STYLES.get(severity, "")),
        (word(clean(str(one["kind"]))), ""),
        (listed(one["culprits"], 2) or "-", ""),
        (word(account.get("outcome")), ""),
        (clean(str(one["says"]), 300) or "-", ""),
    ]
