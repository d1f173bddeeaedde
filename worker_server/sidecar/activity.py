"""What the kernel counts of a rank: cores used, cores waited for, bytes moved. Over some seconds.

Waiting for a core is the sign of a cgroup's limit, or of others on its host. Who uses cores or
moves bytes is at work, wherever its main thread stands, and so is who waits for a child that does:
a loader's worker, a program that it runs.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

_SPAN_S: Final = 5.0
_EVERY_S: Final = 1.0
_THREADS: Final = 256
"""Of these the oldest: 8 us each."""
_CHILDREN: Final = 64


class Counts(NamedTuple):
    """What a process has used since it began."""

    threads: dict[str, tuple[float, float]]
    """Seconds on a core, and ready to run without one (proc(5), schedstat); of its children, the
    first thread of each, seconds on a core alone."""
    bytes: int | None
    """Read and written by system calls, pipes and files alike."""


class Rates(NamedTuple):
    """What it uses a second; None: not known (yet), or the kernel does not tell."""

    cores: float | None = None
    starved: float | None = None
    """Share of the time, of the thread that waited for a core most."""
    bytes_s: float | None = None


class Activity:
    """Compares what is counted now with what was 5 s ago, or longer where nobody asks."""

    def __init__(
        self, pid: int, clock: Callable[[], float], count: Callable[[int], Counts] | None = None
    ) -> None:
        self._pid = pid
        self._clock = clock
        self._count = count or counts
        self._taken: deque[tuple[float, Counts]] = deque()

    def rates(self) -> Rates:
        """Of the last seconds."""
        now_s = self._clock()
        if not self._taken or now_s - self._taken[-1][0] >= _EVERY_S:
            self._taken.append((now_s, self._count(self._pid)))
        while len(self._taken) > 1 and now_s - self._taken[1][0] >= _SPAN_S:
            self._taken.popleft()
        (before_s, before), (until_s, now) = self._taken[0], self._taken[-1]
        span_s = until_s - before_s
        if span_s < _SPAN_S or not now.threads:
            return Rates()
        used = [
            (ran_s - before.threads[task][0], waited_s - before.threads[task][1])
            for task, (ran_s, waited_s) in now.threads.items()
            if task in before.threads
        ]
        waits = [waited_s / span_s for _, waited_s in used]
        told = before.bytes is not None and now.bytes is not None
        return Rates(
            cores=round(max(0.0, sum(ran_s for ran_s, _ in used) / span_s), 3),
            starved=round(min(1.0, max(0.0, *waits)), 3) if waits else 0.0,
            bytes_s=round(max(0.0, ((now.bytes or 0) - (before.bytes or 0)) / span_s), 0)
            if told
            else None,
        )


def counts(pid: int) -> Counts:
    """As far as they can be read."""
    threads: dict[str, tuple[float, float]] = {}
    children: list[str] = []
    with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/task") as tasks:
        for task in islice(tasks, _THREADS):
            with contextlib.suppress(OSError, ValueError):  # it has gone, or this kernel counts not
                threads[task.name] = _seconds(task.path)
    with contextlib.suppress(OSError):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()[:_CHILDREN]
    for child in children:
        with contextlib.suppress(OSError, ValueError):
            threads[child] = _seconds(f"/proc/{child}")[0], 0.0
    moved = [_bytes(one) for one in (str(pid), *children)]
    told = [each for each in moved if each is not None]
    return Counts(threads, sum(told) if told else None)


def _seconds(folder: str) -> tuple[float, float]:
    ran, waited, _ = Path(folder, "schedstat").read_text("ascii").split()
    return int(ran) / 1e9, int(waited) / 1e9


def _bytes(pid: str) -> int | None:
    try:
        words = Path(f"/proc/{pid}/io").read_text("ascii").split()
        return int(words[words.index("rchar:") + 1]) + int(words[words.index("wchar:") + 1])
    except (OSError, ValueError, IndexError):
        return None
