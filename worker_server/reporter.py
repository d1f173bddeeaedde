"""What a training loop says of itself, in a microsecond or two a call.

Theory of operation. One thread, the one that reports first, is the rank's loop; phases named
by other threads are ignored, because "where is this rank" has one answer. Phases nest: an
inner phase pauses the outer one, so seconds are never counted twice. Before the first step the
rank is in `init`; inside a step and outside of every phase it is in `other`.

Nothing here raises into training. The first internal failure warns once and switches the
reporter off; a phase is then a context manager that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from time import monotonic_ns
from typing import Any, Protocol

from worker_server.complaint import complain
from worker_server.page import layout
from worker_server.page.writer import PageWriter

_NO_PHASE: AbstractContextManager[Any] = nullcontext()


class StepReporter(Protocol):
    """What training code may rely on, whether or not the attach worked."""

    @property
    def url(self) -> str | None:
        """The sidecar's URL once it listens."""

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends."""

    def begin_step(self, step: int) -> None:
        """A step begins, perhaps again."""

    def end_step(
        self, step: int, *, committed: bool, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended; `tokens` count when it was committed."""

    def observe_manager(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager from now on."""

    def close(self) -> None:
        """Training is over: what follows is an ending, not a failure."""


class NullReporter:
    """Does nothing: the attach failed or is switched off."""

    url: str | None = None

    def phase(self, name: str) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Nothing."""
        return _NO_PHASE

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def end_step(
        self, step: int, *, committed: bool, loss: float | None = None, tokens: int = 0
    ) -> None:
        """Nothing."""

    def observe_manager(self, manager: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class _Phase:
    """One named phase; the same object serves every time it is entered."""

    __slots__ = ("_id", "_reporter")

    def __init__(self, reporter: Reporter, phase_id: int) -> None:
        self._reporter = reporter
        self._id = phase_id

    def __enter__(self) -> None:
        self._reporter.enter_phase(self._id)

    def __exit__(self, *_: object) -> None:
        self._reporter.leave_phase()


class Reporter:
    """Writes this rank's page."""

    def __init__(self, page: PageWriter, find_url: Callable[[], str | None] = lambda: None) -> None:
        self.page = page
        self.step = layout.NONE
        """The step being worked on; the collective ring reads it."""
        self.attempt = 0
        self._find_url = find_url
        self._url: str | None = None
        self._on = True
        self._owner = 0
        self._phases: dict[str, _Phase] = {}
        self._outer: list[int] = []
        self._commits = 0
        self._last_commit_ns = layout.NONE
        self._tokens = 0
        self._loss_kind = layout.LOSS_ABSENT
        self._loss = 0.0
        self._manager: object | None = None

    @property
    def url(self) -> str | None:
        """The sidecar's URL once it listens."""
        if self._url is None and self._on:
            self._url = self._find_url()
        return self._url

    # -- phases -----------------------------------------------------------------------------

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends."""
        known = self._phases.get(name)
        return self._new_phase(name) if known is None else known

    def _new_phase(self, name: str) -> AbstractContextManager[Any]:
        try:
            made = self._phases[name] = _Phase(self, self.page.phase_id(name))
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return _NO_PHASE
        return made

    def enter_phase(self, phase_id: int) -> None:
        """Begin a phase inside the running one."""
        if self._owner != get_ident() and not self._own():
            return
        try:
            self._outer.append(self.page.phase)
            self.page.change_phase(phase_id)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def leave_phase(self) -> None:
        """Go back to the phase outside of the running one."""
        if self._owner != get_ident():
            return
        try:
            outer = self._outer
            back = outer.pop() if outer else layout.PHASE_OTHER
            if not outer and self.attempt:
                back = layout.PHASE_OTHER  # the first step began inside of a phase
            self.page.change_phase(back)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def _own(self) -> bool:
        if self._owner or not self._on:
            return False
        self._owner = get_ident()
        return True

    # -- steps ------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """A step begins, perhaps again: the attempt counts up, the ring's nth starts anew."""
        if self._owner != get_ident() and not self._own():
            return
        try:
            self.step = int(step)
            self.attempt += 1
            self._write()
            if not self._outer:
                self.page.change_phase(layout.PHASE_OTHER)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def end_step(
        self, step: int, *, committed: bool, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended; `tokens` count when it was committed."""
        if self._owner != get_ident() and not self._own():
            return
        try:
            self.step = int(step)
            if committed:
                self._commits += 1
                self._tokens += int(tokens)
                self._last_commit_ns = monotonic_ns()
            if loss is not None:
                self._loss = value = float(loss)
                finite = math.isfinite(value)
                self._loss_kind = layout.LOSS_FINITE if finite else layout.LOSS_NOT_FINITE
            self._write()
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def observe_manager(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager from now on."""
        self._manager = manager

    def close(self) -> None:
        """Training is over: what follows is an ending, not a failure."""
        if self._on:
            self.page.close()

    def _write(self) -> None:
        quorum, participants, healing, errored, replica = self._read_manager()
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
            layout.NONE,
            0,
        )

    def _read_manager(self) -> tuple[int, int, bool, bool, int]:
        """Plain attributes only: the Manager's methods wait for the quorum."""
        manager = self._manager
        if manager is None:
            return layout.NONE, layout.NONE, False, False, layout.NO_STRING
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

    # -- the end ----------------------------------------------------------------------------

    def disable(self, why: BaseException) -> None:
        """Report nothing any more; says so once."""
        if not self._on:
            return
        self._on = False
        self._owner = -1
        complain(f"lightkeeper stopped reporting: {why!r}", stacklevel=4)

    def detach(self) -> None:
        """Called in a forked child, which is not the rank: whatever it reports goes nowhere."""
        self._on = False
        self._owner = -1
        self._url = None
        self.page.detach()
