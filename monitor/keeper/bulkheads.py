"""A crash of one part of the loop ends where that part ends: counted, logged when new, shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import Counter

log = logging.getLogger(__package__)


class Bulkheads:
    """Which parts of the loop crash, and why.

    Args:
        failures: counts them, by part.
    """

    def __init__(self, failures: Counter) -> None:
        self._failures = failures
        self._broken: dict[str, str] = {}

    @property
    def broken(self) -> Mapping[str, str]:
        """Parts that crashed when they were last run, and why."""
        return dict(self._broken)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Runs one part of the tick; a crash of it ends here."""
        try:
            yield
        except Exception as exc:
            self._failures.labels(name).inc()
            problem = f"{type(exc).__name__}: {exc}"
            if self._broken.get(name) != problem:
                log.exception("%s failed", name)
            self._broken[name] = problem
        else:
            if self._broken.pop(name, None) is not None:
                log.info("%s works again", name)
