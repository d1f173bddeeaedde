"""What the trainer tells the worker server: the part of its reporter that is used here."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Reporter(Protocol):
    """`worker_server.attach()` answers one of these; a test brings its own."""

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Everything inside happens in phase `name`."""

    def begin_step(self, step: int) -> None:
        """A step begins, for the first time or again."""

    def end_step(
        self, step: int, *, committed: bool, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step is over; `tokens` is what this rank read in it."""

    def observe_manager(self, manager: Any) -> None:
        """From now on, also report TorchFT's quorum, participants and healing."""
