"""The training loop as this rank reports it: step, attempt, outcome and soundness.

One `Loop` per process; `reporter` decides who may change it. An attempt is open from its beginning
to its end. Beginning another ends the open one without a commit: each attempt ends exactly once, so
the steps ring has them all.

Soundness: since which attempt this rank's numbers are not finite, and where that was seen. TorchFT
commits a NaN: it never checks. Only a rank itself can know that it was first, before it gives its
gradient away; a step later everybody's loss is NaN. So the rank remembers the beginning of the
latest *spell*: consecutive attempts that were not finite. A spell ends with an attempt in which
something was checked and all of it was finite.
"""

from __future__ import annotations

from math import isfinite
from time import monotonic_ns
from typing import Any, Final

from lightkeeper.worker_server.harmless import WarnOnce
from lightkeeper.worker_server.rank import gentle_end
from lightkeeper.worker_server.rank.figures import is_finite
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter, StepFacts

_SHARED: Final = layout.PLACES[-1]
"""The place of a loss that is not the rank's alone."""


class Loop:
    """What is known about the loop, written to the page at every change."""

    def __init__(self, page: PageWriter) -> None:
        self.page = page
        self.facts = StepFacts()
        """The current ones; the collective ring reads step and attempt."""
        self.on = True
        self.due = False
        """True if the next phase begins an attempt: the loop reports only the ends of its steps."""
        self.outer: list[int] = []
        """Phases that the running one pauses."""
        self.manager: Any = None
        """The torchft Manager that is observed."""
        self._unread = False
        self._replica = ""
        self._open = False
        self._voted = False
        """True if the optimizer's next step is that of the attempt that ended last."""
        self._begun_locally = False
        """True if local steps were made since the last attempt."""
        self._begin_ns = 0
        self._end_ns = 0
        self.heals = 0
        """Attempts in which the Manager healed."""
        self.soundness = Soundness(self)

    @property
    def begun(self) -> bool:
        return self.facts.attempt > 0 or self._begun_locally

    @property
    def attempt_now(self) -> int:
        """The open attempt, or the one that its end will open."""
        return self.facts.attempt if self._open else self.facts.attempt + 1

    @property
    def step_now(self) -> int | None:
        """The open attempt's step; None while none is open: only its end reports it."""
        return self.step_of(self.facts.step) if self._open else None

    def step_of(self, step: int, committed: bool = False) -> int:
        """An attempt's step as TorchFT numbers it now: after a heal before the forward pass, the
        number with which the attempt began belongs to replaced weights.
        """
        number = getattr(self.manager, "_step", None)
        return max(step, number - committed) if number.__class__ is int else step

    def begin(self, step: int) -> None:
        """An attempt begins; that is progress, whatever the phase."""
        page, facts = self.page, self.facts
        now = page.change_phase(page.phase if self.outer else layout.PHASE_OTHER)
        if self._open:
            page.end_attempt(facts.attempt, facts.step, self._begin_ns, now, 0)
        facts.step = step
        facts.attempt += 1
        self.due = False
        self._open = True
        self._begin_ns = (self._end_ns or now) if self._begun_locally else now
        self._begun_locally = False
        page.begin_attempt(facts.attempt, step)
        if self._unread:
            self._read_first()
        gentle_end.at_step()

    def begin_next(self) -> None:
        """A phase begins an attempt: of the next step, or of the same again."""
        facts = self.facts
        self.begin(facts.step + 1 if facts.committed_step == facts.step else facts.step)

    def end(self, step: int, committed: bool, loss: float | None, tokens: int) -> None:
        """The open attempt ends, or one that began where the last one ended."""
        page, facts = self.page, self.facts
        if self._open:
            now = monotonic_ns()
        else:
            now = page.change_phase(page.phase if self.outer else layout.PHASE_OTHER)
            self._begin_ns = self._end_ns or now
            facts.attempt += 1
        facts.step = step
        if committed:
            facts.commits += 1
            facts.committed_step = step
            facts.tokens += tokens
            facts.last_commit_ns = now
        else:
            facts.failures += 1
        if loss is not None:
            self._take_loss(loss)
        self.soundness.end(loss, self.step_of(step, committed))
        self._open = False
        self._voted = True
        self._end_ns = now
        if self.manager is not None:
            self._read_manager(self.manager, facts)
            self.heals += facts.healing
        page.end_attempt(facts.attempt, step, self._begin_ns, now, 1 if committed else 0)
        page.write_step(facts)
        gentle_end.at_step()

    def step_locally(self) -> None:
        """The optimizer made a step. The first after an attempt's end is that attempt's own; any
        other is one of several before the next vote, as in LocalSGD and DiLoCo.
        """
        if self._voted:
            self._voted = False
            return
        page = self.page
        page.change_phase(page.phase if self.outer else layout.PHASE_OTHER)
        page.count_local_step()
        self.due = False
        self._begun_locally = not self._open
        if self._unread:
            self.facts.step = self.step_of(self.facts.step)
            self._read_first()
        if self.facts.healing:
            self.facts.healing = False
            page.write_step(self.facts)

    def note_loss(self, loss: float) -> None:
        """A mean over ranks, reported separately: while its attempt is open, or after its end."""
        self._take_loss(loss)
        self.soundness.look(loss, None, _SHARED)
        self.page.write_step(self.facts)

    def _take_loss(self, loss: float) -> None:
        self.facts.loss = loss
        self.facts.loss_kind = layout.LOSS_FINITE if isfinite(loss) else layout.LOSS_NOT_FINITE

    def observe(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager, at the end of every attempt."""
        self.manager = manager
        self._unread = manager is not None
        replica = _replica_of(manager)
        if isinstance(replica, str):
            self.page.write_text(layout.W_REPLICA, replica)

    def _read_first(self) -> None:
        """Report the replica id before the first attempt ends."""
        self._unread = False
        self._read_manager(self.manager, self.facts)
        self.page.write_step(self.facts)

    def _read_manager(self, manager: Any, facts: StepFacts) -> None:
        """Plain attributes only: the Manager's methods wait for the quorum."""
        try:
            quorum = manager._quorum_id
            participants = manager._participating_replica_world_size
            healing, errored = manager._healing, manager._errored
        except AttributeError:
            quorum = getattr(manager, "_quorum_id", None)
            participants = getattr(manager, "_participating_replica_world_size", None)
            healing = getattr(manager, "_healing", False)
            errored = getattr(manager, "_errored", None)
        replica = _replica_of(manager)
        if quorum.__class__ is not int or quorum < 0:  # -1: no quorum yet
            quorum = participants = layout.NONE
        elif participants.__class__ is not int:
            participants = layout.NONE
        facts.quorum_id = quorum
        facts.participants = participants
        facts.healing = bool(healing)
        facts.errored = errored is not None
        if replica is not self._replica:
            self._replica = replica
            named = isinstance(replica, str)
            facts.replica_id = self.page.intern(replica) if named else layout.NO_STRING


def _replica_of(manager: object) -> Any:
    replica = getattr(getattr(manager, "_logger", None), "_replica_id", None)
    return getattr(manager, "_replica_id", None) if replica is None else replica


# -- soundness ---------------------------------------------------------------------------------

LOCAL: Final = "local"
_NEVER: Final = -1


class Soundness:
    """Remembers the latest spell. Nothing here raises into training, or waits for a GPU."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._looked = _NEVER
        """Last attempt in which something was checked."""
        self._bad = _NEVER
        """Last attempt that was not finite."""
        self._first: tuple[int | None, int, int] = (0, 0, 0)
        """Step, place and time at which the spell began; the step is None until it is reported."""
        self._run = 0
        self._attempts = 0
        self._warn = WarnOnce()

    def look(self, loss: Any, grad_norm: Any, where: str) -> bool:
        """True if the figures that can be read are finite; remembers those that are not."""
        finite, loop = True, self._loop
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is None:
                continue
            finite_value = is_finite(value)
            if finite_value is None:
                self._warn(
                    name,
                    f"cannot tell without waiting whether {name} is finite: hand in a number, or "
                    "a tensor on the CPU",
                )
                continue
            finite = finite and finite_value
            self._looked = loop.attempt_now
        if not finite:
            self._note(where, loop.attempt_now, loop.step_now)
        return finite

    def end(self, loss: float | None, step: int) -> None:
        """An attempt of this step ends; the loop still counts it as the current one."""
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
            return  # what an attempt saw first is nearest to the origin
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
            numbers = step, place, since_ns, self._run, self._attempts
            self._loop.page.write_pair(layout.SPOILT, numbers)
