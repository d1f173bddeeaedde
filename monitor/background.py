"""The one way to run in the background: a thread that does the same work again and again, or once.

The tick waits for nobody. Who asks a scheduler, a gate or a chat, or writes evidence, does it in a
worker of its own, so that one that hangs delays no other; the store, the journal and the audit log
write in one, and the lease is renewed in one. Work that raises is a bug: it is logged once, it is
shown as a trouble for as long as it lasts, and the work is tried again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """How long to wait after so many failures in a row: twice as long each time."""
    return min(first_s * 2.0 ** min(failures - 1, 20), longest_s)


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """What `work` returns or raises, once, from a thread that keeps no process alive."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as exc:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(exc)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


class BackgroundWorker:
    """`work` is called every so many seconds, or as often as it says; else when somebody wakes it.

    `start` it once, `close` it when done. `wake` and `close` may be called from any thread.
    `to_the_end`: what waits when it is closed is still worked on, by one more call.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        *,
        every_s: float | None = None,
        after_crash_s: float | None = None,
        to_the_end: bool = False,
    ) -> None:
        self.crash: str | None = None
        """`crashed: ...` if the last call raised."""
        self._name = name
        self._work = work
        self._every_s = every_s
        self._after_crash_s = every_s if after_crash_s is None else after_crash_s
        self._to_the_end = to_the_end
        self._after_s = 0.0
        self._awake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    @property
    def alive(self) -> bool:
        """Whether its thread runs, also after `close` has given it up."""
        return self._thread.is_alive()

    def start(self, after_s: float = 0.0) -> None:
        self._after_s = after_s
        self._thread.start()

    def pause(self, seconds: float) -> None:
        """Wait inside of `work`, but not beyond `close`."""
        self._closing.wait(seconds)

    def wake(self) -> None:
        """Call `work` now, or once more right after the call that is under way."""
        self._awake.set()

    def close(self, timeout_s: float = 1.0) -> None:
        self._closing.set()
        self._awake.set()
        if self.alive:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        self._awake.wait(self._after_s)
        while True:
            self._awake.clear()  # before `closing` is read: `close` sets it first
            closing = self.closing
            if closing and not self._to_the_end:
                return
            try:
                wait_s = self._work()
                wait_s = self._every_s if wait_s is None else wait_s
                self.crash = None
            except Exception as exc:
                if self.crash is None:
                    log.exception("%s crashed", self._name)
                self.crash = f"crashed: {type(exc).__name__}: {exc}"
                wait_s = self._after_crash_s
            if closing:
                return
            self._awake.wait(wait_s)


class BackgroundQueue(Generic[T]):
    """A worker with jobs: `work` is called with one after the other. `most` may wait; 0: any."""

    def __init__(self, name: str, work: Callable[[T], None], most: int = 0) -> None:
        self._work = work
        self._jobs: queue.Queue[T] = queue.Queue(most)
        self.worker = BackgroundWorker(name, self._run, after_crash_s=0.0)
        self.worker.start()

    def put(self, job: T) -> bool:
        """False when there is too much to do already, or nothing is begun any more."""
        if self.worker.closing:
            return False
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        self.worker.wake()
        return True

    def close(self, timeout_s: float) -> None:
        """What waits in the queue is not begun any more."""
        self.worker.close(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(queue.Empty):
            while not self.worker.closing:
                self._work(self._jobs.get_nowait())
