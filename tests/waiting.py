"""Waiting for a condition with a deadline; the only way in which tests wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T | None], *, within_s: float, what: str) -> T:
    """The first truthy answer of `condition`; fails after `within_s` seconds, saying `what`."""
    deadline = time.monotonic() + within_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not within {within_s} s (last answer: {answer!r})")
        time.sleep(0.02)
