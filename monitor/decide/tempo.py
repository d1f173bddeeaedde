"""How fast each rank trains, for people: means over the last seconds, and the past week. Pure.

Detectors use `monitor.detect.pace`, which is robust and slower to show a change.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from msgspec import Struct

from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import Snapshot, missing_ranks
from lightkeeper.monitor.model.run import RESOLUTIONS, TrendPoint
from lightkeeper.worker_server.wire import LONG_PHASES, WAITING_PHASE, StepState

WINDOW_S: Final = 15.0
"""Longer is smoother; shorter shows a change sooner."""
_QUIET: Final = LONG_PHASES | {WAITING_PHASE}
STOOD_S: Final = 5.0
STOOD_STEPS: Final = 5.0
"""Steps longer than usual by both, in seconds and in usual steps, contained a standstill."""


class Tempo(Struct, gc=False):
    """Means over the last window."""

    step_s: float
    """Wall seconds a step."""
    busy_s: float
    """Seconds a step in which the rank does not wait for others."""
    wait_s: float = 0.0
    """Seconds a step in which it waits: between groups, and inside its own collectives."""

    @property
    def rest_s(self) -> float:
        """Seconds a step beyond the rank's own work."""
        return max(0.0, self.step_s - self.busy_s)


class _Mark(Struct, frozen=True, gc=False):
    """A moment at which a step was seen finished."""

    at_s: float
    steps: int
    busy_s: float
    wait_s: float


class _Marked(Struct, gc=False):
    """One process over the last window."""

    incarnation: str
    tokens: int | None
    """Last count reported; None: never, nor by an earlier process of the rank."""
    marks: list[_Mark] = []
    tempo: Tempo | None = None
    """The last one since a standstill."""

    def take(self, now_s: float, step: StepState) -> Tempo | None:
        """Take one tick; None: it has not moved within the window."""
        marks, moved = self.marks, False
        if step.made > 1 and (not marks or marks[-1].steps != step.steps):  # before, it starts
            moved, mark = True, _mark(now_s, step)
            if self.tempo is not None and _stood(self.tempo.step_s, marks[-1], mark):
                marks.clear()
                self.tempo = None
            marks.append(mark)
        while len(marks) > 1 and now_s - marks[1].at_s > WINDOW_S:
            del marks[0]
            moved = True
        if len(marks) < 2 or now_s - marks[-1].at_s > WINDOW_S:
            return None
        if moved or self.tempo is None:
            first, last = marks[0], marks[-1]
            steps = max(1, last.steps - first.steps)
            busy_s, wait_s = last.busy_s - first.busy_s, last.wait_s - first.wait_s
            self.tempo = Tempo(
                (last.at_s - first.at_s) / steps,
                busy_s / steps if busy_s > 0 else 0.0,
                wait_s / steps if wait_s > 0 else 0.0,
            )
        return self.tempo


class TempoBook:
    """Remembers one window of marks for each rank, and counts the tokens of each group."""

    def __init__(self) -> None:
        self._ranks: dict[RankName, _Marked] = {}
        self._tokens: dict[GroupName, int] = {}

    @property
    def tokens(self) -> Mapping[GroupName, int]:
        """Tokens trained on since the monitor started, by group: those with a registered rank that
        ever reported any.

        A sum of the ranks' counters would fall whenever a rank does not answer, and Prometheus
        takes a fall for a restart. So the increments are summed.
        """
        return dict(self._tokens)

    def push(self, snapshot: Snapshot) -> Mapping[RankName, Tempo]:
        """The tempo of every rank that moved within the window."""
        now_s, ranks = snapshot.now_s, self._ranks
        if departed := missing_ranks(ranks, snapshot.by_rank):
            for rank in departed:
                del ranks[rank]
            groups = {seen.identity.group for seen in snapshot.observations}
            self._tokens = {group: n for group, n in self._tokens.items() if group in groups}
        tempos: dict[RankName, Tempo] = {}
        for rank, report in snapshot.reports.items():
            step = report.step
            if step is None:
                continue
            marked = ranks.get(rank)
            if marked is None or marked.incarnation != report.identity.incarnation:
                tokens = None if marked is None or marked.tokens is None else 0
                marked = ranks[rank] = _Marked(report.identity.incarnation, tokens)
            if step.tokens:
                group = report.identity.group
                grown = 0 if marked.tokens is None else max(0, step.tokens - marked.tokens)
                self._tokens[group] = self._tokens.get(group, 0) + grown
                marked.tokens = step.tokens
            tempo = marked.take(now_s, step)
            if tempo is not None:
                tempos[rank] = tempo
        return tempos


def _stood(pace_s: float, last: _Mark, mark: _Mark) -> bool:
    """True if there was a standstill since the last mark: a mean over it is no pace."""
    more_s = mark.at_s - last.at_s - pace_s * (mark.steps - last.steps)
    return more_s > max(STOOD_S, STOOD_STEPS * pace_s)


def _mark(now_s: float, step: StepState) -> _Mark:
    busy_s = wait_s = 0.0
    held_s = step.held_s or 0.0
    for phase, spent_s in step.seconds.items():
        if phase not in _QUIET:
            busy_s += spent_s
        elif phase == WAITING_PHASE:
            wait_s += spent_s
    return _Mark(now_s, step.steps, busy_s - held_s, wait_s + held_s)


def median_step_s(tempos: Mapping[RankName, Tempo]) -> float | None:
    """Seconds a step, over the ranks that moved lately."""
    return median([tempo.step_s for tempo in tempos.values()]) if tempos else None


# -- the last hour, day and week ---------------------------------------------------------------
# What the page draws: points of the whole job, however large the fleet is. A coarse point is the
# mean of the finer ones in its stretch, made anew with each of them; what was not seen is a gap.

EVERY_S: Final = RESOLUTIONS["1h"][0]
_UNSEEN_S: Final = 60.0  # between two ticks


class TrendBook:
    """The past of the job's pace, over restarts of job and monitor."""

    def __init__(self) -> None:
        self._points: dict[str, dict[float, TrendPoint]] = {name: {} for name in RESOLUTIONS}
        self._made, self._now_s = 0, -math.inf
        """The most steps of any rank, and the time, at the last tick."""
        self._steps, self._seen_s = 0, 0.0
        """Steps since the last point, and seconds in which ranks reported any."""

    def points(self) -> Mapping[str, tuple[TrendPoint, ...]]:
        """By resolution, oldest first."""
        return {name: tuple(points.values()) for name, points in self._points.items()}

    def take_over(self, points: Iterable[tuple[str, TrendPoint]]) -> None:
        """Take what an earlier monitor stored, oldest first, if this one knows nothing yet."""
        if not any(self._points.values()):
            for name, point in points:
                self._points.get(name, {})[point.at_s] = point

    def push(
        self, snapshot: Snapshot, tempos: Mapping[RankName, Tempo]
    ) -> list[tuple[str, TrendPoint]]:
        """Take a tick; the points that are new or have changed, for the store."""
        now_s, before_s = snapshot.now_s, self._now_s
        alive = (seen.step for seen in snapshot.reports.values() if seen.process.alive)
        made = [step.made for step in alive if step is not None]
        if made and 0 <= now_s - before_s <= _UNSEEN_S:
            self._seen_s += now_s - before_s
            self._steps += max(0, max(made) - self._made)
        self._made, self._now_s = max(made, default=0), now_s
        if now_s // EVERY_S == before_s // EVERY_S or not math.isfinite(before_s):
            return []
        rate = self._steps / self._seen_s if self._seen_s else None
        self._steps, self._seen_s = 0, 0.0
        at_s = before_s // EVERY_S * EVERY_S
        points = [("1h", TrendPoint(at_s, median_step_s(tempos), rate, rate))]
        self._keep(*points[0])
        for fine, name in pairwise(RESOLUTIONS):
            points.append((name, self._coarse(fine, name, at_s)))
            self._keep(*points[-1])
        return points

    def _coarse(self, fine: str, name: str, at_s: float) -> TrendPoint:
        every_s, _ = RESOLUTIONS[name]
        began_s = at_s // every_s * every_s
        parts = [p for p in self._points[fine].values() if began_s <= p.at_s < began_s + every_s]
        rates = [point.rate for point in parts if point.rate is not None]
        lows = [point.low for point in parts if point.low is not None]
        return TrendPoint(began_s, None, fmean(rates) if rates else None, min(lows, default=None))

    def _keep(self, name: str, point: TrendPoint) -> None:
        points, (every_s, kept) = self._points[name], RESOLUTIONS[name]
        points[point.at_s] = point
        for at_s in [at_s for at_s in points if at_s <= point.at_s - every_s * kept]:
            del points[at_s]
