"""Compilations by torch.compile, declared as the tag `compile`.

A recompilation in the middle of a run takes a rank tens of seconds while all others wait for it,
and looks like a hang. torch calls back when dynamo begins to trace a frame, when a backward pass is
compiled late and when CUDA graphs are recorded, and again at the end. It costs nothing otherwise.
`torch._dynamo.reset()` forgets those who listen, and so us.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from worker_server.complaint import complain
from worker_server.torch_hook import when_imported

TAG = "compile"


class Tagging(Protocol):
    """What a reporter gives, as far as it is used here."""

    def tag(self, name: str) -> AbstractContextManager[Any]:
        """Says what the rank does over and above its phase."""


def declare_compilations(reporter: Tagging) -> None:
    """Tag every compilation of this process from now on; imports dynamo for nobody."""
    when_imported("torch._dynamo.callback", lambda: _listen(reporter.tag(TAG)))


def _listen(tag: AbstractContextManager[Any]) -> None:
    """Never raises: it runs inside an import, and other torches have other things there."""
    try:
        from torch._dynamo.callback import callback_handler  # noqa: PLC0415  it is there

        # older torches call back without arguments
        callback_handler.register_start_callback(lambda *_: tag.__enter__())
        callback_handler.register_end_callback(lambda *_: _close(tag))
    except Exception as exc:  # noqa: BLE001
        complain(f"lightkeeper does not see what torch.compile does: {exc!r}", stacklevel=2)


def _close(tag: AbstractContextManager[Any]) -> None:
    tag.__exit__(None, None, None)
