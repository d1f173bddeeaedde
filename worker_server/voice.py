"""Who may say where the rank is: the loop itself, or a hook that only guesses it.

Theory of operation. Every source of reports has a *voice* of its own; steps and phases each have
one voice that is heard. A voice takes the word by speaking, if nobody of its own rank or a higher
one has it; the voice that loses it is never heard again. In each voice one thread, the one that
speaks first, is the rank's loop; phases named by other threads are ignored, because "where is this
rank" has one answer.

What is compared on the hot path is one number: the thread that may speak, 0 while that is
undecided, -1 once it is lost.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import Any, Final

from worker_server import wire
from worker_server.aside import Counters, Tags
from worker_server.complaint import complain
from worker_server.figures import LEAST, MOST, OddFigureError, to_count, to_float, to_int
from worker_server.loop import Loop
from worker_server.page import layout

RANKS: Final = {
    wire.SOURCE_REPORTER: 4,
    "lightning": 3,
    "torchtitan": 3,
    "torchft": 2,
    "optimizer": 1,
}
"""The nearer to the training loop, the higher; anything else is 0."""

NO_CONTEXT: Final[AbstractContextManager[Any]] = nullcontext()
_LOST: Final = -1
_MAX_KNOWN: Final = 4 * layout.MAX_PHASES
"""Phase names remembered: a name that is new in every step must not fill the memory."""


class _Phase:
    """One named phase; the same object serves every time it is entered."""

    __slots__ = ("_id", "_voice")

    def __init__(self, voice: Voice, phase_id: int) -> None:
        self._voice = voice
        self._id = phase_id

    def __enter__(self) -> None:
        self._voice.enter_phase(self._id)

    def __exit__(self, *_: object) -> None:
        self._voice.leave_phase()


class _Waiting(_Phase):
    """The phase in which the rank waits for others."""

    __slots__ = ()

    def __enter__(self) -> None:
        self._voice.enter_phase(self._id)
        self._voice.declare_waits(self._id)


class Floor:
    """Who has the word, and the voices there are."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.counters = Counters(loop)
        self.tags = Tags(loop)
        self.voices: dict[str, Voice] = {}
        self.steps: Voice | None = None
        self.phases: Voice | None = None
        self.waits_declared = False

    def voice(self, name: str) -> Voice:
        """The voice of this source."""
        if name not in self.voices:
            self.voices[name] = Voice(self, name)
        return self.voices[name]

    def prepares(self, guess: Voice) -> bool:
        """Whether somebody who knows better than `guess` says that training has not begun.

        An optimizer is stepped before the first step where its state must exist at once.
        """
        nearer = self.phases is not None and self.phases.rank > guess.rank
        return nearer and bool(self.loop.outer) and self.loop.page.phase == layout.PHASE_INIT

    def publish(self) -> None:
        """Write to the page who speaks."""
        self.loop.page.write_sources(
            self.steps.name if self.steps else "",
            self.phases.name if self.phases else "",
            waits_declared=self.waits_declared,
        )

    def silence(self) -> None:
        """Hear nobody any more."""
        self.loop.on = False
        for voice in self.voices.values():
            voice.lose()


class Voice:
    """One source of reports. Nothing here raises into training."""

    def __init__(self, floor: Floor, name: str) -> None:
        self.name = name
        self.rank = RANKS.get(name, 0)
        self._floor = floor
        self._loop = floor.loop
        self._page = floor.loop.page
        self._outer = floor.loop.outer
        self._phases: dict[str, _Phase] = {}
        self._ignored: set[str] = set()
        self._thread = 0
        self._steps_thread = 0
        self._phases_thread = 0
        self.count = floor.counters.add
        """Count a thing of your own: `count("samples_skipped", 3)`."""
        self.tag = floor.tags.named
        """Declare what the rank does over and above its phase, until the `with` block ends."""

    # -- phases -----------------------------------------------------------------------------

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends."""
        try:
            return self._phases[name]
        except (KeyError, TypeError):
            return self._new_phase(name)

    def _new_phase(self, name: str) -> AbstractContextManager[Any]:
        try:
            number = self._page.phase_id(name)
            waits = name == wire.WAITING_PHASE and self.name == wire.SOURCE_REPORTER
            made = _Waiting(self, number) if waits else _Phase(self, number)
            if len(self._phases) < _MAX_KNOWN:
                self._phases[name] = made
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self._disable(exc)
            return NO_CONTEXT
        return made

    def enter_phase(self, phase_id: int) -> None:
        """Begin a phase inside the running one."""
        if self._phases_thread != get_ident() and not self._take_phases():
            return
        try:
            if self._loop.due:
                self._loop.begin_next()
            self._outer.append(self._page.phase)
            self._page.change_phase(phase_id)
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)

    def leave_phase(self) -> None:
        """Go back to the phase outside of the running one."""
        if self._phases_thread != get_ident():
            return
        try:
            outer = self._outer
            back = outer.pop() if outer else layout.PHASE_OTHER
            if not outer and self._loop.facts.attempt:
                back = layout.PHASE_OTHER  # the first step began inside of a phase
            self._page.change_phase(back)
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)

    def declare_waits(self, phase_id: int) -> None:
        """The loop itself says where it waits for others."""
        if not self._floor.waits_declared and self._page.phase == phase_id and self._loop.on:
            self._floor.waits_declared = True
            self._floor.publish()

    # -- steps ------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """A step begins, perhaps again: the attempt counts up, the ring's nth starts anew."""
        if self._steps_thread != get_ident() and not self._take_steps():
            return
        try:
            if step.__class__ is not int or not LEAST < step < MOST:
                step = to_int(step)
            self._loop.begin(step)
        except OddFigureError as exc:
            self._ignore("a step", exc)
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)

    def end_step(
        self, step: int, *, committed: bool = True, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended; `tokens` count when it was committed."""
        if self._steps_thread != get_ident() and not self._take_steps():
            return
        try:
            if loss is not None and loss.__class__ is not float:
                loss = self._loss(loss)
            if tokens.__class__ is not int or not 0 <= tokens < MOST:
                tokens = self._tokens(tokens)
            if step.__class__ is not int or not LEAST < step < MOST:
                step = to_int(step)
            self._loop.end(step, committed, loss, tokens)
        except OddFigureError as exc:
            self._ignore("a step", exc)
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)

    def step(
        self, step: int, loss: float | None = None, tokens: int = 0, committed: bool = True
    ) -> None:
        """A step ended, for loops that say no more: the next begins where this one ended."""
        self.end_step(step, committed=committed, loss=loss, tokens=tokens)
        if self._steps_thread == get_ident():
            self._loop.due = True

    def note_loss(self, loss: Any) -> None:
        """A mean over ranks, told apart; not heard if a voice nearer to the loop has the steps."""
        if self._steps_thread == _LOST or self._thread not in (0, get_ident()):
            return
        try:
            nearer = self._floor.steps is not None and self._floor.steps.rank > self.rank
            if not nearer and (known := self._loss(loss)) is not None:
                self._loop.note_loss(known)
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)

    def _loss(self, loss: Any) -> float | None:
        try:
            return to_float(loss)
        except OddFigureError as exc:
            self._ignore("a loss", exc)
            return None

    def _tokens(self, tokens: Any) -> int:
        try:
            return to_count(tokens)
        except OddFigureError as exc:
            self._ignore("tokens", exc)
            return 0

    def _ignore(self, what: str, why: OddFigureError) -> None:
        if what not in self._ignored:
            self._ignored.add(what)
            complain(f"lightkeeper ignores {what} that cannot be reported: {why}", stacklevel=5)

    # -- who is heard -----------------------------------------------------------------------

    def lose(self) -> None:
        """Never be heard again."""
        self._steps_thread = self._phases_thread = _LOST

    def _take_steps(self) -> bool:
        if self._steps_thread or self._floor.prepares(self):
            return False
        if not self._may_speak(self._floor.steps):
            return False
        if self._floor.steps is not None:
            self._floor.steps._steps_thread = _LOST
        self._steps_thread = get_ident()
        self._floor.steps = self
        self._page.trains_here()
        return self._publish()

    def _take_phases(self) -> bool:
        if self._phases_thread or not self._may_speak(self._floor.phases):
            return False
        former = self._floor.phases
        self._phases_thread = get_ident()
        self._floor.phases = self
        self._page.trains_here()
        if former is not None:
            former._phases_thread = _LOST
            self._outer.clear()
        return self._publish(rest=former is not None)

    def _may_speak(self, holder: Voice | None) -> bool:
        if not self._loop.on or (holder is not None and holder.rank >= self.rank):
            return False
        if self._thread not in (0, get_ident()):
            return False
        self._thread = get_ident()
        return True

    def _publish(self, *, rest: bool = False) -> bool:
        try:
            if rest:  # the phases of the voice that lost the word are over
                self._page.change_phase(self._loop.rest())
            self._floor.publish()
        except Exception as exc:  # noqa: BLE001
            self._disable(exc)
            return False
        return True

    def _disable(self, why: BaseException) -> None:
        self._loop.disable(why)
        self._floor.silence()
