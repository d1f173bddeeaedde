"""How long a rank is ready to run and gets no core: its cgroup's limit, or others on its host."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Final

_SPAN_S: Final = 5.0
_EVERY_S: Final = 1.0
_THREADS: Final = 256
"""Of these the oldest: 8 us each."""


class Starvation:
    """Compares what the kernel counts now with what it counted a while ago."""

    def __init__(self, pid: int, clock: Callable[[], float]) -> None:
        self._tasks = f"/proc/{pid}/task"
        self._clock = clock
        self._taken: deque[tuple[float, dict[str, float]]] = deque()

    def share(self) -> float | None:
        """Of the last 5 s or more, of the thread that waited most; None: not known (yet)."""
        now_s = self._clock()
        if not self._taken or now_s - self._taken[-1][0] >= _EVERY_S:
            self._taken.append((now_s, self._waited_s()))
        while len(self._taken) > 1 and now_s - self._taken[1][0] >= _SPAN_S:
            self._taken.popleft()
        (before_s, before), (until_s, waited_s) = self._taken[0], self._taken[-1]
        if until_s - before_s < _SPAN_S or not waited_s:
            return None
        longest_s = max((each - before.get(task, each) for task, each in waited_s.items()))
        return min(1.0, max(0.0, longest_s / (until_s - before_s)))

    def _waited_s(self) -> dict[str, float]:
        """Thread -> seconds for which it was ready to run and did not (proc(5), schedstat)."""
        found: dict[str, float] = {}
        try:
            with os.scandir(self._tasks) as tasks:
                for task in islice(tasks, _THREADS):
                    with open(f"{task.path}/schedstat", encoding="ascii") as file:
                        found[task.name] = int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return found  # a thread has gone meanwhile, or this kernel does not count
        return found
