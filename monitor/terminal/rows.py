"""Which ranks, groups and hosts are wanted, in which order, and their columns. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from monitor.terminal.fleet import Group, Rank, badness
from monitor.terminal.grid import STYLES, Cell, Column, age, word

T = TypeVar("T")
_LAST: Final = float("inf")
_WELL: Final = ("healthy", "waiting")
"""Who waits is held up by somebody else."""
_DIGITS: Final = re.compile(r"([0-9]+)")


@functools.lru_cache(maxsize=1 << 17)  # the same names at each look
def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """`rg_10` comes behind `rg_9`."""
    return tuple(
        (False, int(part[:18]), part) if part.isascii() and part.isdigit() else (True, 0, part)
        for part in _DIGITS.split(name)
        if part
    )


RANK_ORDERS: Final[Mapping[str, Callable[[Rank], Any]]] = {
    "rank": lambda one: _natural(one.name),
    "busy": lambda one: _most(one.busy_s),
    "wait": lambda one: _most(one.wait_s),
    "phase-age": lambda one: _most(one.phase_age_s),
    "step": lambda one: _LAST if one.step is None else one.step,
    "commit-age": lambda one: _most(one.commit_age_s),
    "health": lambda one: badness(one.health),
    "host": lambda one: _natural(one.host),
}
"""What each order puts first: names in order, the longest busy, waiting or in a phase, the step
furthest behind, the worst health. Ties by name; what is not known is last."""

GROUP_ORDERS: Final[Mapping[str, Callable[[Group], Any]]] = {
    "group": lambda one: _natural(one.name),
    "health": lambda one: badness(one.health),
    "step": lambda one: _LAST if one.step is None else one.step,
    "heartbeat": lambda one: _most(one.heartbeat_age_s),
    "host": lambda one: _natural(one.host),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Filters; empty ones let everything pass."""

    groups: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    healths: frozenset[str] = frozenset()
    unhealthy: bool = False

    def rank(self, one: Rank) -> bool:
        """Whether this rank is wanted."""
        return self._health(one.health) and all(
            not chosen or has in chosen
            for chosen, has in ((self.groups, one.group), (self.hosts, one.host))
        )

    def group(self, one: Group) -> bool:
        """Whether this group is wanted."""
        return self._health(one.health) and all(
            not chosen or has in chosen
            for chosen, has in ((self.groups, one.name), (self.hosts, one.host))
        )

    def host(self, one: HostRow) -> bool:
        """Whether this host is wanted; one in quarantine is not well."""
        if self.unhealthy and not one.quarantined and one.health in (*_WELL, "-"):
            return False
        named = not self.hosts or one.name in self.hosts
        return named and (not self.healths or one.health in self.healths)

    def _health(self, health: str) -> bool:
        if self.unhealthy and health in _WELL:
            return False
        return not self.healths or health in self.healths


def sorted_ranks(ranks: Iterable[Rank], order: str, *, reverse: bool = False) -> list[Rank]:
    """In this order; ties by health and name, and last those of which it is not known."""
    named = sorted(ranks, key=lambda one: _natural(one.name))
    if order not in ("rank", "host"):
        named.sort(key=lambda one: badness(one.health))
    return _ordered(named, RANK_ORDERS[order], reverse=reverse)


def sorted_groups(groups: Iterable[Group], order: str, *, reverse: bool = False) -> list[Group]:
    """In this order; ties by name, and last those of which it is not known."""
    named = sorted(groups, key=lambda one: _natural(one.name))
    return _ordered(named, GROUP_ORDERS[order], reverse=reverse)


def _ordered(named: Sequence[T], key: Callable[[T], Any], *, reverse: bool) -> list[T]:
    keyed = [(key(one), one) for one in named]
    known = [pair for pair in keyed if pair[0] != _LAST]
    known.sort(key=lambda pair: pair[0], reverse=reverse)
    return [one for _, one in known] + [one for value, one in keyed if value == _LAST]


def _most(value: float | None) -> float:
    return _LAST if value is None else -value


# -- columns and cells ---------------------------------------------------------------------------

RANK_COLUMNS: Final = (
    Column("rank"),
    Column("health", least=11),
    Column("host", spare=5),
    Column("phase", spare=1, least=13),
    Column("for", right=True, least=5),
    Column("step", right=True, spare=2, least=6),
    Column("s/step", right=True, spare=4, least=7),
    Column("busy", right=True, least=7),
    Column("wait", right=True, spare=3, least=7),
)
WIDE_COLUMNS: Final = (
    Column("commits", right=True),
    Column("commit", right=True),
    Column("loss", right=True),
    Column("quorum", right=True),
    Column("of", right=True),
    Column("pid", right=True),
    Column("url"),
)
TROUBLE: Final = Column("trouble")
GROUP_COLUMNS: Final = (
    Column("group"),
    Column("health", least=11),
    Column("host", spare=3),
    Column("ranks", right=True, spare=2),
    Column("step", right=True),
    Column("commits", right=True, spare=1),
    Column("quorum"),
    Column("heartbeat", right=True, spare=4),
)


def rank_columns(*, wide: bool) -> tuple[Column, ...]:
    """What `ranks` and `top` show."""
    return (*RANK_COLUMNS, *(WIDE_COLUMNS if wide else ()), TROUBLE)


def rank_cells(one: Rank, *, wide: bool) -> list[Cell]:
    """One rank, in those columns."""
    cells = [
        (word(one.name), ""),
        health_cell(one.health),
        (word(one.host), ""),
        (word(one.phase), ""),
        (age(one.phase_age_s), ""),
        (word(one.step), ""),
        (word(one.step_s), ""),
        (word(one.busy_s), ""),
        (word(one.wait_s), ""),
    ]
    if wide:
        more = (one.commits, age(one.commit_age_s), one.loss, one.quorum_id, one.participants,
                one.pid, one.url)  # fmt: skip
        cells += [(word(value), "") for value in more]
    return [*cells, (one.trouble or "-", "magenta" if one.trouble else "dim")]


def group_cells(one: Group) -> list[Cell]:
    """One group."""
    return [
        (word(one.name if one.launched_as is None else f"{one.name} ({one.launched_as})"), ""),
        health_cell(one.health),
        (word(one.host), ""),
        (word(one.size), ""),
        (word(one.step), ""),
        (word(one.commits), ""),
        (word(one.in_quorum), ""),
        (age(one.heartbeat_age_s), ""),
    ]


def health_cell(health: str) -> Cell:
    """A health's word in its colour."""
    return (word(health), STYLES.get(health, ""))


HOST_COLUMNS: Final = (
    Column("host"),
    Column("health"),
    Column("groups", right=True),
    Column("ranks", right=True),
    Column("busy", right=True),
    Column("incidents", right=True, spare=2),
    Column("evictions", right=True, spare=1),
    Column("quarantine"),
)


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host: its ranks and its record."""

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

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)

    def cells(self) -> list[Cell]:
        """In the columns above."""
        held = f"until {self.until}" if self.quarantined else "-"
        return [
            (word(self.name), ""),
            health_cell(self.health),
            (word(self.groups), ""),
            (word(self.ranks), ""),
            (word(self.busy_s), ""),
            (word(self.incidents), ""),
            (word(self.evictions), ""),
            (held, "bold yellow" if self.quarantined else "dim"),
        ]


def sorted_hosts(hosts: Iterable[HostRow]) -> list[HostRow]:
    """Those in quarantine first, then the worst; those that run nothing last."""
    return sorted(
        hosts,
        key=lambda one: (
            not one.quarantined, not one.ranks, badness(one.health), _natural(one.name)
        ),
    )  # fmt: skip
