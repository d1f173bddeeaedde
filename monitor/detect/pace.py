"""How long ranks work a step: windows common to the whole fleet, robust within each.

Theory of operation. A rank is busy while it does not wait for others: its phases say so, or, where
the loop declares none, its time less the waiting seen by its WorkerServer (`StepState.waited_s`);
both by the rank's own clock. Samples of at least 3 steps are taken, and in each the share of the
time in which it was busy: a step more or less at the edges of a sample changes no share. A rank's
pace in a window is the median of its shares, in seconds of the usual step there. So one that is
sometimes descheduled (1 to 3 s is common on a busy host, facts/trainer.md), or that saves now and
then, has the pace of its other steps, and one that is slow in every third step is slow in every
sample. Means would accuse a rank for bad luck. A window ends after `window_s` once every rank has
`window_steps` in it. Where groups train alone between votes (LocalSGD, DiLoCo), the faster wait for
the slower in the vote: there a sample is a round from vote to vote.

A rank that is traced, or whose waits are no longer reported, has no pace in that window.

A job of 10,000 ranks would fill a gigabyte with objects, and every question would walk through
them. So a window is a table of numbers, one row per figure and one column per rank; a `Pace` is
built on request for one rank.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import chain, islice, zip_longest
from statistics import median
from struct import unpack_from
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from lightkeeper.monitor.model import cohort
from lightkeeper.monitor.model.cohort import Floats
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.names import RankName, split_rank_name
from lightkeeper.monitor.model.units import grouped
from lightkeeper.worker_server.wire import LONG_PHASES, WAITING_PHASE, StepState, Witness

# -- what a window holds ---------------------------------------------------------------------------

_PHASES_MOST: Final = 24
"""Phases kept per window, the most reported ones: ranks choose the names, each takes a row."""


@dataclass(slots=True)
class Pace:
    """The work of one rank in one window."""

    incarnation: str
    steps: int
    busy_s: float
    """Median seconds a step in which the rank did not wait across groups."""
    low_s: float
    """Only 3 of 10 samples are lower: this is what has to be slow. A rank descheduled for half of a
    window has a high median, and is well."""
    step_s: float
    """Mean seconds a step, waiting included, long phases left out."""
    held: float = 0.0
    """Share of its busy seconds in which collectives held it: FSDP's lie within forward and
    backward, so a victim's busy seconds include its waiting."""
    alone_s: float = 0.0
    """Median seconds a step in which it worked: busy, and not held."""
    usual_s: float = 0.0
    """Median busy seconds a step of the others in its cohort: same group rank, other groups."""
    most_s: float = float("inf")
    """The longest of those; infinite if it has no peer."""
    cohort: int = 1
    """Ranks in the cohort, itself included."""
    z: float = 0.0
    """Robust z-score of `low_s`: distance from the cohort's median, in
    1.4826 max(MAD, 1 % of the median)."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds a step in each phase, including waiting and long ones."""
    tokens: float = 0.0
    """Tokens a step; 0 if none are reported."""
    work: float = 1.0
    """Its tokens relative to its peers', at least 1: more tokens excuse, fewer do not accuse."""
    sees_group: bool = True
    """True if waiting for ranks of its own group shows: not if C++ does it internally (DDP)."""
    stopped: float = 0.0
    """Share of the sweeps that found its process stopped by a signal."""
    witness: Witness | None = None
    """Where its main thread last stood for long enough."""
    calls: int | None = None
    """Collectives entered; None where phases show what is waiting."""
    starved: float = 0.0
    """Share of the time in which it was runnable and got no core."""


_NO_FIGURES: Final = ("incarnation", "phases", "witness")
FIGURES: Final = tuple(figure.name for figure in fields(Pace) if figure.name not in _NO_FIGURES)
"""Numbers of a pace, in the order of a table's rows; the seconds in each phase follow."""
_LARGEST: Final = 3e38
"""Fits in 4 bytes; no rank's seconds or tokens exceed it."""
_ROW: Final = {name: row for row, name in enumerate(FIGURES)}


@dataclass(frozen=True)
class Roster:
    """The ranks of a table; shared by all windows in which they are the same."""

    ranks: tuple[RankName, ...]
    incarnations: tuple[str, ...]

    @cached_property
    def places(self) -> Mapping[RankName, int]:
        """The column of each rank."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def lanes(self) -> Floats:
        """Group ranks: ranks of one lane are peers."""
        return np.array([split_rank_name(rank)[1] for rank in self.ranks], dtype=np.float64)

    @cached_property
    def cohorts(self) -> Sequence[NDArray[np.intp]]:
        """The columns of the ranks of each lane."""
        order = np.argsort(self.lanes, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(self.lanes[order])) + 1)


@dataclass(frozen=True, slots=True)
class Paces(Mapping[RankName, Pace]):
    roster: Roster
    phases: tuple[str, ...]
    rows: tuple[bytes, ...]
    """Floats of 4 bytes, a row for each figure and phase; NaN where a rank has none. Only one float
    if all ranks have the same."""
    witnesses: Mapping[RankName, Witness]

    def figure(self, name: str) -> Floats:
        """One figure of the paces of all ranks."""
        return self._row(_ROW[name])

    def phase(self, name: str) -> Floats:
        """Seconds a step in a phase; NaN for ranks that do not report it."""
        if name not in self.phases:
            return np.full(len(self), np.nan)
        return self._row(len(FIGURES) + self.phases.index(name))

    def _row(self, row: int) -> Floats:
        figures = np.frombuffer(self.rows[row], dtype=np.float32).astype(np.float64)
        return figures if len(figures) != 1 else figures.repeat(len(self))  # broadcast_to is slow

    def __len__(self) -> int:
        return len(self.roster.ranks)

    def __iter__(self) -> Iterator[RankName]:
        return iter(self.roster.ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self.roster.places

    def __getitem__(self, rank: RankName) -> Pace:
        place = self.roster.places[rank]
        column = [unpack_from("f", row, 4 * place if len(row) > 4 else 0)[0] for row in self.rows]
        figures = dict(zip(FIGURES, column, strict=False))
        phases = zip(self.phases, column[len(FIGURES) :], strict=True)
        return Pace(
            incarnation=self.roster.incarnations[place],
            steps=int(figures.pop("steps")),
            cohort=int(figures.pop("cohort")),
            sees_group=bool(figures.pop("sees_group")),
            calls=None if (calls := figures.pop("calls")) != calls else int(calls),
            phases={name: spent_s for name, spent_s in phases if spent_s == spent_s},  # noqa: PLR0124
            witness=self.witnesses.get(rank),
            **figures,
        )


@dataclass(frozen=True)
class Window:
    """One span of time, over which the paces of all ranks can be compared."""

    start_s: float
    end_s: float
    paces: Paces

    @cached_property
    def least_waiting_s(self) -> float:
        """Waiting seconds a step of the rank that waits least; read at each tick."""
        return float(np.nan_to_num(self.paces.phase(WAITING_PHASE)).min())


def side_by_side(
    windows: Sequence[Window], value: Callable[[Paces], Floats]
) -> tuple[Roster, Floats]:
    """A figure of all ranks in some windows: a row per window, NaN for absent ranks."""
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


@dataclass(frozen=True, slots=True)
class Blame:
    """Where a rank's excess is, in medians over some windows."""

    kind: str | None
    """`data loading`, `compute`, or a user's own phase in quotes; None: no phases show it."""
    own_s: float
    """Seconds a step that it spends there."""
    peers_s: float
    """Seconds a step that its peers spend there."""
    peers_alone_s: float
    """Seconds a step in which its peers worked: busy, and not held inside collectives."""


# -- from samples to windows -----------------------------------------------------------------------

_WINDOWS_KEPT: Final = 120
_WINDOWS_LEAST: Final = 30
"""As many as the slowest rule looks at, and some before."""
_PACES_KEPT: Final = 600_000
"""Paces of all ranks in all windows together; each takes about 75 bytes."""
_USUAL_WINDOWS: Final = 20
_SWEEPS_LEAST: Final = 3
"""Per window: the median of one or two samples may be bad luck."""
_SAMPLE_STEPS: Final = 3
"""One slow step in three shows in every sample, one in five in the fewer."""


class Sample(Struct, gc=False):
    """One participating rank in one sweep."""

    rank: RankName
    incarnation: str
    step: StepState
    held_s: float = 0.0
    """Seconds so far in which collectives held it outside a waiting phase."""
    waited_s: float | None = None
    """Seconds so far in which it waited for others, if no phases show that; None: they do."""
    calls: int = 0
    """Collectives entered so far."""
    own_calls: int | None = None
    """Those in groups of several ranks within its replica group; None: it is alone there."""
    stopped: bool = False
    """By a signal."""
    traced: bool = False
    witness: Witness | None = None
    starved: float | None = None
    """Share of the last 5 s in which it was runnable and got no core."""

    # seconds so far, by its own clock, once they were counted

    counted: bool = False
    busy_s: float = 0.0
    whole_s: float = 0.0
    """Everything except long phases."""
    long_s: float = 0.0

    def count(self) -> Sample:
        """Sum up its seconds, once: few readings begin or end a sample."""
        if self.counted:
            return self
        step, busy_s, long_s, waits_s = self.step, 0.0, 0.0, 0.0
        for name, spent_s in (*step.seconds.items(), (step.phase, step.phase_age_s)):
            if name in LONG_PHASES:
                long_s += spent_s
            elif name == WAITING_PHASE:
                waits_s += spent_s
            else:
                busy_s += spent_s
        self.whole_s, self.long_s = busy_s + waits_s, long_s
        self.busy_s = busy_s if self.waited_s is None else self.whole_s - self.waited_s
        self.counted = True
        return self

    def layout(self) -> tuple[str, ...]:
        """The phases whose seconds it reports: the same for nearly all ranks."""
        step = self.step
        return () if self.waited_s is not None else (*step.seconds, step.phase)


@dataclass(slots=True)
class _Course:
    """One rank since its window began."""

    start: Sample
    sample: Sample
    """Where the current sample began."""
    newest: Sample
    """The first of its current attempt."""
    shares: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    steps_s: tuple[float, ...] = ()
    """Seconds a step in each sample."""
    sweeps: int = 0
    stopped: int = 0
    starved: float = 0.0
    traced: bool = False
    witness: Witness | None = None
    current: bool = True
    """True if the latest sweep saw it."""

    @property
    def steps(self) -> int:
        """Steps since its window began."""
        return self.newest.step.steps - self.start.step.steps

    @property
    def sampled(self) -> bool:
        """True if it has a sample, if its steps need a round for it."""
        return bool(self.shares) or not _made_local(self.start.step, self.newest.step)

    @property
    def calls(self) -> int | None:
        """Collectives entered since then; None where phases show what is waiting."""
        return None if self.newest.waited_s is None else self.newest.calls - self.start.calls


@dataclass(slots=True)
class PaceMeter:
    """Turns sweeps into windows, and keeps the last 120; fewer of a large fleet."""

    config: KeeperConfig
    windows: deque[Window] = field(default_factory=lambda: deque(maxlen=_WINDOWS_KEPT))
    _courses: dict[RankName, _Course] = field(default_factory=dict)
    _start_s: float | None = None
    _sweeps: int = 0
    """Since then."""
    _steps_s: dict[RankName, float | None] = field(default_factory=dict)
    """Answers of `step_s` since the last window."""

    def step_s(self, rank: RankName) -> float | None:
        """Median seconds a step in the last windows; None while there are too few."""
        if rank not in self._steps_s:
            recent_s = [
                float(paces.figure("step_s")[place])
                for paces in (w.paces for w in islice(reversed(self.windows), _USUAL_WINDOWS))
                if (place := paces.roster.places.get(rank)) is not None
            ]
            self._steps_s[rank] = median(recent_s) if len(recent_s) >= 3 else None
        return self._steps_s[rank]

    def drop(self) -> None:
        """Discard the current window."""
        self._start_s = None

    def push(self, now_s: float, readings: Iterable[Sample]) -> None:
        """Take in one sweep of the participating ranks."""
        sweep = {reading.rank: reading for reading in readings}
        if self._start_s is None:
            self._begin(now_s, sweep)
            return
        self._sweeps += 1
        for rank, course in self._courses.items():
            _advance(course, sweep.get(rank))
        span_s = now_s - self._start_s
        if span_s > self.config.window_limit_s:
            self._begin(now_s, sweep)
        elif span_s >= self.config.window_s and self._sweeps >= _SWEEPS_LEAST:
            self._end(now_s, sweep)

    def _begin(self, now_s: float, sweep: Mapping[RankName, Sample]) -> None:
        self._start_s, self._sweeps = now_s, 0
        self._courses = {
            rank: _Course(reading.count(), reading, reading) for rank, reading in sweep.items()
        }

    def _end(self, now_s: float, sweep: Mapping[RankName, Sample]) -> None:
        compared = [
            course for course in self._courses.values() if course.current and not course.traced
        ]
        least = self.config.window_steps
        if any(course.steps < least or not course.sampled for course in compared):
            return
        start_s = now_s if self._start_s is None else self._start_s
        steps_s = sorted(sample_s for course in compared for sample_s in course.steps_s)
        usual_s = median(steps_s) if steps_s else 0.0
        telling = _telling(compared)
        if telling:
            before = self.windows[-1].paces.roster if self.windows else None
            paces = _paces(telling, before, now_s - start_s, usual_s)
            self.windows.append(Window(start_s, now_s, paces))
            self._steps_s = {}
            while len(self.windows) > max(_WINDOWS_LEAST, _PACES_KEPT // len(telling)):
                self.windows.popleft()
        self._begin(now_s, sweep)


def _advance(course: _Course, reading: Sample | None) -> None:
    course.current = reading is not None and reading.incarnation == course.start.incarnation
    if reading is None or not course.current:
        return
    course.sweeps += 1
    course.stopped += reading.stopped
    course.starved += min(1.0, reading.starved or 0.0)
    course.traced |= reading.traced
    course.witness = reading.witness or course.witness
    step = reading.step
    if step.steps <= course.newest.step.steps:
        return
    course.newest = reading
    before, steps = course.sample, step.steps - course.sample.step.steps
    if _made_local(before.step, step):
        if _ended(step) == _ended(before.step):
            return
        if before is course.start:  # the rest of a round
            course.sample = reading.count()
            return
    if steps >= _SAMPLE_STEPS:
        _measure(course, reading, steps)


def _measure(course: _Course, reading: Sample, steps: int) -> None:
    """One more sample of its pace, over the steps since the last one."""
    before = course.sample
    whole_s = reading.count().whole_s - before.whole_s
    if whole_s <= 0:
        return
    spent_s = min(whole_s, max(0.0, reading.busy_s - before.busy_s))
    course.shares += (spent_s / whole_s,)
    course.steps_s += (whole_s / steps,)
    held_s = reading.held_s - before.held_s
    course.alone += (max(0.0, spent_s - held_s) / whole_s,)
    course.sample = reading


def _made_local(before: StepState, step: StepState) -> bool:
    """True if some of the steps in between were local ones."""
    return step.local_steps > before.local_steps


def _ended(step: StepState) -> int:
    return step.commits + step.commit_failures


def _telling(courses: Sequence[_Course]) -> list[_Course]:
    """Leaves out ranks that no longer report their waits, or whose collectives are no longer
    recorded while their peers' are: every step has some.
    """
    telling = [
        course
        for course in courses
        if course.newest.waited_s is None or course.newest.waited_s != course.start.waited_s
    ]
    calling = {split_rank_name(course.start.rank)[1] for course in telling if course.calls}
    return [
        course
        for course in telling
        if course.calls != 0 or split_rank_name(course.start.rank)[1] not in calling
    ]


_COUNTED: Final = 13
"""Numbers of a row of `_counted`."""


def _counted(course: _Course) -> tuple[float, ...]:
    """All numbers of one rank's window: of many thousands each is visited once."""
    first, last = course.start, course.newest.count()
    calls = course.calls
    return (
        last.step.steps - first.step.steps,
        last.busy_s - first.busy_s,
        last.whole_s - first.whole_s,
        last.long_s - first.long_s,
        last.step.tokens - first.step.tokens,
        course.sweeps,
        course.stopped,
        course.starved,
        last.held_s - first.held_s,
        last.waited_s is not None,
        bool(course.alone),
        np.nan if calls is None else calls,
        _sees_group(first, last),
    )


def _paces(courses: Sequence[_Course], like: Roster | None, span_s: float, usual_s: float) -> Paces:
    """`like`: the roster of the previous window, which is mostly the same; `usual_s`: the usual
    step time of all ranks in this window.
    """
    count = len(courses)
    every = chain.from_iterable(map(_counted, courses))
    table = np.fromiter(every, np.float64, _COUNTED * count).reshape(count, _COUNTED).T.copy()
    steps, own_s, whole_s, long_s, tokens, seen, stopped, starved = table[:8]
    held_s, waits, apart, calls, sees_group = table[8:]
    starts = [course.start for course in courses]
    roster = Roster(
        tuple(sample.rank for sample in starts), tuple(sample.incarnation for sample in starts)
    )
    roster = like if roster == like and like is not None else roster
    each_step, sweeps = np.maximum(1, steps), np.maximum(1, seen)
    share = np.minimum(1.0, np.maximum(0.0, own_s) / np.maximum(1e-9, whole_s)).tolist()
    middle, low = _middles([c.shares or (whole,) for c, whole in zip(courses, share, strict=True)])
    alone, _ = _middles([course.alone or (0.0,) for course in courses])
    held = np.clip(held_s / np.maximum(1e-9, own_s), 0.0, 1.0) * (own_s > 0) * (waits == 0)
    busy_s = middle * usual_s
    sampled_s = np.where(apart > 0, alone * usual_s, busy_s * (1 - held))
    figures = {
        "steps": steps,
        "busy_s": busy_s,
        "low_s": low * usual_s,
        "step_s": np.maximum(0.0, span_s - long_s) / each_step,
        "held": held,
        "alone_s": np.where(waits > 0, busy_s, sampled_s),
        "tokens": np.maximum(0, tokens) / each_step,
        "sees_group": sees_group,
        "stopped": stopped / sweeps,
        "calls": calls,
        "starved": starved / sweeps,
    }
    figures |= _compared(roster, busy_s, figures["low_s"], figures["tokens"])
    phases, spent_s = _phases(starts, [course.newest for course in courses])
    rows = [*(figures[name] for name in FIGURES), *(np.maximum(0.0, spent_s) / each_step)]
    witnesses = {
        course.start.rank: course.witness for course in courses if course.witness is not None
    }
    return Paces(roster, phases, tuple(map(_row, rows)), witnesses)


def _row(figures: Sequence[float] | Floats) -> bytes:
    values = np.asarray(figures, dtype=np.float64)
    values = np.where(np.isinf(values), values, np.clip(values, -_LARGEST, _LARGEST))
    row = values.astype(np.float32).tobytes()
    return row[:4] if row == row[:4] * len(figures) else row


def _middles(rows: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """The median of each row, and the value that only 3 of 10 undercut."""
    counts = np.array([len(row) for row in rows])
    ordered = np.sort(np.array([*zip_longest(*rows, fillvalue=np.inf)]), axis=0)

    def at(places: NDArray[np.intp]) -> Floats:
        return np.asarray(np.take_along_axis(ordered, places[None], axis=0)[0], dtype=np.float64)

    middle = (at((counts - 1) // 2) + at(counts // 2)) / 2
    return middle, at((0.3 * (counts - 1)).astype(np.intp))


def _phases(firsts: Sequence[Sample], lasts: Sequence[Sample]) -> tuple[tuple[str, ...], Floats]:
    """The reported phases, and the seconds in each: a row per phase."""
    layouts = Counter(map(Sample.layout, lasts))
    tellers: Counter[str] = Counter()
    for layout, ranks in layouts.items():
        tellers.update(dict.fromkeys(layout, ranks))
    most = set(sorted(tellers, key=lambda phase: (-tellers[phase], phase))[:_PHASES_MOST])
    phases = tuple(phase for phase in tellers if phase in most)
    return phases, _so_far(lasts, phases) - np.nan_to_num(_so_far(firsts, phases))


def _so_far(samples: Sequence[Sample], phases: Sequence[str]) -> Floats:
    """Seconds of each sample in each phase, a row per phase; NaN where it reports none."""
    rows = {phase: row for row, phase in enumerate(phases)}
    table = np.full((len(phases), len(samples)), np.nan)
    alike = grouped(
        ((sample.step.phase, *sample.step.seconds), place)
        for place, sample in enumerate(samples)
        if sample.waited_s is None
    )
    for (phase, *finished), places in alike.items():
        steps = [samples[place].step for place in places]
        every = chain.from_iterable(step.seconds.values() for step in steps)
        shape = len(steps), len(finished)
        spent_s = np.fromiter(every, np.float64, shape[0] * shape[1]).reshape(shape)
        for column, name in enumerate(finished):
            if name in rows:
                table[rows[name], places] = spent_s[:, column]
        if phase in rows:
            before = np.nan_to_num(table[rows[phase], places])
            table[rows[phase], places] = before + [step.phase_age_s for step in steps]
    return table


def _sees_group(first: Sample, last: Sample) -> bool:
    """True if its waiting within its group shows: in phases, or in recorded collectives."""
    own = first.own_calls, last.own_calls
    return last.waited_s is None or None in own or own[0] != own[1]


def _compared(roster: Roster, busy_s: Floats, low_s: Floats, tokens: Floats) -> dict[str, Floats]:
    """Each rank compared with its cohort."""
    count = len(roster.ranks)
    usual_s, size, z, work = np.zeros(count), np.ones(count), np.zeros(count), np.ones(count)
    most_s = np.full(count, np.inf)
    for lane in roster.cohorts:
        if len(lane) > 1:
            usual_s[lane], size[lane] = cohort.usual(busy_s[lane]), len(lane)
            most_s[lane] = cohort.most(busy_s[lane])
            work[lane] = _work(tokens[lane])
            z[lane] = cohort.z_scores(busy_s[lane], low_s[lane] / work[lane])
    return {"usual_s": usual_s, "most_s": most_s, "cohort": size, "z": z, "work": work}


def _work(tokens: Floats) -> Floats:
    """Tokens of each against the median of the others, at least 1; 1 if some report none."""
    if not (tokens > 0).all():
        return np.ones(len(tokens))
    return np.asarray(np.maximum(1.0, tokens / cohort.usual(tokens)), dtype=np.float64)
