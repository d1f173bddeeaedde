"""Waiting for a condition with a deadline; the only way in which tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")
SELDOM: Final = 20
"""A condition is asked again after so many times the time that its answer took, but for 0.25 s at
most: a process that is asked over HTTP 50 times a second does little else, and so does who asks."""
AT_LEAST_S: Final = 30.0
"""A deadline is there to fail by, and is no claim: on a machine that is slow for a moment none may
be met. How soon something happens is asserted by what must not have happened before."""


def wait_for(condition: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """The first truthy answer of `condition`; fails after `within_s` seconds, saying `what`."""
    within_s = max(within_s, AT_LEAST_S)
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    while True:
        asked = time.monotonic()
        answer = condition()
        if answer:
            return answer
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(f"{what}: not within {within_s} s (last answer: {answer!r})")
        pause_s = min(2 * pause_s, max(0.02, min(SELDOM * (now - asked), 0.25)))
        time.sleep(pause_s)
