"""Background work: a thread that does the same work repeatedly, or once.

The tick waits for none of it. Requests to schedulers, the gate or a chat, and evidence writes, each
have their own worker, so one that hangs delays no other. So do the store, the journal and the
lease renewal. Work that raises is a bug: it is logged once, shown as a trouble while it
lasts, and retried.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

TROUBLE_AFTER: Final = 2
"""Failures in a row that are shown as a trouble; a single one is normal."""


def backoff_s(failures: int, first_s: float, longest_s: float) -> float:
    """How long to wait after this many failures in a row: twice as long each time."""
    return min(first_s * 2.0 ** min(failures - 1, 20), longest_s)


def in_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Run `work` once in a daemon thread; the future has what it returns or raises."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as exc:  # noqa: BLE001 - raised again by `result()`
            answer.set_exception(exc)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


class BackgroundWorker:
    """Calls `work` every `every_s` seconds, or after the seconds that it returns, or on `wake`.

    `start` it once, `close` it when done. `wake` and `close` may be called from any thread.
    `to_the_end`: on `close`, `work` is called once more, for what still waits.
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
        """Whether its thread runs, even after `close` timed out."""
        return self._thread.is_alive()

    def start(self, after_s: float = 0.0) -> None:
        self._after_s = after_s
        self._thread.start()

    def pause(self, seconds: float) -> None:
        """Sleep inside `work`; `close` ends the sleep."""
        self._closing.wait(seconds)

    def wake(self) -> None:
        """Call `work` now, or again right after the current call."""
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
    """A worker that calls `work` with one job after another. `most` jobs may wait; 0: no limit."""

    def __init__(self, name: str, work: Callable[[T], None], most: int = 0) -> None:
        self._work = work
        self._jobs: queue.Queue[T] = queue.Queue(most)
        self.worker = BackgroundWorker(name, self._run, after_crash_s=0.0)
        self.worker.start()

    def put(self, job: T) -> bool:
        """False when the queue is full or closing."""
        if self.worker.closing:
            return False
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            return False
        self.worker.wake()
        return True

    def close(self, timeout_s: float) -> None:
        """Drop the jobs that still wait."""
        self.worker.close(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(queue.Empty):
            while not self.worker.closing:
                self._work(self._jobs.get_nowait())
