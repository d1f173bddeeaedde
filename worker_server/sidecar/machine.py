"""What the machine says, as far as the sidecar goes: it keeps the witnesses' process and reads its
file. It imports no witness, and believes nothing of the file that it has not checked.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from msgspec import DecodeError
from msgspec.json import decode

from lightkeeper.worker_server import wire

FILE: Final = "machine.json"
ROWS_MOST: Final = 128
_MAX_BYTES: Final = 512 * 1024
"""For so many rows, whatever they say."""
_STALE_S: Final = 30.0
_EARLY_S: Final = 1.0
"""Clocks of two processes do not differ by more; a file of an earlier boot does."""
_OFF: Final = "the witnesses are off: LIGHTKEEPER_MACHINE=0"
_NOT_YET: Final = f"the witnesses have not been heard in the last {_STALE_S:.0f} s"
_ORDER: Final = [*wire.Weight]
_log = logging.getLogger("lightkeeper.worker_server.sidecar")


def weight_and_age(row: wire.Testimony) -> tuple[int, float]:
    """The weightiest first, then the latest."""
    return _ORDER.index(row.weight), row.age_s


class Machine:
    """Reads what the host's witnesses wrote; safe from any thread."""

    def __init__(self, folder: Path, host: wire.Host, *, on: bool = True) -> None:
        self._file, self._host, self._on = folder / FILE, host, on
        self._read: tuple[object, float, wire.MachineReport] | None = None
        """Which file, when it was written (monotonic seconds), what it says."""

    def report(self) -> wire.MachineReport:
        """The answer of `GET /v1/machine`."""
        try:
            return self._newest()
        except FileNotFoundError:
            why = _NOT_YET
        except (OSError, DecodeError, ValueError, RecursionError, KeyError, TypeError) as exc:
            why = f"what the witnesses wrote cannot be read: {exc}"[:200]
        return wire.MachineReport(self._host, 0.0, error=why if self._on else _OFF)

    def of_rank(self, pid: int) -> tuple[wire.Testimony, ...]:
        """What concerns the rank with this pid and may decide, the weightiest first."""
        rows = [
            row for row in self.report().testimonies
            if row.weight is not wire.Weight.CONTEXT and (not row.pids or pid in row.pids)
        ]  # fmt: skip
        return tuple(rows[: wire.TESTIMONIES_MOST])

    def _newest(self) -> wire.MachineReport:
        if not self._on:
            raise FileNotFoundError
        facts = os.lstat(self._file)
        mark = facts.st_ino, facts.st_mtime_ns, facts.st_size
        if self._read is None or self._read[0] != mark:
            self._read = mark, *_content(self._file)
        _, written_s, report = self._read
        age_s = time.monotonic() - written_s
        if not -_EARLY_S < age_s < _STALE_S:
            raise FileNotFoundError
        age_s = max(0.0, age_s)
        rows = tuple(row.later(age_s) for row in report.testimonies)
        return replace(report, host=self._host, age_s=age_s, testimonies=rows)


def _content(path: Path) -> tuple[float, wire.MachineReport]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no file")
        blob = file.read(_MAX_BYTES + 1)
    if len(blob) > _MAX_BYTES:
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
"""One that lived so long is started again soon."""


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Start the process of the witnesses.

    Raises:
        OSError: there is no room for a process.
    """
    words = [sys.executable, "-m", "lightkeeper.worker_server.sidecar.witnesses.panel"]
    null = subprocess.DEVNULL
    return subprocess.Popen([*words, str(folder)], stdin=subprocess.PIPE, stdout=null, stderr=null)


def keep_witnesses(
    folder: Path,
    starts: Callable[[Path], subprocess.Popen[bytes]] = start,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Keep one process of witnesses beside all sidecars of a run directory, to the end of this
    process. One that dies or is silent is replaced, ever more rarely.

    Raises:
        OSError: the directory cannot be locked.
    """
    sleep(_FIRST_S)
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)
    pause_s = _BACK_OFF_S[0]
    while True:
        began_s, silent = clock(), False
        try:
            silent = _watch(starts(folder), folder / FILE, clock, sleep)
        except OSError as exc:
            _log.warning("the witnesses: %s", exc)
        if silent or clock() - began_s > _STEADY_S:
            pause_s = _BACK_OFF_S[silent]
        sleep(pause_s)
        pause_s = min(2 * pause_s, _BACK_OFF_S[1])


def _watch(
    process: subprocess.Popen[bytes],
    file: Path,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> bool:
    """Wait for its end; whether it was ended, because it wrote nothing any more."""
    heard_s = clock()
    while (status := process.poll()) is None:
        with suppress(OSError):
            heard_s = max(heard_s, file.stat().st_mtime)
        if clock() - heard_s > _SILENT_S:
            _log.warning("the witnesses are silent: ended")
            process.kill()  # and not waited for: it may hang in the kernel
            return True
        sleep(_LOOK_S)
    _log.warning("the witnesses ended with %d", status)
    return False
