"""Which monotonic moment a wall-clock stamp of this host means; None when nobody can tell.

Torch stamps its record with the wall clock, the ring with the monotonic one. The sidecar reads
both, one right after the other, every second of its life: what the wall clock gained or lost
between two readings is slewing when it is little, and a jump when it is more. Slewing is followed;
a stamp from before a jump is ambiguous and has no answer.
"""

from __future__ import annotations

import bisect
import time
from collections import deque
from dataclasses import dataclass, field

_JUMP_NS = 2_000_000
_SLEW = 0.001
"""Twice what the kernel slews at most (500 ppm)."""
_WORTH_NS = 2_000
"""A change that is worth a sample: a clock that drifts by 10 ppm gives one a second."""
_SAMPLES = 4096
_TRIES = 3


@dataclass(slots=True)
class ClockPairs:
    """Readings of both clocks."""

    _samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    """Monotonic moment, wall clock minus monotonic clock."""
    _valid_from: int | None = None
    """Wall clock: older stamps are ambiguous, or older than the samples reach."""
    _last: tuple[int, int] | None = None

    def read(self) -> None:
        """Read both clocks, as close together as can be."""
        pairs = []
        for _ in range(_TRIES):
            before = time.monotonic_ns()
            wall = time.time_ns()
            after = time.monotonic_ns()
            pairs.append((after - before, (before + after) // 2, wall))
        _, monotonic, wall = min(pairs)
        self.add(monotonic, wall)

    def add(self, monotonic_ns: int, wall_ns: int) -> None:
        """One reading; later than all before."""
        offset = wall_ns - monotonic_ns
        if self._last is not None:
            then, was = self._last
            if abs(offset - was) > _JUMP_NS + _SLEW * (monotonic_ns - then):
                self._samples.clear()
                self._valid_from = monotonic_ns + max(offset, was)
        self._last = monotonic_ns, offset
        if self._samples and abs(offset - self._samples[-1][1]) < _WORTH_NS:
            return
        if len(self._samples) == self._samples.maxlen:
            moment, known = self._samples[1]
            self._valid_from = moment + known
        self._samples.append((monotonic_ns, offset))

    def frozen(self) -> Pairing:
        """What is known by now."""
        return Pairing(tuple(self._samples), self._valid_from)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Turns wall-clock stamps into monotonic ones."""

    samples: tuple[tuple[int, int], ...]
    valid_from: int | None = None

    @property
    def since_ns(self) -> int:
        """Monotonic moment from which on every stamp can be placed."""
        if self.valid_from is None or not self.samples:
            return 0
        return self.valid_from - self.samples[0][1]

    def monotonic_ns(self, wall_ns: int) -> int | None:
        """The moment of a stamp; None when the clock jumped since, or was never read."""
        if not self.samples or (self.valid_from is not None and wall_ns < self.valid_from):
            return None
        samples = self.samples
        at = bisect.bisect_right(samples, wall_ns, key=sum)
        if at == 0 or at == len(samples):
            return wall_ns - samples[max(0, at - 1)][1]
        (then, offset), (later, next_offset) = samples[at - 1], samples[at]
        share = (wall_ns - then - offset) / (later + next_offset - then - offset)
        return wall_ns - offset - int(share * (next_offset - offset))
