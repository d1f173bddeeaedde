"""The training loop as this rank reports it: which step, which attempt, how it ended.

One object a process; who may change it is decided in `voice`. An attempt is open from its
beginning to its end. One that is begun while another is open puts an end to that one, without a
commit: each attempt ends exactly once, so that the steps ring has them all.
"""

from __future__ import annotations

import math
from time import monotonic_ns

from worker_server.complaint import complain
from worker_server.page import layout
from worker_server.page.writer import PageWriter


class Loop:
    """What is known of the loop, written to the page whenever it changes."""

    def __init__(self, page: PageWriter) -> None:
        self.page = page
        self.on = True
        self.step = layout.NONE
        """The step being worked on; the collective ring reads it."""
        self.attempt = 0
        self.due = False
        """Whether the next phase begins an attempt: the loop tells only the ends of its steps."""
        self.outer: list[int] = []
        """Phases that the running one pauses."""
        self.manager: object | None = None
        self._open = False
        self._begin_ns = 0
        self._end_ns = 0
        self._commits = 0
        self._committed_step = layout.NONE
        self._failures = 0
        self._last_commit_ns = layout.NONE
        self._tokens = 0
        self._loss_kind = layout.LOSS_ABSENT
        self._loss = 0.0

    def begin(self, step: int) -> None:
        """An attempt begins; that is progress, whatever the phase."""
        page = self.page
        now = page.change_phase(page.phase if self.outer else layout.PHASE_OTHER)
        if self._open:
            page.write_attempt(self.attempt, self.step, self._begin_ns, now, False)
        self.step = step
        self.attempt += 1
        self.due = False
        self._open = True
        self._begin_ns = now
        self._write()

    def begin_next(self) -> None:
        """An attempt begins with a phase: of the next step, or of the same again."""
        self.begin(self.step + 1 if self._committed_step == self.step else self.step)

    def end(self, step: int, committed: bool, loss: float | None, tokens: int) -> None:
        """The open attempt ends, or one that began where the former ended."""
        page = self.page
        if self._open:
            now = monotonic_ns()
        else:
            now = page.change_phase(page.phase if self.outer else layout.PHASE_OTHER)
            self._begin_ns = self._end_ns or now
            self.attempt += 1
        self.step = step
        if committed:
            self._commits += 1
            self._committed_step = step
            self._tokens += tokens
            self._last_commit_ns = now
        else:
            self._failures += 1
        if loss is not None:
            self._loss = loss
            self._loss_kind = layout.LOSS_FINITE if math.isfinite(loss) else layout.LOSS_NOT_FINITE
        self._open = False
        self._end_ns = now
        page.write_attempt(self.attempt, step, self._begin_ns, now, committed)
        self._write()

    def rest(self) -> int:
        """The phase outside of every named one."""
        return layout.PHASE_OTHER if self.attempt else layout.PHASE_INIT

    def disable(self, why: BaseException) -> None:
        """Report nothing any more; says so once."""
        if self.on:
            self.on = False
            complain(f"lightkeeper stopped reporting: {why!r}", stacklevel=5)

    def _write(self) -> None:
        quorum, participants, healing, errored, replica = (
            _NO_MANAGER if self.manager is None else self._read_manager()
        )
        self.page.write_step(
            self.step,
            self.attempt,
            self._commits,
            self._last_commit_ns,
            quorum,
            participants,
            healing,
            errored,
            replica,
            self._tokens,
            self._loss_kind,
            self._loss,
            self._committed_step,
            self._failures,
        )

    def _read_manager(self) -> tuple[int, int, bool, bool, int]:
        """Plain attributes only: the Manager's methods wait for the quorum."""
        manager = self.manager
        quorum = getattr(manager, "_quorum_id", None)
        participants = getattr(manager, "_participating_replica_world_size", None)
        if not isinstance(quorum, int) or quorum < 0:  # -1: no quorum yet
            quorum = participants = layout.NONE
        elif not isinstance(participants, int):
            participants = layout.NONE
        replica = getattr(getattr(manager, "_logger", None), "_replica_id", None)
        if not isinstance(replica, str):
            replica = getattr(manager, "_replica_id", None)
        return (
            quorum,
            participants,
            bool(getattr(manager, "_healing", False)),
            getattr(manager, "_errored", None) is not None,
            self.page.intern(replica) if isinstance(replica, str) else layout.NO_STRING,
        )


_NO_MANAGER = layout.NONE, layout.NONE, False, False, layout.NO_STRING
