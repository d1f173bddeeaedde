"""The fleet of one tick as `GET /v1/snapshot` tells it: which ranks, groups and hosts are wanted,
in which order, and their columns. Pure.

Texts are other people's: `lines_of` makes them safe for a terminal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from monitor.decide.headline import Headline
from monitor.decide.view import Ended, GroupView, IncidentReport
from monitor.decide.view_json import RankJson, report_from_json
from monitor.model.verdict import WORST_FIRST
from monitor.show.text_table import Cell, Column, age, word
from monitor.show.wording import natural

T = TypeVar("T")
HEALTHS: Final = tuple(str(one) for one in WORST_FIRST)


class SelfDoubt(msgspec.Struct, frozen=True):
    """How far the monitor trusts itself."""

    conditions: Mapping[str, str]
    hold: str | None
    """Why it evicts nobody."""


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


class KeptOut(msgspec.Struct, frozen=True):
    host: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that `status`, `ranks`, `groups` and `top` show of one tick."""

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
    self_health: SelfDoubt
    lighthouse: LighthouseFacts
    quarantine: tuple[KeptOut, ...]
    quarantine_groups: tuple[KeptOut, ...]
    tokenless: bool = False
    ended: Ended | None = None
    monitor: LeaseFacts | None = None
    maintenance: WindowFacts | None = None


def count(rows: Iterable[RankJson | GroupView]) -> dict[str, int]:
    """Health -> how many, worst first; none is left out but those that nobody has."""
    found = Counter(one.shown if isinstance(one, GroupView) else one.health for one in rows)
    return dict(sorted(found.items(), key=lambda item: badness(item[0])))


def badness(health: str) -> int:
    """For sorting, worst first; what is not known is bad."""
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
_WELL: Final = ("healthy", "waiting", "finished")
"""Who waits is held up by somebody else."""


RANK_ORDERS: Final[Mapping[str, Callable[[RankJson], Any]]] = {
    "rank": lambda one: natural(one.rank),
    "busy": lambda one: _most(one.busy_s),
    "wait": lambda one: _most(one.wait_s),
    "phase-age": lambda one: _most(one.phase_age_s),
    "step": lambda one: _LAST if one.step is None else one.step,
    "commit-age": lambda one: _most(one.last_commit_age_s),
    "health": lambda one: badness(one.health),
    "host": lambda one: natural(one.host),
}
"""What each order puts first: names in order, the longest busy, waiting or in a phase, the step
furthest behind, the worst health. Ties by name; what is not known is last."""

GROUP_ORDERS: Final[Mapping[str, Callable[[GroupView], Any]]] = {
    "group": lambda one: natural(one.group),
    "health": lambda one: badness(one.shown),
    "step": lambda one: _LAST if one.step is None else one.step,
    "heartbeat": lambda one: _most(one.heartbeat_age_s),
    "host": lambda one: natural(one.host or "-"),
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Filters; empty ones let everything pass."""

    groups: Collection[str] = ()
    hosts: Collection[str] = ()
    healths: Collection[str] = ()
    unhealthy: bool = False

    def rank(self, one: RankJson) -> bool:
        return self._fits(one.group, one.host, one.health)

    def group(self, one: GroupView) -> bool:
        return self._fits(one.group, one.host, one.shown)

    def host(self, one: HostRow) -> bool:
        """Whether this host is wanted; one in quarantine is not well."""
        well = not one.quarantined and one.health in (*_WELL, "-")
        return not (self.unhealthy and well) and self._named("", one.name, one.health)

    def _fits(self, group: str, host: str | None, health: str) -> bool:
        return not (self.unhealthy and health in _WELL) and self._named(group, host, health)

    def _named(self, group: str, host: str | None, health: str) -> bool:
        chosen = ((self.groups, group), (self.hosts, host), (self.healths, health))
        return all(not names or has in names for names, has in chosen)


def sorted_ranks(ranks: Iterable[RankJson], order: str, *, reverse: bool = False) -> list[RankJson]:
    """In this order; ties by health and name, and last those of which it is not known."""
    named = sorted(ranks, key=lambda one: natural(one.rank))
    if order not in ("rank", "host"):
        named.sort(key=lambda one: badness(one.health))
    return _ordered(named, RANK_ORDERS[order], reverse=reverse)


def sorted_groups(
    groups: Iterable[GroupView], order: str, *, reverse: bool = False
) -> list[GroupView]:
    """In this order; ties by name, and last those of which it is not known."""
    named = sorted(groups, key=lambda one: natural(one.group))
    return _ordered(named, GROUP_ORDERS[order], reverse=reverse)


def _ordered(named: Sequence[T], key: Callable[[T], Any], *, reverse: bool) -> list[T]:
    keyed = [(key(one), one) for one in named]
    known = [pair for pair in keyed if pair[0] != _LAST]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [one for _, one in known] + [one for value, one in keyed if value == _LAST]


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
    "finished": "dim",
    "pending": "yellow",
    "firing": "bold red",
    "resolved": "green",
    "critical": "bold red",
    "warning": "yellow",
    "info": "cyan",
}
"""The colour of a health, of an incident's state and severity; its word stands beside it."""


def styled(name: str) -> Cell:
    return (word(name), STYLES.get(name, ""))


def _trouble(one: RankJson) -> Cell:
    return one.trouble or "-", "magenta" if one.trouble else "dim"


_RANK_COLUMNS: Final = (
    Column("rank", of=lambda one: one.rank),
    Column("health", least=11, of=lambda one: styled(one.health)),
    Column("host", spare=5, of=lambda one: one.host),
    Column("phase", spare=1, least=13, of=lambda one: one.phase),
    Column("for", right=True, least=5, of=lambda one: age(one.phase_age_s)),
    Column("step", right=True, spare=2, least=6, of=lambda one: one.step),
    Column("s/step", right=True, spare=4, least=7, of=lambda one: one.step_s),
    Column("busy", right=True, least=7, of=lambda one: one.busy_s),
    Column("wait", right=True, spare=3, least=7, of=lambda one: one.wait_s),
)
_WIDE_COLUMNS: Final = (
    Column("commits", right=True, of=lambda one: one.commits),
    Column("commit", right=True, of=lambda one: age(one.last_commit_age_s)),
    Column("loss", right=True, of=lambda one: one.loss),
    Column("quorum", right=True, of=lambda one: one.quorum_id),
    Column("of", right=True, of=lambda one: one.participants),
    Column("pid", right=True, of=lambda one: one.pid),
    Column("url", of=lambda one: one.url),
)
_TROUBLE: Final = Column("trouble", of=_trouble)
GROUP_COLUMNS: Final = (
    Column("group", of=lambda one: one.group),
    Column("health", least=11, of=lambda one: styled(one.shown)),
    Column("host", spare=3, of=lambda one: one.host),
    Column("ranks", right=True, spare=2, of=lambda one: len(one.ranks)),
    Column("step", right=True, of=lambda one: one.step),
    Column("commits", right=True, spare=1, of=lambda one: one.commits),
    Column("quorum", of=lambda one: one.in_quorum),
    Column("heartbeat", right=True, spare=4, of=lambda one: age(one.heartbeat_age_s)),
)


def rank_columns(*, wide: bool) -> tuple[Column, ...]:
    return (*_RANK_COLUMNS, *(_WIDE_COLUMNS if wide else ()), _TROUBLE)


@dataclass(frozen=True, slots=True)
class HostRow:
    name: str
    health: str
    """Of its worst rank; `-` where none runs."""
    groups: int
    ranks: int
    busy_s: float | None
    """Of its busiest rank."""
    incidents: int
    evictions: int
    """Of the last 28 days."""
    quarantined: bool
    until: str


def _quarantine(one: HostRow) -> Cell:
    return (f"until {one.until}", "bold yellow") if one.quarantined else ("-", "dim")


HOST_COLUMNS: Final = (
    Column("host", of=lambda one: one.name),
    Column("health", of=lambda one: styled(one.health)),
    Column("groups", right=True, of=lambda one: one.groups),
    Column("ranks", right=True, of=lambda one: one.ranks),
    Column("busy", right=True, of=lambda one: one.busy_s),
    Column("incidents", right=True, spare=2, of=lambda one: one.incidents),
    Column("evictions", right=True, spare=1, of=lambda one: one.evictions),
    Column("quarantine", of=_quarantine),
)


def sorted_hosts(hosts: Iterable[HostRow]) -> list[HostRow]:
    """Those in quarantine first, then the worst; those that run nothing last."""
    return sorted(
        hosts,
        key=lambda one: (
            not one.quarantined, not one.ranks, badness(one.health), natural(one.name)
        ),
    )  # fmt: skip
