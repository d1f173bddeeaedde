"""How fast each rank goes, for people: plain means over the last seconds. Pure.

Detectors judge by `monitor.detect.pace`, which is robust and slower to show a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.model.names import RankName
from monitor.model.observation import Snapshot
from worker_server.wire import LONG_PHASES, WAITING_PHASE, StepState

WINDOW_S: Final = 15.0
"""Longer is calmer; shorter shows a change sooner."""
_QUIET: Final = LONG_PHASES | {WAITING_PHASE}
STOOD_S: Final = 5.0
STOOD_STEPS: Final = 5.0
"""Steps that took so many seconds, and usual steps, longer than usual held a standstill."""


@dataclass(slots=True)
class Tempo:
    """Means over the last window."""

    step_s: float
    """Wall seconds a step."""
    busy_s: float
    """Seconds a step in which the rank does not wait for others."""
    wait_s: float = 0.0
    """Seconds a step in which it does: between groups, and held inside of its own collectives."""

    @property
    def rest_s(self) -> float:
        """What a step takes beside the rank's own work."""
        return max(0.0, self.step_s - self.busy_s)


@dataclass(slots=True)
class _Mark:
    at_s: float
    incarnation: str
    attempt: int
    busy_s: float
    wait_s: float


class TempoBook:
    """Remembers one window of marks for each rank."""

    def __init__(self) -> None:
        self._marks: dict[RankName, list[_Mark]] = {}
        self._paces: dict[RankName, float] = {}
        """Seconds a step, as they were told last."""

    def push(self, snapshot: Snapshot) -> Mapping[RankName, Tempo]:
        """The tempo of every rank that moved within the window; one that stands has none."""
        seen, now_s = snapshot.by_rank, snapshot.now_s
        for rank in self._marks.keys() - seen.keys():
            del self._marks[rank]
            self._paces.pop(rank, None)
        tempos: dict[RankName, Tempo] = {}
        for rank, observation in seen.items():
            report = observation.report
            if report is None or report.step is None:
                continue
            step, incarnation = report.step, report.identity.incarnation
            marks = self._marks.setdefault(rank, [])
            if marks and marks[-1].incarnation != incarnation:
                marks.clear()
                self._paces.pop(rank, None)
            if not marks or marks[-1].attempt != step.attempt:
                # only the moments at which a step was seen to be over
                mark = _mark(now_s, incarnation, step)
                if marks and _stood(self._paces.get(rank), marks[-1], mark):
                    marks.clear()
                    del self._paces[rank]
                marks.append(mark)
            while len(marks) > 1 and now_s - marks[1].at_s > WINDOW_S:
                del marks[0]
            if len(marks) > 1 and now_s - marks[-1].at_s <= WINDOW_S:
                tempos[rank] = _tempo(marks[0], marks[-1])
                self._paces[rank] = tempos[rank].step_s
        return tempos


def _stood(pace_s: float | None, last: _Mark, mark: _Mark) -> bool:
    """Whether the steps since the last mark held a standstill: a mean over it tells no pace."""
    if pace_s is None:
        return False
    more_s = mark.at_s - last.at_s - pace_s * (mark.attempt - last.attempt)
    return more_s > max(STOOD_S, STOOD_STEPS * pace_s)


def _mark(now_s: float, incarnation: str, step: StepState) -> _Mark:
    busy_s = sum([seconds for phase, seconds in step.seconds.items() if phase not in _QUIET])
    wait_s, held_s = step.seconds.get(WAITING_PHASE, 0.0), step.held_s or 0.0
    return _Mark(now_s, incarnation, step.attempt, busy_s - held_s, wait_s + held_s)


def _tempo(first: _Mark, last: _Mark) -> Tempo:
    steps = max(1, last.attempt - first.attempt)
    return Tempo(
        step_s=(last.at_s - first.at_s) / steps,
        busy_s=max(0.0, last.busy_s - first.busy_s) / steps,
        wait_s=max(0.0, last.wait_s - first.wait_s) / steps,
    )
