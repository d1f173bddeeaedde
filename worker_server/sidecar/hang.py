"""When to take the stacks of a rank unasked: once, when it begins to hang."""

from __future__ import annotations

from collections.abc import Sequence

from worker_server import wire

_STALL_S = 5.0
"""Longer: the evidence may come after the kill. Shorter: steps of some seconds are no hang."""
_DEAF_S = 3.0
"""Beats come every second."""
_APART_S = 60.0
"""Between two takes: a loop with phases of six seconds must not be looked at ten times a minute."""


class HangWatch:
    """Tells the beginning of a hang; remembers which it has told."""

    def __init__(self) -> None:
        self.hanging = False
        """Whether the rank did at the last look."""
        self._told: tuple[object, ...] | None = None
        self._told_s = float("-inf")

    def begins(
        self,
        process: wire.Process,
        step: wire.StepState | None,
        heads: Sequence[wire.GroupHead],
        now_s: float,
    ) -> bool:
        """Whether the rank has begun to hang and nobody was told of this hang."""
        kind = _kind(process, step, heads)
        self.hanging = kind is not None
        if kind is None:
            return False
        entered = sum(head.enqueued for head in heads)
        hang = (kind, None if step is None else step.progress, entered)
        if hang == self._told or now_s - self._told_s < _APART_S:
            return False
        self._told, self._told_s = hang, now_s
        return True


def _kind(
    process: wire.Process, step: wire.StepState | None, heads: Sequence[wire.GroupHead]
) -> str | None:
    if process.stopped and not process.traced:
        return "stopped"
    if process.interpreter_age_s is not None and process.interpreter_age_s > _DEAF_S:
        return "deaf"
    if any(head.enqueued > head.completed and head.age_s > _STALL_S for head in heads):
        return "inside a collective"
    if step is not None and step.phase not in wire.LONG_PHASES and step.phase_age_s > _STALL_S:
        return "without progress"
    return None
