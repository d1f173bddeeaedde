"""The one way to run in the background: a thread that does the same work again and again.

The tick waits for nobody. Who asks a scheduler, a gate or a chat, or writes evidence, does it in a
worker of its own, so that one that hangs delays no other. Work that raises is a bug: it is logged
once, it is shown as a trouble for as long as it lasts, and the work is tried again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class BackgroundWorker:
    """`work` says in how many seconds it has to be called again; None: when somebody wakes it.

    `start` it once, `close` it when done. `wake` and `close` may be called from any thread.
    """

    def __init__(
        self, name: str, work: Callable[[], float | None], *, after_crash_s: float
    ) -> None:
        self.crash: str | None = None
        """`crashed: ...` if the last call raised."""
        self._name = name
        self._work = work
        self._after_crash_s = after_crash_s
        self._awake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def closing(self) -> bool:
        """Whether work should come to an end."""
        return self._closing.is_set()

    def start(self) -> None:
        """Call `work` for the first time."""
        self._thread.start()

    def wake(self) -> None:
        """Call `work` now, or once more right after the call that is under way."""
        self._awake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop; what is under way gets `timeout_s`."""
        self._closing.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._awake.clear()  # before `closing` is read: `close` sets it first
            if self.closing:
                return
            try:
                wait_s = self._work()
                self.crash = None
            except Exception as exc:
                if self.crash is None:
                    log.exception("%s crashed", self._name)
                self.crash = f"crashed: {type(exc).__name__}: {exc}"
                wait_s = self._after_crash_s
            self._awake.wait(wait_s)
