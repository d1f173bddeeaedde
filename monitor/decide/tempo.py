"""How fast each rank trains, for people: means over the last seconds, and the last hour. Pure.

Detectors use `monitor.detect.pace`, which is robust and slower to show a change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Final

from msgspec import Struct

from lightkeeper.monitor.model.names import GroupName, RankName
from lightkeeper.monitor.model.observation import Snapshot, missing_ranks
from lightkeeper.monitor.model.run import TrendPoint
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
        if not marks or marks[-1].steps != step.steps:
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


# -- the last hour -----------------------------------------------------------------------------
# What the page draws as a line of bars.
#
# One point of the whole job every `EVERY_S`, `KEPT` of them: 360 points an hour, however large the
# fleet is. It begins with the monitor; Prometheus has the longer history.

EVERY_S: Final = 10.0
KEPT: Final = 360


class TrendBook:
    """Adds a point when one is due."""

    def __init__(self) -> None:
        self._points: deque[TrendPoint] = deque(maxlen=KEPT)
        self._shown: tuple[TrendPoint, ...] = ()

    def push(self, now_s: float, tempos: Mapping[RankName, Tempo]) -> tuple[TrendPoint, ...]:
        """The points, oldest first."""
        if not self._points or now_s - self._points[-1].at_s >= EVERY_S:
            self._points.append(TrendPoint(now_s, median_step_s(tempos)))
            self._shown = tuple(self._points)
        return self._shown
