"""How long ranks work a step: windows common to the whole fleet, robust within each.

Theory of operation. From sweep to sweep a rank's busy seconds (all phases but waiting and
the long ones) are divided by the steps that it began meanwhile; its pace in a window is the
median of these shares. So a process that is descheduled once in a while (1 to 3 s is common on
a busy host, facts/trainer.md) has the pace of its other steps. Means would accuse whoever was
unlucky. A window ends after
`window_s` once every rank has `window_steps` in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from monitor import cohort
from monitor.config import KeeperConfig
from monitor.names import RankName, split_rank_name
from worker_server.wire import LONG_PHASES, WAITING_PHASE, StepState

_WINDOWS_KEPT: Final = 120


@dataclass(frozen=True, slots=True)
class Pace:
    """How one rank worked in one window."""

    incarnation: str
    steps: int
    busy_s: float
    """Median seconds a step in which the rank did not wait across groups."""
    low_s: float
    """The share that only 3 of 10 sweeps undercut: what a rank must be slow by. One that is
    descheduled for half of a window has a high median, and is well."""
    step_s: float
    """Mean seconds a step, waiting included, long phases left out."""
    held: float = 0.0
    """Share of its busy seconds in which collectives held it: FSDP's lie within forward and
    backward, so a victim's busy seconds hold its waiting. Where its WorkerServer does not tell
    the seconds, the share of busy sweeps in which it was inside one of its own group."""
    alone_s: float = 0.0
    """Median seconds a step in which it worked: busy, and not held."""
    usual_s: float = 0.0
    """Median busy seconds a step of the others in its cohort: same group rank, other groups."""
    cohort: int = 1
    """Ranks in the cohort, itself included."""
    z: float = 0.0
    """Robust z-score of `low_s`: distance from the cohort's median, in
    1.4826 max(MAD, 1 % of the median)."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds a step in each phase, waiting and long ones too."""
    tokens: float = 0.0
    """Tokens a step; 0 where none are reported."""
    work: float = 1.0
    """How many times its peers' tokens it had, never under 1: more tokens excuse, fewer do not
    accuse."""


@dataclass(frozen=True, slots=True)
class Window:
    """One span of time, over which the paces of all ranks can be compared."""

    start_s: float
    end_s: float
    paces: Mapping[RankName, Pace]


@dataclass(frozen=True, slots=True)
class Reading:
    """One participating rank in one sweep."""

    rank: RankName
    incarnation: str
    step: StepState
    inside: bool
    """Whether it is inside a collective of its own group."""
    held_s: float | None = None
    """Seconds so far in which collectives held it and no phase said so; None: not known."""


@dataclass(frozen=True, slots=True)
class _Counters:
    attempt: int
    busy_s: float
    held_s: float | None
    long_s: float
    phases: Mapping[str, float]
    tokens: int


@dataclass(slots=True)
class _Course:
    """One rank since its window began."""

    incarnation: str
    start: _Counters
    last: _Counters
    shares_s: list[float] = field(default_factory=list)
    alone_s: list[float] = field(default_factory=list)
    sweeps: int = 0
    held: int = 0
    current: bool = True
    """Whether the latest sweep saw it."""


@dataclass(slots=True)
class PaceMeter:
    """Turns sweeps into windows, of which it keeps the last 120."""

    config: KeeperConfig
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS_KEPT))
    _courses: dict[RankName, _Course] = field(default_factory=dict)
    _start_s: float | None = None

    def drop(self) -> None:
        """Throw the window under way away."""
        self._start_s = None

    def push(self, now_s: float, readings: Iterable[Reading]) -> None:
        """Take in one sweep of the participating ranks."""
        sweep = {reading.rank: reading for reading in readings}
        if self._start_s is None:
            self._begin(now_s, sweep)
            return
        for rank, course in self._courses.items():
            _advance(course, sweep.get(rank))
        span_s = now_s - self._start_s
        if span_s > self.config.window_limit_s:
            self._begin(now_s, sweep)
        elif span_s >= self.config.window_s:
            self._end(now_s, sweep)

    def _begin(self, now_s: float, sweep: Mapping[RankName, Reading]) -> None:
        self._start_s, self._courses = now_s, {}
        for rank, reading in sweep.items():
            counters = _counters(reading)
            self._courses[rank] = _Course(reading.incarnation, counters, counters)

    def _end(self, now_s: float, sweep: Mapping[RankName, Reading]) -> None:
        here = {rank: course for rank, course in self._courses.items() if course.current}
        if any(_steps(course) < self.config.window_steps for course in here.values()):
            return
        start_s = now_s if self._start_s is None else self._start_s
        paces = {rank: _pace(course, now_s - start_s) for rank, course in here.items()}
        if paces:
            self.windows.append(Window(start_s, now_s, _compared(paces)))
        self._begin(now_s, sweep)


def _counters(reading: Reading) -> _Counters:
    step = reading.step
    busy_s = long_s = 0.0
    phases: dict[str, float] = {}
    for name, spent_s in (*step.seconds.items(), (step.phase, step.phase_age_s)):
        phases[name] = phases.get(name, 0.0) + spent_s
        if name in LONG_PHASES:
            long_s += spent_s
        elif name != WAITING_PHASE:
            busy_s += spent_s
    return _Counters(step.attempt, busy_s, reading.held_s, long_s, phases, step.tokens)


def _advance(course: _Course, reading: Reading | None) -> None:
    course.current = reading is not None and reading.incarnation == course.incarnation
    if reading is None or not course.current:
        return
    if reading.step.phase != WAITING_PHASE and reading.step.phase not in LONG_PHASES:
        course.sweeps += 1
        course.held += reading.inside
    if reading.step.attempt > course.last.attempt:
        now = _counters(reading)
        spent_s = max(0.0, now.busy_s - course.last.busy_s)
        steps = now.attempt - course.last.attempt
        course.shares_s.append(spent_s / steps)
        if now.held_s is not None and course.last.held_s is not None:
            held_s = now.held_s - course.last.held_s
            course.alone_s.append(max(0.0, spent_s - held_s) / steps)
        course.last = now


def _steps(course: _Course) -> int:
    return course.last.attempt - course.start.attempt


def _pace(course: _Course, span_s: float) -> Pace:
    steps = _steps(course)
    paused_s = course.last.long_s - course.start.long_s
    shares_s = sorted(course.shares_s) or [0.0]
    busy_s, held = median(shares_s), _held(course)
    return Pace(
        incarnation=course.incarnation,
        steps=steps,
        busy_s=busy_s,
        low_s=shares_s[int(0.3 * (len(shares_s) - 1))],
        step_s=max(0.0, span_s - paused_s) / max(1, steps),
        held=held,
        alone_s=median(course.alone_s) if course.alone_s else busy_s * (1 - held),
        phases={
            name: max(0.0, spent_s - course.start.phases.get(name, 0.0)) / max(1, steps)
            for name, spent_s in course.last.phases.items()
        },
        tokens=max(0, course.last.tokens - course.start.tokens) / max(1, steps),
    )


def _held(course: _Course) -> float:
    """Share of the busy time in which collectives held the rank."""
    first, last = course.start, course.last
    if first.held_s is None or last.held_s is None:
        return course.held / course.sweeps if course.sweeps else 0.0
    busy_s = last.busy_s - first.busy_s
    return min(1.0, max(0.0, last.held_s - first.held_s) / busy_s) if busy_s > 0 else 0.0


def _compared(paces: Mapping[RankName, Pace]) -> dict[RankName, Pace]:
    """Each pace beside those of its cohort."""
    lanes: dict[int, list[RankName]] = {}
    for rank in paces:
        lanes.setdefault(split_rank_name(rank)[1], []).append(rank)
    found = dict(paces)
    for lane in lanes.values():
        if len(lane) < 2:
            continue
        busy = np.array([paces[rank].busy_s for rank in lane])
        low = np.array([paces[rank].low_s for rank in lane])
        usual = cohort.usual(busy)
        work = _work([paces[rank].tokens for rank in lane])
        scores = cohort.z_scores(busy, low / work)
        for place, rank in enumerate(lane):
            found[rank] = replace(
                paces[rank],
                usual_s=float(usual[place]),
                cohort=len(lane),
                z=float(scores[place]),
                work=float(work[place]),
            )
    return found


def _work(tokens: Sequence[float]) -> cohort.Floats:
    """Tokens of each against the median of the others, not under 1; 1 where some report none."""
    counts = np.array(tokens, dtype=np.float64)
    if not (counts > 0).all():
        return np.ones(len(tokens))
    return np.asarray(np.maximum(1.0, counts / cohort.usual(counts)), dtype=np.float64)
