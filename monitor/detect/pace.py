"""How long ranks work a step: windows common to the whole fleet, robust within each.

Theory of operation. A rank is busy while it does not wait for others: its phases say so, or, where
the loop declares none, its time less what its WorkerServer saw it wait (`StepState.waited_s`); both
by the rank's own clock. Samples of 3 steps and more are taken, and in each the share of the time in
which it was busy: a step more or less at the edges of a sample changes no share. A rank's pace in a
window is the median of its shares, in seconds of the usual step there. So one that is descheduled
once in a while (1 to 3 s is common on a busy host, facts/trainer.md), or that saves now and then,
has the pace of its other steps, and one that is slow in every third step is slow in every sample.
Means would accuse whoever was unlucky. A window ends after `window_s` once every rank has
`window_steps` in it.

Who is traced, or whose waits stopped being told, has no pace in that window.

A job of 10,000 ranks would fill a gigabyte with objects, and every question would walk through
them. So a window is a table of numbers, one row a figure and one column a rank; a `Pace` is made
of it when somebody asks for one rank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Final

import numpy as np

from monitor.model import cohort
from monitor.model.cohort import Floats
from monitor.model.config import KeeperConfig
from monitor.model.names import RankName, split_rank_name
from worker_server.wire import LONG_PHASES, WAITING_PHASE, StepState, Witness

# -- what a window holds ---------------------------------------------------------------------------

_PHASES_MOST: Final = 24
"""Of a window, those that most ranks report: a name is the rank's own word, and takes a row."""


@dataclass(slots=True)
class Pace:
    """How one rank worked in one window."""

    incarnation: str
    steps: int
    busy_s: float
    """Median seconds a step in which the rank did not wait across groups."""
    low_s: float
    """What only 3 of 10 samples undercut: what a rank must be slow by. One that is descheduled for
    half of a window has a high median, and is well."""
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
    sees_group: bool = True
    """Whether waiting for ranks of its own group shows: not where C++ does it by itself (DDP)."""
    stopped: float = 0.0
    """Share of the sweeps that found its process stopped by a signal."""
    witness: Witness | None = None
    """Where its main thread stood, when it was last seen to stand long enough."""
    calls: int | None = None
    """Collectives entered; None where phases tell what is waiting."""
    starved: float = 0.0
    """Share of the time in which it was ready to run and got no core."""


_FIGURES: Final = (
    "steps", "busy_s", "low_s", "step_s", "held", "alone_s", "usual_s", "cohort", "z", "tokens",
    "work", "sees_group", "stopped", "calls", "starved",
)  # fmt: skip
"""Numbers of a pace, in the order of a table's rows; the seconds in each phase follow."""
_ROW: Final = {name: row for row, name in enumerate(_FIGURES)}


@dataclass(frozen=True)
class Roster:
    """Whose paces a table has; one for all windows in which they are the same."""

    ranks: tuple[RankName, ...]
    incarnations: tuple[str, ...]

    @cached_property
    def places(self) -> Mapping[RankName, int]:
        """Where a rank's numbers are."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def lanes(self) -> Floats:
        """Their group ranks: those of one lane are peers."""
        return np.array([split_rank_name(rank)[1] for rank in self.ranks], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Paces(Mapping[RankName, Pace]):
    """The paces of one window."""

    roster: Roster
    phases: tuple[str, ...]
    table: bytes
    """Doubles, a row for each figure and phase; not a number where a rank has none."""
    witnesses: Mapping[RankName, Witness]

    @classmethod
    def of(cls, paces: Mapping[RankName, Pace], like: Roster | None = None) -> Paces:
        """These as a table; `like`: the roster of the window before, which is mostly the same."""
        roster = Roster(tuple(paces), tuple(pace.incarnation for pace in paces.values()))
        told = Counter(phase for pace in paces.values() for phase in pace.phases)
        most = sorted(told, key=lambda phase: (-told[phase], phase))[:_PHASES_MOST]
        phases = tuple(phase for phase in told if phase in most)
        nan = float("nan")
        rows = [
            [nan if (told := getattr(pace, name)) is None else told for pace in paces.values()]
            for name in _FIGURES
        ]
        rows += [[pace.phases.get(phase, nan) for pace in paces.values()] for phase in phases]
        return cls(
            roster=like if roster == like and like is not None else roster,
            phases=phases,
            table=np.array(rows, dtype=np.float64).tobytes(),
            witnesses={r: pace.witness for r, pace in paces.items() if pace.witness is not None},
        )

    def figure(self, name: str) -> Floats:
        """One of a pace's numbers, of all ranks."""
        return self._row(_ROW[name])

    def phase(self, name: str) -> Floats:
        """Seconds a step in a phase; not a number for who does not report it."""
        if name not in self.phases:
            return np.full(len(self), np.nan)
        return self._row(len(_FIGURES) + self.phases.index(name))

    def _row(self, row: int) -> Floats:
        count = len(self)
        return np.frombuffer(self.table, dtype=np.float64, count=count, offset=8 * row * count)

    def __len__(self) -> int:
        return len(self.roster.ranks)

    def __iter__(self) -> Iterator[RankName]:
        return iter(self.roster.ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self.roster.places

    def __getitem__(self, rank: RankName) -> Pace:
        place = self.roster.places[rank]
        column = np.frombuffer(self.table, dtype=np.float64)[place :: len(self)].tolist()
        told = dict(zip(_FIGURES, column, strict=False))
        phases = zip(self.phases, column[len(_FIGURES) :], strict=True)
        return Pace(
            incarnation=self.roster.incarnations[place],
            steps=int(told.pop("steps")),
            cohort=int(told.pop("cohort")),
            sees_group=bool(told.pop("sees_group")),
            calls=None if (calls := told.pop("calls")) != calls else int(calls),
            phases={name: spent_s for name, spent_s in phases if spent_s == spent_s},  # noqa: PLR0124
            witness=self.witnesses.get(rank),
            **told,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """One span of time, over which the paces of all ranks can be compared."""

    start_s: float
    end_s: float
    paces: Paces


def side_by_side(
    windows: Sequence[Window], value: Callable[[Paces], Floats]
) -> tuple[Roster, Floats]:
    """A figure of all ranks in some windows: a row a window, not a number for who was not there."""
    rosters = [window.paces.roster for window in windows]
    if all(roster is rosters[-1] for roster in rosters):
        return rosters[-1], np.stack([value(window.paces) for window in windows])
    places: dict[RankName, int] = {}
    for roster in rosters:
        for rank in roster.ranks:
            places.setdefault(rank, len(places))
    table = np.full((len(windows), len(places)), np.nan)
    for row, window in zip(table, windows, strict=True):
        row[[places[rank] for rank in window.paces]] = value(window.paces)
    return Roster(tuple(places), ()), table


# -- from samples to windows -----------------------------------------------------------------------

_WINDOWS_KEPT: Final = 120
_WINDOWS_LEAST: Final = 30
"""As many as the slowest rule looks at, and some before."""
_PACES_KEPT: Final = 600_000
"""Of all ranks in all windows, some 150 bytes each."""
_USUAL_WINDOWS: Final = 20
_SAMPLE_STEPS: Final = 3
"""One slow step in three shows in every sample, one in five in the fewer."""


@dataclass(slots=True)
class Sample:
    """One participating rank in one sweep."""

    rank: RankName
    incarnation: str
    step: StepState
    inside: bool
    """Whether it is inside a collective of its own group."""
    held_s: float | None = None
    """Seconds so far in which collectives held it and no phase said so; None: not known."""
    waited_s: float | None = None
    """Seconds so far in which it waited for others, where no phases tell; None: they do."""
    calls: int = 0
    """Collectives entered so far."""
    own_calls: int | None = None
    """Of these, in groups of several ranks within its replica group; None: it is alone in that."""
    stopped: bool = False
    """By a signal."""
    traced: bool = False
    witness: Witness | None = None
    starved: float | None = None
    """Share of the last 5 s in which it was ready to run and got no core."""


@dataclass(slots=True)
class _Counters:
    attempt: int
    busy_s: float
    whole_s: float
    """All its time but long phases, by its own clock."""
    long_s: float
    reading: Sample

    def phases(self) -> dict[str, float]:
        """Seconds in each phase so far; none where they tell nothing."""
        step = self.reading.step
        if self.reading.waited_s is not None:
            return {}
        spent_s = dict(step.seconds)
        spent_s[step.phase] = spent_s.get(step.phase, 0.0) + step.phase_age_s
        return spent_s


@dataclass(slots=True)
class _Course:
    """One rank since its window began."""

    incarnation: str
    start: _Counters
    sample: _Counters
    """Where the sample under way began."""
    newest: Sample
    """The first of the attempt that it works on."""
    shares: list[float] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    """Seconds a step in each sample."""
    sweeps: int = 0
    stopped: int = 0
    starved: float = 0.0
    outside: int = 0
    held: int = 0
    traced: bool = False
    witness: Witness | None = None
    current: bool = True
    """Whether the latest sweep saw it."""


@dataclass(slots=True)
class PaceMeter:
    """Turns sweeps into windows, of which it keeps the last 120; of a large fleet fewer."""

    config: KeeperConfig
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS_KEPT))
    _courses: dict[RankName, _Course] = field(default_factory=dict)
    _start_s: float | None = None
    _steps_s: dict[RankName, float | None] = field(default_factory=dict)
    """Answers of `step_s` since the last window."""

    def step_s(self, rank: RankName) -> float | None:
        """Seconds a step in the last windows, the median; None while there are too few."""
        if rank not in self._steps_s:
            known = [
                float(paces.figure("step_s")[place])
                for paces in (w.paces for w in islice(reversed(self.windows), _USUAL_WINDOWS))
                if (place := paces.roster.places.get(rank)) is not None
            ]
            self._steps_s[rank] = median(known) if len(known) >= 3 else None
        return self._steps_s[rank]

    def drop(self) -> None:
        """Throw the window under way away."""
        self._start_s = None

    def push(self, now_s: float, readings: Iterable[Sample]) -> None:
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

    def _begin(self, now_s: float, sweep: Mapping[RankName, Sample]) -> None:
        self._start_s, self._courses = now_s, {}
        for rank, reading in sweep.items():
            counters = _counters(reading)
            self._courses[rank] = _Course(reading.incarnation, counters, counters, reading)

    def _end(self, now_s: float, sweep: Mapping[RankName, Sample]) -> None:
        here = {
            rank: course
            for rank, course in self._courses.items()
            if course.current and not course.traced
        }
        if any(_steps(course) < self.config.window_steps for course in here.values()):
            return
        start_s = now_s if self._start_s is None else self._start_s
        steps_s = sorted(each for course in here.values() for each in course.steps_s)
        usual_s = _middle(steps_s) if steps_s else 0.0
        paces = {rank: _pace(one, now_s - start_s, usual_s) for rank, one in here.items()}
        told = {rank: pace for rank, pace in paces.items() if not _untold(here[rank], pace)}
        if told:
            before = self.windows[-1].paces.roster if self.windows else None
            self.windows.append(Window(start_s, now_s, Paces.of(_compared(told), before)))
            self._steps_s = {}
            while len(self.windows) > max(_WINDOWS_LEAST, _PACES_KEPT // len(told)):
                self.windows.popleft()
        self._begin(now_s, sweep)


def _counters(reading: Sample) -> _Counters:
    step = reading.step
    busy_s = long_s = waits_s = 0.0
    for name, spent_s in (*step.seconds.items(), (step.phase, step.phase_age_s)):
        if name in LONG_PHASES:
            long_s += spent_s
        elif name == WAITING_PHASE:
            waits_s += spent_s
        else:
            busy_s += spent_s
    whole_s = busy_s + waits_s
    if reading.waited_s is not None:
        busy_s = whole_s - reading.waited_s
    return _Counters(step.attempt, busy_s, whole_s, long_s, reading)


def _advance(course: _Course, reading: Sample | None) -> None:
    course.current = reading is not None and reading.incarnation == course.incarnation
    if reading is None or not course.current:
        return
    course.sweeps += 1
    course.stopped += reading.stopped
    course.starved += min(1.0, reading.starved or 0.0)
    course.traced |= reading.traced
    course.witness = reading.witness or course.witness
    if reading.step.phase != WAITING_PHASE and reading.step.phase not in LONG_PHASES:
        course.outside += 1
        course.held += reading.inside
    attempt = reading.step.attempt
    if attempt <= course.newest.step.attempt:
        return
    course.newest = reading
    before = course.sample
    if attempt - before.attempt < _SAMPLE_STEPS:
        return
    now = _counters(reading)
    whole_s = now.whole_s - before.whole_s
    if whole_s <= 0:
        return
    spent_s = min(whole_s, max(0.0, now.busy_s - before.busy_s))
    course.shares.append(spent_s / whole_s)
    course.steps_s.append(whole_s / (attempt - before.attempt))
    if reading.held_s is not None and before.reading.held_s is not None:
        held_s = reading.held_s - before.reading.held_s
        course.alone.append(max(0.0, spent_s - held_s) / whole_s)
    course.sample = now


def _steps(course: _Course) -> int:
    return course.newest.step.attempt - course.start.attempt


def _pace(course: _Course, span_s: float, usual_s: float) -> Pace:
    """`usual_s`: what a step usually took in this window, to all."""
    steps, first, last = _steps(course), course.start, _counters(course.newest)
    before = first.phases()
    step_s = max(0.0, span_s - (last.long_s - first.long_s)) / max(1, steps)
    whole_s = max(1e-9, last.whole_s - first.whole_s)
    shares = sorted(course.shares) or [min(1.0, max(0.0, last.busy_s - first.busy_s) / whole_s)]
    busy_s, held = _middle(shares) * usual_s, _held(course, last.busy_s - first.busy_s)
    waits = last.reading.waited_s is not None
    own = first.reading.own_calls, last.reading.own_calls
    return Pace(
        incarnation=course.incarnation,
        steps=steps,
        busy_s=busy_s,
        low_s=shares[int(0.3 * (len(shares) - 1))] * usual_s,
        step_s=step_s,
        held=0.0 if waits else held,
        alone_s=busy_s
        if waits
        else _middle(sorted(course.alone)) * usual_s
        if course.alone
        else busy_s * (1 - held),
        phases={
            name: max(0.0, spent_s - before.get(name, 0.0)) / max(1, steps)
            for name, spent_s in last.phases().items()
        },
        tokens=max(0, last.reading.step.tokens - first.reading.step.tokens) / max(1, steps),
        sees_group=not waits or None in own or own[0] != own[1],
        stopped=course.stopped / max(1, course.sweeps),
        witness=course.witness,
        starved=course.starved / max(1, course.sweeps),
        calls=last.reading.calls - first.reading.calls if waits else None,
    )


def _middle(ordered: Sequence[float]) -> float:
    """The median; `statistics.median` takes ten times as long for three numbers."""
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return (low + high) / 2


def _untold(course: _Course, pace: Pace) -> bool:
    """Whether a rank that tells its waits has stopped telling them: every step has some."""
    return pace.calls is not None and course.start.reading.waited_s == course.newest.waited_s


def _held(course: _Course, busy_s: float) -> float:
    """Share of the busy time in which collectives held the rank."""
    first_s, last_s = course.start.reading.held_s, course.newest.held_s
    if first_s is None or last_s is None:
        return course.held / course.outside if course.outside else 0.0
    return min(1.0, max(0.0, last_s - first_s) / busy_s) if busy_s > 0 else 0.0


def _compared(paces: Mapping[RankName, Pace]) -> dict[RankName, Pace]:
    """Each pace beside those of its cohort."""
    lanes: dict[int, list[RankName]] = {}
    for rank in paces:
        lanes.setdefault(split_rank_name(rank)[1], []).append(rank)
    found = dict(paces)
    for members in lanes.values():
        calls = any(paces[rank].calls for rank in members)
        lane = [rank for rank in members if not (calls and paces[rank].calls == 0)]
        for rank in set(members) - set(lane):
            del found[rank]  # whose collectives are recorded no more
        if len(lane) < 2:
            continue
        busy = np.array([paces[rank].busy_s for rank in lane])
        low = np.array([paces[rank].low_s for rank in lane])
        usual = cohort.usual(busy)
        work = _work([paces[rank].tokens for rank in lane])
        scores = cohort.z_scores(busy, low / work)
        for place, rank in enumerate(lane):
            pace = found[rank]
            pace.usual_s, pace.cohort = float(usual[place]), len(lane)
            pace.z, pace.work = float(scores[place]), float(work[place])
    return found


def _work(tokens: Sequence[float]) -> cohort.Floats:
    """Tokens of each against the median of the others, not under 1; 1 where some report none."""
    counts = np.array(tokens, dtype=np.float64)
    if not (counts > 0).all():
        return np.ones(len(tokens))
    return np.asarray(np.maximum(1.0, counts / cohort.usual(counts)), dtype=np.float64)
