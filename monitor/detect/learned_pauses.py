"""How long this job's ranks pause by themselves: learned from gaps that ended well. Pure.

Theory of operation. A gap is a stretch in which a rank stood still on its own (in no collective,
and not waiting) and then continued. An undeclared evaluation, a checkpoint, a recompilation or a
garbage collection looks like that, and so does a hang until it ends. Gaps are kept by role (the
group rank: rank 0 may evaluate where others do not) and phase; those of several ranks at one time
are one event. Learning is robust: a gap shorter than the stall floor excuses itself and counts only
when it was seen three times (the third largest does); one longer than the floor counts at once,
because a false alarm is worse than a late one. It fades: after a half-life without another it
counts half. A gap ended by an eviction or a death does not count.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName
from lightkeeper.monitor.model.observation import PAUSE_S
from lightkeeper.worker_server.wire import LONG_PHASES, WAITING_PHASE, StepLog, StepState

_EVENTS_KEPT: Final = 32
_RECENT_KEPT: Final = 256
_DECLARED_KEPT: Final = 16
_PHASES_KEPT: Final = 64
"""A reporter has 16 names; further invented ones are not kept."""
_SEEN_OFTEN: Final = 3
"""Sightings that make a short gap a habit; one or two mean a busy host."""
_UNUSUAL: Final = 5.0
"""Multiple of the phase's mean above which its seconds in one step are a pause, not its pace."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One pause of one rank that is over."""

    rank: RankName
    role: int
    """Its group rank."""
    phase: str
    span_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class UsualPause:
    """Summary of the gaps of one role and phase at one moment."""

    span_s: float
    events: int


@dataclass(slots=True)
class Habits:
    """Gaps of one job, bounded."""

    config: KeeperConfig
    _events: dict[tuple[int, str], deque[Gap]] = field(default_factory=dict)
    _declared: dict[tuple[RankName, str], deque[Gap]] = field(default_factory=dict)
    """Rank and declared phase -> its last pauses."""
    _recent: deque[Gap] = field(default_factory=lambda: deque(maxlen=_RECENT_KEPT))

    def take(self, gap: Gap) -> None:
        """Remember a gap that is over; peers' gaps at the same time are one event."""
        if gap.phase in LONG_PHASES:
            declared = self._declared.setdefault(
                (gap.rank, gap.phase), deque(maxlen=_DECLARED_KEPT)
            )
            declared.append(gap)
        self._recent.append(gap)
        key = (gap.role, gap.phase)
        if key not in self._events and len(self._events) >= _PHASES_KEPT * 16:
            return
        events = self._events.setdefault(key, deque(maxlen=_EVENTS_KEPT))
        for index, event in enumerate(events):
            if _together(event, gap):
                longer = max(event, gap, key=lambda pause: pause.span_s)
                events[index] = replace(longer, ended_s=max(event.ended_s, gap.ended_s))
                return
        events.append(gap)

    def declared(self, rank: RankName, phase: str) -> tuple[Gap, ...]:
        """The last declared pauses of one rank, oldest first."""
        return tuple(self._declared.get((rank, phase), ()))

    def forget(self, rank: RankName) -> None:
        """The rank is another process now; its role keeps what it learned."""
        for key in [key for key in self._declared if key[0] == rank]:
            del self._declared[key]

    def learned(self, role: int, phase: str, now_s: float) -> UsualPause | None:
        """What is usual for this role in this phase; None when nothing is known."""
        events = sorted(self._events.get((role, phase), ()), key=lambda gap: gap.ended_s)
        if not events:
            return None
        floor_s = self.config.stall_floor_s
        faded = sorted((self._faded(gap, events, now_s) for gap in events), reverse=True)
        long_s = [self._faded(gap, events, now_s) for gap in events if gap.span_s >= floor_s]
        often_s = faded[_SEEN_OFTEN - 1] if len(faded) >= _SEEN_OFTEN else 0.0
        span_s = max((*long_s, often_s))
        if span_s <= 0:
            return None
        return UsualPause(span_s, sum(gap.span_s >= span_s / 2 for gap in events))

    def meanwhile(self, phase: str, since_s: float, but: RankName) -> Gap | None:
        """The longest pause of another rank in this phase that ended after `since_s`."""
        return max(
            (gap for gap in self._recent
             if gap.phase == phase and gap.ended_s >= since_s and gap.rank != but),
            key=lambda gap: gap.span_s,
            default=None,
        )  # fmt: skip

    def _faded(self, gap: Gap, events: Sequence[Gap], now_s: float) -> float:
        """A gap's length, halved for each half-life since it ended.

        For recurring gaps the half-life is at least twice the time between them.
        """
        ends = [event.ended_s for event in events if event.span_s >= gap.span_s / 2]
        between_s = max((b - a for a, b in itertools.pairwise(ends)), default=0.0)
        half_life_s = max(self.config.habit_half_life_s, 2 * between_s)
        return float(gap.span_s * 0.5 ** int(max(0.0, now_s - gap.ended_s) / half_life_s))


def pauses_of(log: StepLog, step: StepState, now_s: float, first: int) -> tuple[Gap, ...]:
    """The pauses of a rank's past, oldest first, starting with attempt `first`."""
    identity = log.identity
    mean_s = {name: spent_s / max(1, step.attempt) for name, spent_s in step.seconds.items()}
    return tuple(
        Gap(identity.rank, identity.group_rank, name, spent_s, now_s - row.end_age_s)
        for row in log.rows
        if row.attempt >= first
        for name, spent_s in sorted(row.seconds.items())
        if name != WAITING_PHASE
        and (name in LONG_PHASES or spent_s >= max(PAUSE_S, _UNUSUAL * mean_s.get(name, 0.0)))
    )


def _together(gap: Gap, other: Gap) -> bool:
    """True if two gaps overlapped in time."""
    return gap.ended_s > other.ended_s - other.span_s and other.ended_s > gap.ended_s - gap.span_s
