"""The fleet of one tick as `GET /v1/snapshot` tells it, in values. Pure.

Texts are other people's: made safe for a terminal once, here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.pipeline import WORST_FIRST
from monitor.reports.wording import clean

HEALTHS: Final = tuple(str(one) for one in WORST_FIRST)
_NAME: Final = 120


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank; None is not known."""

    name: str
    group: str
    host: str
    health: str
    phase: str | None
    phase_age_s: float | None
    step: int | None
    commits: int | None
    commit_age_s: float | None
    step_s: float | None
    busy_s: float | None
    loss: float | None
    quorum_id: int | None
    participants: int | None
    pid: int | None
    url: str
    trouble: str
    """What is wrong with it, or why it cannot be reached; empty: nothing is known."""
    silent: bool
    """Whether it does not answer."""

    @property
    def wait_s(self) -> float | None:
        """What a step takes beside its own work: it waits for others."""
        if self.step_s is None or self.busy_s is None:
            return None
        return max(0.0, self.step_s - self.busy_s)


@dataclass(frozen=True, slots=True)
class Group:
    """One replica group."""

    name: str
    host: str
    health: str
    """Its worst rank's; `evicting` while it is put out."""
    step: int | None
    commits: int | None
    in_quorum: bool | None
    size: int
    heartbeat_age_s: float | None
    launched_as: str | None = None
    """What its launcher calls it, where that is another name."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that `status`, `ranks`, `groups` and `top` show of one tick."""

    now_s: float
    tick: int
    ranks: tuple[Rank, ...]
    groups: tuple[Group, ...]
    incidents: tuple[Mapping[str, Any], ...]
    """Open ones, as the API tells them."""
    body: Mapping[str, Any]
    """The rest of the snapshot."""

    @property
    def median_step_s(self) -> float | None:
        """Seconds a step takes, of the ranks of which it is known."""
        known = [one.step_s for one in self.ranks if one.step_s is not None]
        return statistics.median(known) if known else None


def count(rows: Sequence[Rank] | Sequence[Group]) -> dict[str, int]:
    """Health -> how many, worst first; none is left out but those that nobody has."""
    found: dict[str, int] = {}
    for one in rows:
        found[one.health] = found.get(one.health, 0) + 1
    return dict(sorted(found.items(), key=lambda item: badness(item[0])))


def badness(health: str) -> int:
    """For sorting, worst first; what is not known is bad."""
    return HEALTHS.index(health) if health in HEALTHS else -1


def fleet_of(body: Mapping[str, Any]) -> Fleet:
    """A snapshot's JSON as values."""
    return Fleet(
        now_s=float(body["now_s"]),
        tick=int(body["tick"]),
        ranks=ranks_of(body["ranks"]),
        groups=groups_of(body["groups"]),
        incidents=tuple(body["incidents"]),
        body=body,
    )


def ranks_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Rank, ...]:
    """`ranks` of `/v1/ranks` or of a snapshot."""
    return tuple(_rank(one) for one in rows)


def groups_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Group, ...]:
    """`groups` of `/v1/groups` or of a snapshot."""
    return tuple(
        Group(
            name=_name(one["group"]),
            host=_name(one["host"]),
            health=_name(one["eviction"] or one["health"]),
            step=one["step"],
            commits=one["commits"],
            in_quorum=one["in_quorum"],
            size=len(one["ranks"]),
            heartbeat_age_s=one["heartbeat_age_s"],
            launched_as=None if (told := one.get("launched_as")) is None else _name(told),
        )
        for one in rows
    )


def _rank(one: Mapping[str, Any]) -> Rank:
    phase = one["phase"]
    return Rank(
        name=_name(one["rank"]),
        group=_name(one["group"]),
        host=_name(one["host"]),
        health=_name(one["health"]),
        phase=None if phase is None else _name(phase),
        phase_age_s=one["phase_age_s"],
        step=one["step"],
        commits=one["commits"],
        commit_age_s=one["last_commit_age_s"],
        step_s=one["step_s"],
        busy_s=one["busy_s"],
        loss=one["loss"],
        quorum_id=one["quorum_id"],
        participants=one["participants"],
        pid=one["pid"],
        url=_name(one["url"]),
        trouble=clean(str(one["trouble"]), 300),
        silent=one["unreachable"] is not None,
    )


def _name(text: object) -> str:
    return clean(str(text), _NAME) if text is not None else "-"
