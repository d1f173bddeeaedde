"""Whether this rank's numbers are finite: since which attempt they are not, and where it was seen.

Theory of operation. TorchFT commits a NaN: it never looks. Who was first is known only to the rank,
before it gives its gradient away; a step later everybody's loss is NaN. So the rank remembers the
beginning of the latest *spell*: attempts in a row that were not finite. A spell ends with an
attempt of which something was looked at and all of it was finite.
"""

from __future__ import annotations

from math import isfinite
from time import monotonic_ns
from typing import Any, Final

from worker_server.complaint import complain
from worker_server.figures import is_finite
from worker_server.loop import Loop
from worker_server.page import layout

LOCAL: Final = "local"
_NEVER: Final = -1


class Soundness:
    """Remembers the latest spell. Nothing here raises into training, or waits for a GPU."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._looked = _NEVER
        """Last attempt of which something was looked at."""
        self._bad = _NEVER
        """Last attempt that was not finite."""
        self._first: tuple[int | None, int, int] = (0, 0, 0)
        """Step, place and time at which the spell began; the step is None until it is told."""
        self._run = 0
        self._attempts = 0
        self._warned: set[str] = set()
        loop.soundness = self

    def look(self, loss: Any, grad_norm: Any, where: str) -> bool:
        """Whether what could be read is finite; what is not is remembered."""
        finite, loop = True, self._loop
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is None:
                continue
            known = is_finite(value)
            if known is None:
                self._warn(name, f"cannot tell without waiting whether {name} is finite")
                continue
            finite = finite and known
            self._looked = loop.attempt_now
        if not finite:
            self._note(where, loop.attempt_now, loop.step_now)
        return finite

    def end(self, loss: float | None, step: int) -> None:
        """An attempt of this step ends; the loop still counts it as the present one."""
        attempt = self._loop.facts.attempt
        if loss is not None:
            self._looked = attempt
            if not isfinite(loss):
                self._note(LOCAL, attempt, step)
        if self._bad == attempt and self._first[0] is None:
            self._first = step, *self._first[1:]
            self._publish()
        if self._run and self._looked == attempt != self._bad:
            self._run = 0
            self._publish()

    def _note(self, where: str, attempt: int, step: int | None) -> None:
        if attempt == self._bad:
            return  # what was seen first in an attempt was seen nearest to its origin
        if not self._run:
            place = layout.PLACES.index(where) if where in layout.PLACES else 0
            self._first = step, place, monotonic_ns()
        self._bad = attempt
        self._run += 1
        self._attempts += 1
        self._publish()

    def _publish(self) -> None:
        step, place, since_ns = self._first
        if self._loop.on and step is not None:
            self._loop.page.write_spoilt(step, place, since_ns, self._run, self._attempts)

    def _warn(self, what: str, text: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            complain(f"lightkeeper {text}: hand in a number, or a tensor on the CPU", stacklevel=5)
