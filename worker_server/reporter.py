"""What a training loop says of itself, in a microsecond or two a call.

Phases nest: an inner phase pauses the outer one, so seconds are never counted twice. Before the
first step the rank is in `init`; inside a step and outside of every phase it is in `other`. Whose
words count is decided in `voice`, what they add up to in `loop`.

Nothing here raises into training. The first internal failure warns once and switches the
reporter off; a phase is then a context manager that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from worker_server import wire
from worker_server.figures import none_is_spoilt
from worker_server.fingerprint import Fingerprinter
from worker_server.loop import Loop
from worker_server.page.writer import PageWriter
from worker_server.soundness import LOCAL, Soundness
from worker_server.voice import NO_CONTEXT, Floor, Voice


class Source(Protocol):
    """What anybody may say of the training loop."""

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends; 16 names, then `other`.

        Standard: data, forward, backward, communication (where it waits for others, and nowhere
        else), optimizer, checkpoint, evaluation, compile.
        """

    def tag(self, name: str) -> AbstractContextManager[Any]:
        """Declare what the rank does over and above its phase, until the `with` block ends."""

    def count(self, name: str, amount: float = 1) -> None:
        """Count a thing of your own; at most 16 counters, which only grow."""

    def begin_step(self, step: int) -> None:
        """A step begins, perhaps again."""

    def end_step(
        self, step: int, *, committed: bool = True, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended; `tokens` count when it was committed."""

    def step(
        self, step: int, loss: float | None = None, tokens: int = 0, committed: bool = True
    ) -> None:
        """A step ended, for loops that say no more: the next begins where this one ended."""

    def note_loss(self, loss: Any) -> None:
        """The latest loss, a mean over ranks, from a hook that is told it apart from the step."""


class StepReporter(Source, Protocol):
    """What training code may rely on, whether or not the attach worked."""

    @property
    def url(self) -> str | None:
        """The sidecar's URL once it listens."""

    def from_source(self, name: str) -> Source:
        """For a hook or callback that knows the loop from outside: it is heard until a source of
        higher rank speaks (reporter, lightning or torchtitan, torchft, optimizer).
        """

    def finite(self, *, loss: Any = None, grad_norm: Any = None, where: str = LOCAL) -> bool:
        """Whether these are finite; False is a vote against the commit of this step.

        Ask before the gradient goes to others, so that the monitor sees who was first. It reads
        numbers and tensors on the CPU; a tensor on an accelerator counts as finite, unread.

        Args:
            loss: of this rank's own batch.
            grad_norm: norm (or any sum) of the gradient.
            where: `local`, before any exchange; `group`, after one within the replica group;
                `exchanged`, after the one across groups.
        """

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

        Call it with every committed step; it acts on every so many of them (`every`, else
        LIGHTKEEPER_FINGERPRINT_EVERY, else 10; 0: never), on all groups on the same ones.

        Args:
            parameters: a module, its parameters, or a mapping of tensors; local shards count.
            step: the job's committed steps, the same number in all groups.
            every: steps between two fingerprints; the same in all groups.
            shard: which part of the weights this rank holds (default: its group rank). Ranks
                that hold the same are compared, within a group too.
            replicas_equal: False while replicas differ by design (between two syncs of LocalSGD
                or DiLoCo): nothing is taken.
        """

    def observe_manager(self, manager: object) -> None:
        """Read quorum and health from this torchft Manager from now on."""

    def close(self) -> None:
        """Training is over: what follows is an ending, not a failure."""


class NullReporter:
    """Does nothing: the attach failed or is switched off."""

    url: str | None = None

    def phase(self, name: str) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Nothing."""
        return NO_CONTEXT

    def tag(self, name: str) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Nothing."""
        return NO_CONTEXT

    def count(self, name: str, amount: float = 1) -> None:
        """Nothing."""

    def begin_step(self, step: int) -> None:
        """Nothing."""

    def end_step(
        self, step: int, *, committed: bool = True, loss: float | None = None, tokens: int = 0
    ) -> None:
        """Nothing."""

    def step(
        self, step: int, loss: float | None = None, tokens: int = 0, committed: bool = True
    ) -> None:
        """Nothing."""

    def note_loss(self, loss: Any) -> None:
        """Nothing."""

    def from_source(self, name: str) -> Source:  # noqa: ARG002
        """Nothing, from anybody."""
        return self

    def finite(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        where: str = LOCAL,  # noqa: ARG002
    ) -> bool:
        """The same answer: a loop that votes by it must not vote otherwise without us."""
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
        """Nothing."""

    def observe_manager(self, manager: object) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Reporter(Voice):
    """The training loop's own voice, and what goes with it."""

    def __init__(self, page: PageWriter, find_url: Callable[[], str | None] = lambda: None) -> None:
        self.page = page
        self.loop = Loop(page)
        floor = Floor(self.loop)
        super().__init__(floor, wire.SOURCE_REPORTER)
        floor.voices[self.name] = self
        self._find_url = find_url
        self._url: str | None = None
        self._soundness = Soundness(self.loop)
        self._fingerprinter = Fingerprinter(self.loop)

    @property
    def url(self) -> str | None:
        """The sidecar's URL once it listens."""
        if self._url is None and self.loop.on:
            self._url = self._find_url()
        return self._url

    def from_source(self, name: str) -> Source:
        """A voice for somebody who knows the loop from outside."""
        return self._floor.voice(name)

    def finite(self, *, loss: Any = None, grad_norm: Any = None, where: str = LOCAL) -> bool:
        """Whether these are finite, remembering the first that is not."""
        try:
            return self._soundness.look(loss, grad_norm, where)
        except Exception as exc:  # noqa: BLE001  the vote is not ours to break
            self._disable(exc)
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
        """Publish a hash of the weights, where one is due."""
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

    def disable(self, why: BaseException) -> None:
        """Report nothing any more; says so once."""
        self._disable(why)

    def detach(self) -> None:
        """Called in a forked child, which is not the rank: whatever it reports goes nowhere."""
        self._floor.silence()
        self._url = None
        self.page.detach()
