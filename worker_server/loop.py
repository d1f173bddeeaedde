"""The training loop as this rank reports it: which step, which attempt, how it ended.

One object a process; who may change it is decided in `voice`. An attempt is open from its
beginning to its end. One that is begun while another is open puts an end to that one, without a
commit: each attempt ends exactly once, so that the steps ring has them all.
"""

from __future__ import annotations

from math import isfinite
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from worker_server.complaint import complain
from worker_server.identity import UNNAMED, name_in_replica_id
from worker_server.page import layout
from worker_server.page.writer import PageWriter, StepFacts

if TYPE_CHECKING:
    from worker_server.soundness import Soundness

_SHARED: Final = layout.PLACES[-1]
"""Where a loss comes from that is not the rank's alone."""


class Loop:
    """What is known of the loop, written to the page whenever it changes."""

    def __init__(self, page: PageWriter) -> None:
        self.page = page
        self.facts = StepFacts()
        """As they are now; the collective ring reads step and attempt."""
        self.on = True
        self.due = False
        """Whether the next phase begins an attempt: the loop tells only the ends of its steps."""
        self.outer: list[int] = []
        """Phases that the running one pauses."""
        self._manager: Any = None
        self._unread = False
        self._replica = ""
        self.renamed = False
        """Whether the group has another name to its Manager than to its launcher."""
        self._said: str | None = None
        self._open = False
        self._begin_ns = 0
        self._end_ns = 0
        self.heals = 0
        """Attempts in which the Manager healed."""
        self.soundness: Soundness | None = None
        """Is told of every end."""

    @property
    def attempt_now(self) -> int:
        """The open attempt, or the one that its end will open."""
        return self.facts.attempt if self._open else self.facts.attempt + 1

    @property
    def step_now(self) -> int | None:
        """The open attempt's step; None while none is open: only its end tells it."""
        return self.step_of(self.facts.step) if self._open else None

    def step_of(self, step: int, committed: bool = False) -> int:
        """An attempt's step as TorchFT numbers it by now: where a heal came before the forward
        pass, the number with which the attempt began is that of weights that are gone.
        """
        number = getattr(self._manager, "_step", None)
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
        self._begin_ns = now
        page.begin_attempt(facts.attempt, step)
        if self._unread:  # who we are is worth telling before the first end
            self._unread = False
            self._read_manager(self._manager, facts)
            page.write_step(facts)

    def begin_next(self) -> None:
        """An attempt begins with a phase: of the next step, or of the same again."""
        facts = self.facts
        self.begin(facts.step + 1 if facts.committed_step == facts.step else facts.step)

    def end(self, step: int, committed: bool, loss: float | None, tokens: int) -> None:
        """The open attempt ends, or one that began where the former ended."""
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
        if self.soundness is not None:
            self.soundness.end(loss, self.step_of(step, committed))
        self._open = False
        self._end_ns = now
        if self._manager is not None:
            self._read_manager(self._manager, facts)
            self.heals += facts.healing
        page.end_attempt(facts.attempt, step, self._begin_ns, now, 1 if committed else 0)
        page.write_step(facts)

    def note_loss(self, loss: float) -> None:
        """A mean over ranks, told by itself: while its attempt is open, or after its end."""
        self._take_loss(loss)
        if self.soundness is not None:
            self.soundness.look(loss, None, _SHARED)
        self.page.write_step(self.facts)

    def _take_loss(self, loss: float) -> None:
        self.facts.loss = loss
        self.facts.loss_kind = layout.LOSS_FINITE if isfinite(loss) else layout.LOSS_NOT_FINITE

    def rest(self) -> int:
        """The phase outside of every named one."""
        return layout.PHASE_OTHER if self.facts.attempt else layout.PHASE_INIT

    def disable(self, why: BaseException) -> None:
        """Report nothing any more; says so once."""
        if self.on:
            self.on = False
            complain(f"lightkeeper stopped reporting: {why!r}", stacklevel=5)

    @property
    def manager(self) -> Any:
        """The torchft Manager that is observed."""
        return self._manager

    def observe(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager, at the end of every attempt."""
        self._manager = manager
        self._unread = manager is not None
        replica = self._replica_of(manager)
        if isinstance(replica, str):
            self.page.write_replica(replica)
            self._say_name(replica)

    def _say_name(self, replica: str) -> None:
        name, launched = name_in_replica_id(replica), self.page.launched_as
        self.renamed = name not in (None, launched)
        if self.renamed and launched != UNNAMED and self._said != name:
            self._said = name
            complain(
                f"lightkeeper: this replica group is {launched} to its launcher and {name} to its "
                f"TorchFT Manager: it is shown as {name}",
                stacklevel=6,
            )

    @staticmethod
    def _replica_of(manager: object) -> Any:
        replica = getattr(getattr(manager, "_logger", None), "_replica_id", None)
        return getattr(manager, "_replica_id", None) if replica is None else replica

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
        replica = self._replica_of(manager)
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
            known = isinstance(replica, str)
            facts.replica_id = self.page.intern(replica) if known else layout.NO_STRING
