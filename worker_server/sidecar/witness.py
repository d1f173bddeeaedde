"""Where a rank stands that makes no progress: one sample after the other, until it moves. Pure.

Two samples agree in the innermost frame of the user's, and in the innermost one outside of the
standard library and torch: a program whose own last line is `trainer.train()` moves below it.
"""

from __future__ import annotations

from typing import NamedTuple

from worker_server import wire
from worker_server.sidecar.doing import doing_of
from worker_server.sidecar.hang import Mark
from worker_server.sidecar.user_code import Call, Origin, frame_of, innermost, origin


class Sample(NamedTuple):
    """The main thread at one moment."""

    calls: tuple[Call, ...]
    """Newest first."""
    taken_s: float
    syscall: int | None = None


class _Stand(NamedTuple):
    mark: Mark
    frame: wire.Frame
    innermost: Call
    doing: wire.Doing
    samples: int
    first_s: float
    last_s: float


class Witness:
    """Any thread may ask; one adds."""

    def __init__(self) -> None:
        self._stand: _Stand | None = None

    def add(self, sample: Sample, mark: Mark, *, waits: bool) -> None:
        """One more, of a moment with this mark; `waits`: for others, as far as is known."""
        index = innermost(sample.calls)
        if index is None:
            return
        stand = self._stand if self._stand is not None and self._stand.mark == mark else None
        if stand is not None and sample.taken_s <= stand.last_s:
            return  # the same note of the beat once more
        frame = frame_of(sample.calls, index)
        doing = doing_of(sample.calls, index, sample.syscall, waits=waits)
        below = (call for call in sample.calls if origin(call.path) is not Origin.MACHINERY)
        at = next(below, sample.calls[0])
        first_s, samples = sample.taken_s, 1
        if stand is not None and (stand.frame, stand.innermost) == (frame, at):
            first_s, samples = stand.first_s, stand.samples + 1
        self._stand = _Stand(mark, frame, at, doing, samples, first_s, sample.taken_s)

    def told(self, mark: Mark, now_s: float) -> wire.Witness | None:
        """What the wire says of a rank whose mark this is now; None once it has moved."""
        stand = self._stand
        if stand is None or stand.mark != mark:
            return None
        same_s = stand.last_s - stand.first_s
        age_s = max(0.0, now_s - stand.last_s)
        return wire.Witness(stand.frame, stand.doing, stand.samples, same_s, age_s)
