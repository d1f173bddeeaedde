"""What a training loop reports, at a microsecond or two a call.

Phases nest: an inner phase pauses the outer one, so seconds are never counted twice. Before the
first step the rank is in `init`; inside a step and outside all phases it is in `other`.

Who is heard. The loop itself may report, or a hook that only guesses: each is a *source*. Steps and
phases each have one source that is heard. A source takes over by reporting, unless one of the same
or a higher rank is heard; a source that was replaced is never heard again. In each source one
thread, the first to report, is the rank's loop; phases named by other threads are ignored, because
"where is this rank" has one answer. The hot path compares one number: the thread that may report, 0
while that is undecided, -1 once it is lost.

Nothing here raises into training. The first internal failure warns once and turns the reporter off;
a phase is then a context manager that does nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeVar

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.harmless import WarnOnce, warn
from lightkeeper.worker_server.rank.figures import (
    LEAST,
    MOST,
    OddFigureError,
    none_is_spoilt,
    to_count,
    to_float,
    to_int,
)
from lightkeeper.worker_server.rank.fingerprint import Fingerprinter
from lightkeeper.worker_server.rank.loop import LOCAL, Loop
from lightkeeper.worker_server.rank.page import layout
from lightkeeper.worker_server.rank.page.writer import PageWriter

T = TypeVar("T")

RANKS: Final = {
    wire.SOURCE_REPORTER: 4,
    "lightning": 3,
    "torchtitan": 3,
    "torchft": 2,
    "optimizer": 1,
}
"""The nearer to the training loop, the higher; anything else is 0."""

_NO_CONTEXT: Final[AbstractContextManager[Any]] = nullcontext()
_LOST: Final = -1
_MAX_KNOWN: Final = 64
"""Names remembered per kind: names that are new in every step must not fill the memory."""


class Annotations:
    """User-defined tags and counters, at most 16 of each; any thread may use them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._page = loop.page
        self._counters: dict[str, int] = {}
        self._tags: dict[str, _Span] = {}
        self._warn = WarnOnce()

    def count(self, name: str, amount: float = 1) -> None:
        """Count up. A negative or non-finite amount, or no number, is ignored with one warning."""
        if not self._loop.on:
            return
        try:
            value = float(amount)
            if 0 <= value < math.inf:
                counter = self._counters.get(name)
                if counter is None:
                    counter = self._new_counter(name)
                if counter is not None:
                    self._page.add_count(counter, value)
            else:
                self._warn("amount", f"counts up only: {name!r} by {amount!r} is ignored")
        except Exception as exc:  # noqa: BLE001
            self._warn("counting", f"cannot count {name!r}: {exc!r}")

    def _new_counter(self, name: str) -> int | None:
        counter = self._page.number_of(name, layout.COUNTER_NAMES)
        if counter is None:
            self._warn("counters", f"keeps {layout.MAX_COUNTERS} counters: {name!r} is dropped")
        elif len(self._counters) < _MAX_KNOWN:
            self._counters[name] = counter
        return counter

    def tag(self, name: str) -> AbstractContextManager[Any]:
        """The tag of this name, which is on while any of its `with` blocks runs."""
        try:
            tag = self._tags.get(name)
            return self._new_tag(name) if tag is None else tag
        except Exception as exc:  # noqa: BLE001
            self._warn("tagging", f"cannot tag {name!r}: {exc!r}")
            return _NO_CONTEXT

    def _new_tag(self, name: str) -> AbstractContextManager[Any]:
        number = self._page.number_of(name, layout.TAG_NAMES)
        if number is None:
            self._warn("tags", f"keeps {layout.MAX_TAGS} tags: {name!r} is dropped")
            return _NO_CONTEXT
        turn = partial(self.turn_tag, number)
        tag = _Span(partial(turn, on=True), partial(turn, on=False))
        if len(self._tags) < _MAX_KNOWN:
            self._tags[name] = tag
        return tag

    def turn_tag(self, number: int, *, on: bool) -> None:
        if not self._loop.on:
            return
        try:
            self._page.turn_tag(number, on=on)
        except Exception as exc:  # noqa: BLE001
            self._warn("tagging", f"cannot tag: {exc!r}")


@dataclass(slots=True)
class _Span:
    """A tag or a phase for a `with` block; the object is reused."""

    begin: Callable[[], None]
    end: Callable[[], None]

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()


class SourceArbiter:
    """All sources, and which of them are heard."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.annotations = Annotations(loop)
        self.sources: dict[str, ReportSource] = {}
        self.steps: ReportSource | None = None
        self.phases: ReportSource | None = None
        self.waits_declared = False

    def source(self, name: str) -> ReportSource:
        if name not in self.sources:
            self.sources[name] = ReportSource(self, name)
        return self.sources[name]

    def prepares(self, guess: ReportSource) -> bool:
        """True if a source that knows better than `guess` reports that training has not begun.

        Some code steps an optimizer before the first step, to create its state.
        """
        nearer = self.phases is not None and self.phases.rank > guess.rank
        return nearer and bool(self.loop.outer) and self.loop.page.phase == layout.PHASE_INIT

    def publish(self) -> None:
        """Write to the page who is heard."""
        self.loop.page.write_sources(
            self.steps.name if self.steps else "",
            self.phases.name if self.phases else "",
            waits_declared=self.waits_declared,
        )

    def silence(self) -> None:
        """Ignore all sources from now on."""
        self.loop.on = False
        for source in self.sources.values():
            source._steps_thread = source._phases_thread = _LOST


class ReportSource:
    """One source of reports on the training loop. Nothing here raises into training."""

    def __init__(self, arbiter: SourceArbiter, name: str) -> None:
        self.name = name
        self.rank = RANKS.get(name, 0)
        self._arbiter = arbiter
        self._loop = arbiter.loop
        self._page = arbiter.loop.page
        self._outer = arbiter.loop.outer
        self._phases: dict[str, _Span] = {}
        self._warn = WarnOnce()
        self._thread = 0
        self._steps_thread = 0
        self._phases_thread = 0
        self.count = arbiter.annotations.count
        """Count a thing of your own, `count("samples_skipped", 3)`; at most 16, which only grow."""
        self.tag = arbiter.annotations.tag
        """Declare what the rank does in addition to its phase, until the `with` block ends."""

    # -- phases -----------------------------------------------------------------------------

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends; 16 names, then `other`.

        Standard: data, forward, backward, communication (where it waits for others, and nowhere
        else), optimizer, checkpoint, evaluation, compile.
        """
        try:
            return self._phases[name]
        except (KeyError, TypeError):
            return self._new_phase(name)

    def _new_phase(self, name: str) -> AbstractContextManager[Any]:
        try:
            number = self._page.phase_id(name)
            waits = name == wire.WAITING_PHASE and self.name == wire.SOURCE_REPORTER
            begin = self.enter_waiting_phase if waits else self.enter_phase
            phase = _Span(partial(begin, number), self.leave_phase)
            if len(self._phases) < _MAX_KNOWN:
                self._phases[name] = phase
        except Exception as exc:  # noqa: BLE001  nothing may reach training
            self.disable(exc)
            return _NO_CONTEXT
        return phase

    def enter_phase(self, phase_id: int) -> None:
        if self._phases_thread != get_ident() and not self._take_phases():
            return
        try:
            if self._loop.due:
                self._loop.begin_next()
            self._outer.append(self._page.phase)
            self._page.change_phase(phase_id)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def leave_phase(self) -> None:
        if self._phases_thread != get_ident():
            return
        try:
            outer = self._outer
            back = outer.pop() if outer else layout.PHASE_OTHER
            if not outer and self._loop.begun:
                back = layout.PHASE_OTHER  # the first step began inside a phase
            self._page.change_phase(back)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def enter_waiting_phase(self, phase_id: int) -> None:
        """Begin the phase in which the rank waits for others: the loop itself reports where."""
        self.enter_phase(phase_id)
        if not self._arbiter.waits_declared and self._page.phase == phase_id and self._loop.on:
            self._arbiter.waits_declared = True
            self._arbiter.publish()

    # -- steps ------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """A step begins, perhaps again: the attempt counts up, the ring's `nth` restarts at 0."""
        if self._steps_thread != get_ident() and not self._take_steps():
            return
        try:
            if step.__class__ is not int or not LEAST < step < MOST:
                step = to_int(step)
            self._loop.begin(step)
        except OddFigureError as exc:
            self._warn("a step", f"ignores a step that cannot be reported: {exc}")
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def end_step(
        self, step: int, *, committed: bool = True, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended; `tokens` count when it was committed."""
        if self._steps_thread != get_ident() and not self._take_steps():
            return
        try:
            if loss is not None and loss.__class__ is not float:
                loss = self._read("a loss", to_float, loss)
            if tokens.__class__ is not int or not 0 <= tokens < MOST:
                tokens = self._read("tokens", to_count, tokens) or 0
            if step.__class__ is not int or not LEAST < step < MOST:
                step = to_int(step)
            self._loop.end(step, committed, loss, tokens)
        except OddFigureError as exc:
            self._warn("a step", f"ignores a step that cannot be reported: {exc}")
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def step(
        self, step: int, loss: float | None = None, tokens: int = 0, committed: bool = True
    ) -> None:
        """A step ended, for loops that report only this: the next begins where this one ended."""
        self.end_step(step, committed=committed, loss=loss, tokens=tokens)
        if self._steps_thread == get_ident():
            self._loop.due = True

    def count_step(self, step: int) -> None:
        """The optimizer made a step: with a TorchFT Manager a local one, for its votes are commits;
        else a step that is a commit too.
        """
        if self._loop.manager is None:
            self.step(step)
        else:
            self._arbiter.source("torchft").step_locally()

    def step_locally(self) -> None:
        """The optimizer made a step, before or after a vote."""
        if self._steps_thread != get_ident() and not self._take_steps():
            return
        try:
            self._loop.step_locally()
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def note_loss(self, loss: Any) -> None:
        """The latest loss, a mean over ranks, from a hook that gets it apart from the step; ignored
        if a source nearer to the loop reports the steps.
        """
        if self._steps_thread == _LOST or self._thread not in (0, get_ident()):
            return
        try:
            nearer = self._arbiter.steps is not None and self._arbiter.steps.rank > self.rank
            if not nearer and (number := self._read("a loss", to_float, loss)) is not None:
                self._loop.note_loss(number)
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)

    def _read(self, what: str, read: Callable[[Any], T], value: Any) -> T | None:
        try:
            return read(value)
        except OddFigureError as exc:
            self._warn(what, f"ignores {what} that cannot be reported: {exc}")
            return None

    # -- who is heard -----------------------------------------------------------------------

    def _take_steps(self) -> bool:
        if self._steps_thread or self._arbiter.prepares(self):
            return False
        if not self._may_speak(self._arbiter.steps):
            return False
        if self._arbiter.steps is not None:
            self._arbiter.steps._steps_thread = _LOST
        self._steps_thread = get_ident()
        self._arbiter.steps = self
        self._page.trains_here()
        return self._publish()

    def _take_phases(self) -> bool:
        if self._phases_thread or not self._may_speak(self._arbiter.phases):
            return False
        former = self._arbiter.phases
        self._phases_thread = get_ident()
        self._arbiter.phases = self
        self._page.trains_here()
        if former is not None:
            former._phases_thread = _LOST
            self._outer.clear()
        return self._publish(replaces=former is not None)

    def _may_speak(self, holder: ReportSource | None) -> bool:
        if not self._loop.on or (holder is not None and holder.rank >= self.rank):
            return False
        if self._thread not in (0, get_ident()):
            return False
        self._thread = get_ident()
        return True

    def _publish(self, *, replaces: bool = False) -> bool:
        try:
            if replaces:  # the phases of the replaced source are over
                rest = layout.PHASE_OTHER if self._loop.begun else layout.PHASE_INIT
                self._page.change_phase(rest)
            self._arbiter.publish()
        except Exception as exc:  # noqa: BLE001
            self.disable(exc)
            return False
        return True

    def disable(self, why: BaseException) -> None:
        """Stop reporting, from all sources; warns once."""
        if self._loop.on:
            warn(f"lightkeeper stopped reporting: {why!r}")
        self._arbiter.silence()


class Reporter(ReportSource):
    """The training loop's own source, and the API on which training code may rely."""

    def __init__(self, page: PageWriter, find_url: Callable[[], str | None] = lambda: None) -> None:
        self.page = page
        self.loop = Loop(page)
        super().__init__(SourceArbiter(self.loop), wire.SOURCE_REPORTER)
        self._arbiter.sources[self.name] = self
        self._find_url = find_url
        self._url: str | None = None
        self._fingerprinter = Fingerprinter(self.loop)

    @property
    def url(self) -> str | None:
        """The sidecar's URL once it listens."""
        if self._url is None and self.loop.on:
            self._url = self._find_url()
        return self._url

    def from_source(self, name: str) -> ReportSource:
        """For a hook or callback that knows the loop from outside: it is heard until a source of
        higher rank reports (reporter, lightning or torchtitan, torchft, optimizer).
        """
        return self._arbiter.source(name)

    def finite(self, *, loss: Any = None, grad_norm: Any = None, where: str = LOCAL) -> bool:
        """True if these are finite; False is a vote against the commit of this step.

        Ask before the gradient goes to others, so that the monitor sees which rank was first. It
        reads numbers and tensors on the CPU; a tensor on an accelerator counts as finite, unread.

        Args:
            loss: of this rank's own batch.
            grad_norm: norm (or any sum) of the gradient.
            where: `local`, before any exchange; `group`, after one within the replica group;
                `exchanged`, after the one across groups.
        """
        try:
            return self.loop.soundness.look(loss, grad_norm, where)
        except Exception as exc:  # noqa: BLE001  the vote is not ours to break
            self.disable(exc)
            return none_is_spoilt(loss, grad_norm)

    def fingerprint(
        self,
        parameters: Any,
        step: int,
        *,
        every: int | None = None,
        shard: int | None = None,
        replicas_equal: bool = True,
    ) -> None:
        """After a commit: publish a hash of the weights, so that unequal replicas are found.

        Call it with every committed step; it acts on every Nth (`every`, else
        LIGHTKEEPER_FINGERPRINT_EVERY, else 10; 0: never), the same ones in all groups.

        Args:
            parameters: a module, its parameters, or a mapping of tensors; local shards count.
            step: the job's committed steps, the same number in all groups.
            every: steps between two fingerprints; the same in all groups.
            shard: which part of the weights this rank holds (default: its group rank). Ranks
                that hold the same are compared, within a group too.
            replicas_equal: False while replicas differ by design (between two syncs of LocalSGD
                or DiLoCo): nothing is taken.
        """
        if replicas_equal:
            shard = self.page.group_rank if shard is None else shard
            self._fingerprinter.take(parameters, step, every, shard)

    def observe_manager(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager from now on."""
        self.loop.observe(manager)

    def close(self) -> None:
        """Training is over: what follows is an ending, not a failure."""
        if self.loop.on:
            self.page.close()

    def detach(self) -> None:
        """Called in a forked child, which is not the rank: its reports go nowhere."""
        self._arbiter.silence()
        self._url = None
        self.page.detach()
