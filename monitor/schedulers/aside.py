"""Work in a thread of its own that is given up at its deadline, and never keeps a process alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final, TypeVar

from monitor.schedulers.deadline import TooLate

T = TypeVar("T")

_MOST: Final = 8
"""Threads that may be under way or given up: a server that drips must not fill the process."""
_SLACK_S: Final = 0.2
_places = threading.BoundedSemaphore(_MOST)


class Busy(Exception):  # noqa: N818 - an answer, not an accident
    """Too many earlier requests have not ended."""


def aside(work: Callable[[], T], timeout_s: float) -> T:
    """What `work` returns or raises.

    Raises:
        TooLate: it has not ended in time; its thread goes on, and ends with its own timeouts.
        Busy: too many of those are still there.
    """
    if not _places.acquire(blocking=False):
        raise Busy(f"{_MOST} earlier requests have not ended")
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as exc:  # noqa: BLE001 - it is raised where it is waited for
            answer.set_exception(exc)
        finally:
            _places.release()

    threading.Thread(target=run, name="scheduler request", daemon=True).start()
    try:
        return answer.result(timeout_s + _SLACK_S)
    except FutureTimeoutError:
        if answer.done():  # `work` raised one of its own
            raise
        raise TooLate(f"not within {timeout_s:g} s") from None
