"""When a rank makes no progress, and when its stack is looked at for that.

A look reads the process while it runs and stops nothing. It takes 9 ms of a CPU that is not the
rank's (py-spy 0.4.3, torch 2.13): 0.2 % of a core while a stall is young, 0.03 % later. The first
look comes after 5 s, the second, which tells standing from passing by, 2 s after that. A rank that
is known to be at something long, or has not begun its first step, is left alone for longer.
"""

from __future__ import annotations

from collections.abc import Sequence

from worker_server import wire

_STALL_S = 5.0
"""Longer: the evidence may come after the kill. Shorter: steps of some seconds are no hang."""
_LONG_STALL_S = 30.0
DEAF_S = 3.0
"""Beats come every second. Who missed three cannot run a handler of SIGTERM either."""
_AGAIN_S, _OFTEN_S, _SELDOM_S = 2.0, 5.0, 30.0
_OFTEN_FOR_S = 60.0

Mark = tuple[object, ...]
"""Equal while a rank makes no progress."""


def mark_of(step: wire.StepState | None, heads: Sequence[wire.GroupHead]) -> Mark:
    """What changes with every bit of progress of the rank's own threads that can be seen."""
    ring = (head for head in heads if head.read_age_s is None)
    moves = tuple((head.enqueued, head.completed, head.inside) for head in ring)
    if step is None:
        return (moves,)
    counts = tuple(step.counters.values())
    return (moves, step.progress, step.attempt, step.commits, step.waits_in, counts)


class HangWatch:
    """Follows one rank; `due` is asked about once a second."""

    def __init__(self) -> None:
        self.hanging = False
        """Whether the rank did at the last look."""
        self._mark: Mark | None = None
        self.since_s = 0.0
        """When it moved last."""
        self._first_s: float | None = None
        self._last_s = 0.0
        self._looks = 0

    def due(
        self,
        process: wire.Process,
        step: wire.StepState | None,
        heads: Sequence[wire.GroupHead],
        now_s: float,
    ) -> bool:
        """Whether the rank makes no progress and it is time to look; True counts as a look."""
        mark = mark_of(step, heads)
        if mark != self._mark:
            self._mark, self.since_s, self._first_s, self._looks = mark, now_s, None, 0
        self.hanging = _held(process) or now_s - self.since_s >= _patience_s(step, heads)
        if not self.hanging or process.tracer is not None:
            return False
        if self._first_s is not None and now_s - self._last_s < self._pause_s():
            return False
        self._first_s = now_s if self._first_s is None else self._first_s
        self._last_s = now_s
        self._looks += 1
        return True

    def _pause_s(self) -> float:
        if self._looks == 1:
            return _AGAIN_S
        return _OFTEN_S if self._last_s - (self._first_s or 0.0) < _OFTEN_FOR_S else _SELDOM_S


def _held(process: wire.Process) -> bool:
    age_s = process.interpreter_age_s
    return process.stopped or (age_s is not None and age_s > DEAF_S)


def _patience_s(step: wire.StepState | None, heads: Sequence[wire.GroupHead]) -> float:
    if any(head.enqueued > head.completed for head in heads):
        return _STALL_S
    starting = not heads if step is None else step.phase in wire.LONG_PHASES
    return _LONG_STALL_S if starting else _STALL_S
