"""The audit log on disk: JSON lines, appended and fsynced by its own thread.

Theory of operation. `put` never waits: it queues lines in memory. The thread writes all queued
lines, then calls `fsync` once. `flush` waits for that, but not forever; it is called before an
eviction is carried out. If the disk is full or gone, `trouble` says so and lines stay queued, at
most `WAITING` of them. Once the disk accepts writes again, the log records how many lines were
lost. If a write stopped in the middle of a line, the next one begins with a newline, so that only
one line is damaged. A full file is renamed to `.1`, the old `.1` to `.2`, and so on. If somebody
else renamed or removed the file, it is created again.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.model.wording import rfc3339

OURSELVES: Final = "lightkeeper"
Line = dict[str, Any]


def line(
    at_s: float,
    event: str,
    by: str,
    what: str,
    why: str,
    *,
    incident: str | None = None,
    **more: Any,
) -> Line:
    head = {"at": _utc(at_s), "at_s": round(at_s, 3), "event": event, "by": by, "what": what}
    return {**head, "why": why, "incident": incident, **more}


def _utc(at_s: float) -> str | None:
    try:
        return rfc3339(at_s)
    except (OverflowError, ValueError, OSError):
        return None


WAITING: Final = 10_000
"""Most lines queued while the disk accepts none: about 4 MB."""
KEPT: Final = 10
"""Number of older files kept beside the current one."""
_AGAIN_S: Final = 5.0
"""Pause between two attempts to write to a failing disk."""
_CLOSE_S: Final = 2.0


class LogFile:
    """One audit log. Safe to use from any thread; close it when done.

    Raises:
        OSError: the file cannot be opened at the start, or is none.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 64_000_000,
        again_s: float = _AGAIN_S,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        self.path = path
        self.trouble: str | None = None
        """Why the log cannot be written now; None: it can."""
        self.lost = 0
        """Number of lines lost since the start."""
        self._max_bytes = max_bytes
        self._again_s = again_s
        self._write = write
        self._changed = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._untold = 0
        self._asked = 0
        self._done = 0
        self._torn = False
        self._fd = self._open()
        self._worker = BackgroundWorker(
            "audit log", self._write_waiting, after_crash_s=again_s, to_the_end=True
        )
        self._worker.start()

    @property
    def waiting(self) -> int:
        with self._changed:
            return len(self._queue)

    def put(self, *lines: Line) -> None:
        """Queue lines for writing; never waits."""
        if not lines:
            return
        with self._changed:
            for entry in lines:
                self._queue.append(_encoded(entry))
                if len(self._queue) > WAITING:
                    self._queue.popleft()
                    self.lost += 1
                    self._untold += 1
            self._asked += 1
        if self.trouble is None:
            self._worker.wake()

    def flush(self, wait_s: float = 1.0) -> bool:
        """Wait until all lines put so far are on disk; False: the disk fails, or takes too long."""
        with self._changed:
            ticket = self._asked
            self._changed.wait_for(lambda: self._done >= ticket or bool(self.trouble), wait_s)
            return self._done >= ticket

    def close(self) -> None:
        """Write the queued lines and close the file."""
        self._worker.close(_CLOSE_S)
        if not self._worker.alive:
            os.close(self._fd)

    # -- the thread ---------------------------------------------------------------------------

    def _write_waiting(self) -> float | None:
        """Write all queued lines; returns the seconds until the next call, None: until `wake`."""
        with self._changed:
            batch, asked, untold = list(self._queue), self._asked, self._untold
        if not batch:
            return None
        written, problem = self._try(batch, untold)
        with self._changed:
            self.trouble = problem
            self._take_out(batch[:written])
            if problem is None:
                self._untold -= untold
                self._done = asked
            self._changed.notify_all()
            more_s = 0.0 if self._queue else None  # put during this write
        return more_s if problem is None else self._again_s

    def _take_out(self, written: list[bytes]) -> None:
        for data in written:
            if self._queue and self._queue[0] is data:
                self._queue.popleft()
            else:  # dropped from a full queue during the write that stored it
                self.lost -= 1
                self._untold -= 1

    def _try(self, batch: list[bytes], untold: int) -> tuple[int, str | None]:
        """Write a batch; returns how many lines were written, and why not all of them."""
        written = 0
        try:
            self._follow(sum(len(data) for data in batch))
            if untold:
                what = f"{untold} lines were lost"
                self._append(_encoded(line(time.time(), "lost", OURSELVES, what, "no disk")))
            for data in batch:
                self._append(data)
                written += 1
            os.fsync(self._fd)
        except OSError as exc:
            return written, f"the audit log {self.path} takes no lines ({exc.strerror or exc})"
        return written, None

    def _append(self, data: bytes) -> None:
        if self._torn:
            self._torn = self._write(self._fd, b"\n") != 1
        written = 0
        try:
            while written < len(data):
                written += self._write(self._fd, data[written:])
        finally:
            self._torn = 0 < written < len(data)

    def _follow(self, more: int) -> None:
        """Reopen the file if it was renamed or removed; begin a new one if it is full."""
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            named = None
        same = named and os.path.samestat(named, os.fstat(self._fd))
        full = bool(named and named.st_size and named.st_size + more > self._max_bytes)
        if same and not full:
            return
        if full:
            self._rotate()
        fd = self._open()
        os.close(self._fd)
        self._fd = fd

    def _rotate(self) -> None:
        for number in range(KEPT, 0, -1):
            older = self._numbered(number)
            newer = self.path if number == 1 else self._numbered(number - 1)
            if newer.exists():
                newer.replace(older)

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _open(self) -> int:
        """Open the file; a killed monitor may have left half a line at its end (`_torn`)."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and not self.path.is_file():  # a pipe would block
            raise OSError(errno.EINVAL, "not a file")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        size = os.fstat(fd).st_size
        with self.path.open("rb") as file:
            file.seek(max(0, size - 1))
            self._torn = file.read(1) not in (b"\n", b"")
        return fd


def _encoded(entry: Line) -> bytes:
    return json.dumps(entry, separators=(",", ":"), default=str).encode() + b"\n"
