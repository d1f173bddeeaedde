"""The monitor's own health: how far it may trust what it sees. Pure.

Theory of operation (Lifeguard's local health multiplier, arXiv 1707.00788; memberlist
`awareness.go`). Each tick brings evidence against the observer: it ran late, many targets fell
silent at once, its wall clock jumped, its threads waited for a core, its disk takes no writes.
Evidence against its eyes raises a score, a clean tick lowers it by one; thresholds are multiplied
by one plus the score, so that a possible fault of the monitor must last longer before anybody is
accused. While the score of the eyes is above zero, or decisions could not be stored, nobody is
evicted. Nothing here ever accuses: doubt only makes the keeper slower.

A long silence is no longer news: it still holds evictions but scales nothing, so that a lost rack
does not blind the monitor to the next fault. Silent targets on a single host mean that the host is
sick, not the monitor.

Silence is counted by voter, not by rank: a voter's silence is the silent share of its ranks. Who
registers ranks from one address is one voter, however many names and hosts it brings, so that it
alone neither makes nor breaks the doubt. Only the bringer of the run's first rank has a voter for
each of its hosts: where all ranks come from one address (one machine, a proxy) its hosts are all
there is to count, also when somebody else joins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import Failure, Observation, Snapshot, Unreachable

MOST: Final = 7
"""Highest score: thresholds grow at most eightfold (memberlist's `AwarenessMaxMultiplier` is 8)."""
_GROSS: Final = 3
"""Weight of gross evidence, in ticks of ordinary evidence."""
_GROSS_LATE_TICKS: Final = 10.0
_GROSS_SHARE: Final = 0.5
_NEWS_S: Final = 30.0
"""A younger silence is evidence about the monitor; an older one only about the target."""
_JUMP_S: Final = 1.0
"""Wall clock against monotonic, in one tick: NTP slews by at most 0.5 ms a second."""
_STRAIN_MOST: Final = 1
"""Starvation alone at most doubles thresholds: its effect on the eyes shows as lateness."""


class Condition(StrEnum):
    """What is wrong with the monitor, worst first."""

    CUT_OFF = "cut_off"  # many targets on several hosts are silent at once
    LATE = "late"  # the tick ran late, or its sweep took too long
    CLOCK_JUMPED = "clock_jumped"  # its host was suspended, or somebody set the clock
    STARVED = "starved"  # its threads wait for a core
    CANNOT_WRITE = "cannot_write"  # a restart would lose what it decides now
    RECOVERING = "recovering"  # the last ticks were clean, the score is not zero yet
    WELL = "well"


@dataclass(frozen=True, slots=True)
class Health:
    conditions: Mapping[Condition, str] = field(default_factory=dict)
    """Condition -> what was seen, worst first; empty: it is well."""
    score: int = 0
    hold: str | None = None
    """Why nobody may be evicted based on this tick; None: no objection."""

    @property
    def state(self) -> Condition:
        """The worst condition; `WELL` if there is none."""
        return next(iter(self.conditions), Condition.WELL)

    @property
    def scale(self) -> float:
        """What thresholds are multiplied by."""
        return 1.0 + self.score


@dataclass(slots=True)
class SelfHealth:
    """Keeps the score from tick to tick."""

    config: KeeperConfig
    _eyes: int = 0
    _strain: int = 0
    _silent_since: dict[RankName, float] = field(default_factory=dict)
    _heard: set[RankName] = field(default_factory=set)
    """Ranks that have ever answered."""
    _offset_s: float | None = None
    """Wall clock minus the steady clock."""

    def push(self, snapshot: Snapshot) -> Health:
        conditions: dict[Condition, str] = {}
        weight = max(
            self._silence(snapshot, conditions), self._lateness(snapshot, conditions),
            self._clock(snapshot, conditions),
        )  # fmt: skip
        self._eyes = min(MOST, self._eyes + weight) if weight else max(0, self._eyes - 1)
        starved = self._starvation(snapshot, conditions)
        self._strain = min(_STRAIN_MOST, self._strain + 1) if starved else max(0, self._strain - 1)
        if snapshot.vitals.disk is not None:
            conditions[Condition.CANNOT_WRITE] = f"its disk takes no writes: {snapshot.vitals.disk}"
        score = max(self._eyes, self._strain)
        if score and not conditions:
            conditions[Condition.RECOVERING] = "it was late or cut off a moment ago"
        ordered = {key: conditions[key] for key in Condition if key in conditions}
        return Health(ordered, score, self._hold(ordered))

    def _hold(self, conditions: Mapping[Condition, str]) -> str | None:
        for condition in (Condition.CUT_OFF, Condition.LATE, Condition.CLOCK_JUMPED):
            if condition in conditions:
                return f"this monitor may be the sick one: {conditions[condition]}"
        if Condition.CANNOT_WRITE in conditions:
            return f"this monitor could not remember it: {conditions[Condition.CANNOT_WRITE]}"
        if self._eyes:
            return "this monitor was late or cut off a moment ago"
        return None

    # -- evidence: each returns its weight, 0 when there is none or it is old --------------------

    def _silence(self, snapshot: Snapshot, conditions: dict[Condition, str]) -> int:
        spoke = {seen.rank for seen in snapshot.observations if _was_heard(seen)}
        self._heard = spoke | (self._heard & snapshot.by_rank.keys())
        # who never answered is no sign that the monitor is cut off; unless nobody ever did
        counted = [seen for seen in snapshot.observations if seen.rank in self._heard]
        counted = counted or list(snapshot.observations)
        silent = [seen for seen in counted if _is_silent(seen)]
        self._silent_since = {
            seen.rank: self._silent_since.get(seen.rank, snapshot.now_s) for seen in silent
        }
        ours = "" if snapshot.run is None else snapshot.run.bringer
        limit, voters = self.config.unreachable_share, Counter(_voter(s, ours) for s in silent)
        if len(voters) < 2:
            return 0
        heard = Counter(_voter(seen, ours) for seen in counted)
        if _share(voters, heard) <= limit:
            return 0
        conditions[Condition.CUT_OFF] = (
            f"{len(silent)} of {len(counted)} targets are silent at once"
        )
        since_s = snapshot.now_s - _NEWS_S
        news = Counter(_voter(s, ours) for s in silent if self._silent_since[s.rank] > since_s)
        if news.total() < 2 or (share := _share(news, heard)) <= limit:
            return 0
        return _GROSS if share >= _GROSS_SHARE else 1

    def _lateness(self, snapshot: Snapshot, conditions: dict[Condition, str]) -> int:
        ticks = snapshot.lateness_s / self.config.tick_s
        if ticks <= self.config.lateness_ticks:
            return 0
        conditions[Condition.LATE] = f"it runs late by {snapshot.lateness_s:.1f} s"
        return _GROSS if ticks >= _GROSS_LATE_TICKS else 1

    def _clock(self, snapshot: Snapshot, conditions: dict[Condition, str]) -> int:
        wall_s = snapshot.vitals.wall_s
        if wall_s is None:
            return 0
        before_s, self._offset_s = self._offset_s, wall_s - snapshot.now_s
        if before_s is None or abs(self._offset_s - before_s) <= _JUMP_S:
            return 0
        jump_s = self._offset_s - before_s
        conditions[Condition.CLOCK_JUMPED] = f"its wall clock jumped by {jump_s:+.1f} s"
        return 1

    def _starvation(self, snapshot: Snapshot, conditions: dict[Condition, str]) -> bool:
        starved = snapshot.vitals.starved
        if starved is None or starved <= self.config.starved_share:
            return False
        conditions[Condition.STARVED] = (
            f"its threads waited for a core {starved:.0%} of the last tick"
        )
        return True


def _voter(seen: Observation, ours: str) -> str:
    """`ours`: the bringer of the run's first rank."""
    return seen.identity.host if seen.bringer in ("", ours) else seen.bringer


def _share(silent: Mapping[str, int], heard: Mapping[str, int]) -> float:
    """The silent share of the fleet, each voter counted once."""
    return sum(ranks / heard[voter] for voter, ranks in silent.items()) / len(heard)


def _was_heard(seen: Observation) -> bool:
    """True if it answers, or answered an earlier monitor."""
    return not _is_silent(seen) or seen.trained_as is not None


def _is_silent(seen: Observation) -> bool:
    """True if it sent nothing; a target that answers garbage is heard, and is the sick one."""
    return isinstance(seen.outcome, Unreachable) and seen.outcome.reason not in _HEARD


_HEARD: Final = (Failure.GARBAGE, Failure.HTTP, Failure.STRANGER, Failure.RENAMED)
_SCALED: Final = (
    "stall_floor_s", "undeclared_floor_s", "witnessed_floor_s", "stall_factor", "silent_s",
    "host_lost_s", "mismatch_suspect_s", "lighthouse_away_s", "lag_absent_s",
)  # fmt: skip
"""Thresholds on durations: a sick monitor may see these wrongly."""


def scaled(config: KeeperConfig, scale: float) -> KeeperConfig:
    """The configuration with thresholds scaled for a monitor in doubt."""
    if scale == 1.0:
        return config
    changes: dict[str, float] = {
        name: config.limited(name, scale * getattr(config, name)) for name in _SCALED
    }
    return replace(config, **changes)  # type: ignore[arg-type]
