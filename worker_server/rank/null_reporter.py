"""What training talks to where we are off: it imports nothing that could fail."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from lightkeeper.worker_server.rank.figures import none_is_spoilt

_NO_CONTEXT: Final[AbstractContextManager[Any]] = nullcontext()


def _nothing(*_: Any, **__: Any) -> None:
    """Ignore a report: the reporter is off."""


class NullReporter:
    """A `Reporter` that does nothing: the attach failed or is switched off."""

    url = None
    count = begin_step = end_step = step = count_step = step_locally = note_loss = _nothing
    fingerprint = observe_manager = close = _nothing

    def phase(self, name: str) -> AbstractContextManager[Any]:  # noqa: ARG002
        return _NO_CONTEXT

    tag = phase

    def from_source(self, name: str) -> NullReporter:  # noqa: ARG002
        return self

    def finite(self, *, loss: Any = None, grad_norm: Any = None, where: str = "local") -> bool:  # noqa: ARG002
        """As the reporter's: a loop must not vote differently without us."""
        return none_is_spoilt(loss, grad_norm)
