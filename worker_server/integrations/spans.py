"""Phases whose begin and end come as two separate events, and may come unbalanced."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Source(Protocol):
    """What `reporter.from_source(...)` gives, as far as it is used here."""

    def phase(self, name: str) -> AbstractContextManager[Any]:
        """Name what the rank does until the `with` block ends."""

    def begin_step(self, step: int) -> None:
        """A step begins."""

    def end_step(
        self, step: int, *, committed: bool, loss: float | None = None, tokens: int = 0
    ) -> None:
        """The step ended."""


class Spans:
    """Open phases, innermost last. Ending one ends what was left open inside of it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: list[tuple[str, AbstractContextManager[Any]]] = []

    def begin(self, name: str) -> None:
        """Enter a phase inside of the running one."""
        phase = self._source.phase(name)
        phase.__enter__()
        self._open.append((name, phase))

    def end(self, *names: str) -> None:
        """Leave the innermost of these that is open; nothing when none is."""
        wanted = [at for at, (name, _) in enumerate(self._open) if name in names]
        while wanted and len(self._open) > wanted[-1]:
            self._open.pop()[1].__exit__(None, None, None)
