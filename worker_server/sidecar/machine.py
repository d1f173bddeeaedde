"""What the machine says, as far as the sidecar goes: it keeps the witnesses' process and reads its
file. It imports no witness, and believes nothing of the file that it has not checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError
from msgspec.json import decode

from lightkeeper.worker_server import wire

FILE: Final = "machine.json"
MAX_BYTES: Final = 64 * 1024
_STALE_S: Final = 30.0
_EARLY_S: Final = 1.0
"""Clocks of two processes do not differ by more; a file of an earlier boot does."""
_OFF: Final = "the witnesses are off: LIGHTKEEPER_MACHINE=0"
_ORDER: Final = {weight: number for number, weight in enumerate((
    wire.Weight.BROKEN, wire.Weight.ENDED, wire.Weight.LEAVING, wire.Weight.SLOW,
    wire.Weight.CONTEXT,
))}  # fmt: skip
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


def weightiest(rows: Iterable[wire.Testimony]) -> list[wire.Testimony]:
    """The weightiest first, then the latest."""
    return sorted(rows, key=lambda row: (_ORDER[row.weight], row.age_s))


class Machine:
    """Reads what the host's witnesses wrote; safe from any thread."""

    def __init__(self, folder: Path, host: wire.Host, *, on: bool = True) -> None:
        self._file = folder / FILE
        self._nothing = wire.MachineReport(
            host, 0.0, error="the witnesses have not been heard yet" if on else _OFF
        )
        self._on = on
        self._read: tuple[tuple[int, ...], float, wire.MachineReport] | None = None
        """Which file, when it was written (monotonic seconds), what it says."""

    def report(self) -> wire.MachineReport:
        """The answer of `GET /v1/machine`."""
        written_s, report = self._newest()
        age_s = time.monotonic() - written_s
        if report.error is not None:
            return report
        if not -_EARLY_S < age_s < _STALE_S:
            why = f"the witnesses have not been heard for {age_s:.0f} s"
            return replace(self._nothing, error=why if age_s > 0 else self._nothing.error)
        age_s = max(0.0, age_s)
        rows = tuple(weightiest(row.later(age_s) for row in report.testimonies))
        states = tuple(replace(each, for_s=each.for_s + age_s) for each in report.witnesses)
        return replace(report, host=self._nothing.host, age_s=age_s,
                       witnesses=states, testimonies=rows)  # fmt: skip

    def of_rank(self, pid: int) -> tuple[wire.Testimony, ...]:
        """What concerns the rank with this pid, the weightiest first; nothing that decides
        nothing.
        """
        said = (
            row for row in self.report().testimonies
            if row.weight is not wire.Weight.CONTEXT and (not row.pids or pid in row.pids)
        )  # fmt: skip
        return tuple(said)[: wire.TESTIMONIES_MOST]

    def oom_kill(self, pid: int, died_s_ago: float) -> wire.Testimony | None:
        """The OOM kill of the rank with this pid, or of a child at the time of its death."""
        kills = [
            row for row in self.of_rank(pid)
            if row.code == "oom-kill" and row.pids and abs(row.age_s - died_s_ago) < _STALE_S
        ]  # fmt: skip
        return min(kills, key=lambda row: row.pids[0] != pid, default=None)

    def _newest(self) -> tuple[float, wire.MachineReport]:
        if not self._on:
            return 0.0, self._nothing
        try:
            mark = _mark(os.lstat(self._file))
            if self._read is None or self._read[0] != mark:
                self._read = mark, *_content(self._file)
        except FileNotFoundError:
            return 0.0, self._nothing
        except (OSError, DecodeError, ValueError, RecursionError, KeyError, TypeError) as exc:
            why = f"what the witnesses wrote cannot be read: {exc}"[:200]
            return 0.0, replace(self._nothing, error=why)
        return self._read[1:]


def _mark(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _content(path: Path) -> tuple[float, wire.MachineReport]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no file")
        blob = file.read(MAX_BYTES + 1)
    if len(blob) > MAX_BYTES:
        raise ValueError("it is too large")
    content: Any = decode(blob)
    return float(content["written_s"]), wire.parse_machine(content["report"])


# -- the witnesses' process -----------------------------------------------------------------------
# One for all ranks whose pages lie in a run directory: the sidecar that locks the directory starts
# it. It ends when that sidecar does, which it sees by its standard input; another takes over.

_FIRST_S: Final = 3.0
"""A rank that starts has more to do."""
_LOOK_S: Final = 2.0
_SILENT_S: Final = 60.0
"""Without a new file for so long, the process is ended."""
_BACK_OFF_S: Final = (5.0, 600.0)
_STEADY_S: Final = 900.0
"""One that lived so long is started again at once."""


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of the witnesses.

    Raises:
        OSError: there is no room for a process.
    """
    words = [sys.executable, "-m", "lightkeeper.worker_server.sidecar.witnesses", str(folder)]
    return subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


class Keeper:
    """Keeps one process of witnesses beside all sidecars of a run directory. One that dies or is
    silent is replaced, ever more rarely.
    """

    def __init__(
        self,
        folder: Path,
        starts: Callable[[Path], subprocess.Popen[bytes]] = start,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._starts = starts
        self._clock = clock
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = self._due_s = clock()
        self._pause_s = _BACK_OFF_S[0]
        self._heard: tuple[tuple[int, ...], float] = (), 0.0

    def run(self) -> None:
        """Keep it to the end of this process."""
        time.sleep(_FIRST_S)
        while True:
            try:
                self.look()
            except OSError as exc:
                _log.warning("the witnesses: %s", exc)
                self._later()
            time.sleep(_LOOK_S)

    def look(self) -> None:
        """Start the process, or end a silent one, if that is ours to do.

        Raises:
            OSError: it cannot be started.
        """
        now_s = self._clock()
        if self._process is None:
            if now_s >= self._due_s and self._ours():
                self._started_s = now_s
                self._process = self._starts(self._folder)
        elif (status := self._process.poll()) is not None:
            _log.warning("the witnesses ended with %d", status)
            self._later()
        elif now_s - max(self._started_s, self._heard_s()) > _SILENT_S:
            _log.warning("the witnesses are silent: ended")
            self._process.kill()  # and not waited for: it may hang in the kernel
            self._pause_s = _BACK_OFF_S[1]
            self._later()

    def _later(self) -> None:
        now_s, process = self._clock(), self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if now_s - self._started_s > _STEADY_S:
            self._pause_s = _BACK_OFF_S[0]
        self._process, self._due_s = None, now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, _BACK_OFF_S[1])

    def _ours(self) -> bool:
        """Whether no other sidecar has the directory's lock."""
        if self._lock is not None:
            return True
        fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return False
        self._lock = fd
        return True

    def _heard_s(self) -> float:
        """When the file was last another one, by our clock."""
        with contextlib.suppress(OSError):
            mark = _mark((self._folder / FILE).lstat())
            if mark != self._heard[0]:
                self._heard = mark, self._clock()
        return self._heard[1]
