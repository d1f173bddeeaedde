"""The rank's process, seen and signalled from outside."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from worker_server import run_dir, wire
from worker_server.sidecar.activity import Activity
from worker_server.sidecar.ending import decode_status, wait_status

_SIDECAR = b"worker_server.sidecar"
"""A word of its command line, see `worker_server.companion`."""


class GoneError(Exception):
    """The rank had died before its sidecar could take hold of it."""


class RankProcess(Protocol):
    """What the sidecar needs of the rank's process."""

    pid: int

    def look(self, interpreter_age_s: float | None) -> wire.Process:
        """The operating system's view, now."""

    def wait_death(self, timeout_s: float) -> bool:
        """Whether the process is dead, waiting for it at most `timeout_s`."""

    def tracer_of_a_thread(self) -> wire.Tracer | None:
        """Who traces one of its threads; reads the status of each."""

    def syscall(self) -> int | None:
        """Which system call its main thread is in; None: in none, or nobody may know."""

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone."""

    @property
    def sent(self) -> tuple[str, ...]:
        """Names of the signals that were sent."""


class PidfdProcess:
    """A process held by a pidfd: a recycled pid is never mistaken for it.

    `pidfd` is one that the process itself opened and passed on; then it may be dead already.

    Raises:
        GoneError: no pidfd, and no such process, or another one with its pid.
    """

    def __init__(
        self,
        pid: int,
        start_ticks: int,
        pidfd: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pid = pid
        self._ticks = start_ticks
        self._clock = clock
        self._died_s: float | None = None
        self._lock = threading.Lock()
        self._fd = _open(pid, start_ticks) if pidfd is None else pidfd
        self._status: int | None = None
        self._sent: list[str] = []
        self._activity = Activity(pid, clock)

    @property
    def sent(self) -> tuple[str, ...]:
        """Signals that the process was sent through us."""
        return tuple(self._sent)

    def wait_death(self, timeout_s: float) -> bool:
        """Whether the process is dead, waiting for it at most `timeout_s`."""
        if self._died_s is not None:
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if not poll.poll(timeout_s * 1000):
            return False
        self._note_death()
        return True

    def _note_death(self) -> None:
        with self._lock:  # the first who sees it sets the time
            if self._died_s is None:
                self._died_s = self._clock()

    def send(self, signum: signal.Signals) -> bool:
        """Send a signal to this very process; False when it is gone."""
        try:
            signal.pidfd_send_signal(self._fd, signum)
        except ProcessLookupError:
            return False
        self._sent.append(signum.name)
        return True

    def close(self) -> None:
        """Let go of the process; nothing may be asked afterwards."""
        os.close(self._fd)

    def look(self, interpreter_age_s: float | None) -> wire.Process:
        """The operating system's view, now."""
        if self.wait_death(0):
            zombie = _status(self.pid).get("State", "").startswith("Z")
            if self._status is None:
                self._status = wait_status(self._fd, self.pid, self._ticks)
            code, signum = decode_status(self._status)
            return wire.Process(
                alive=False,
                state="Z" if zombie else None,
                dead_age_s=self._clock() - (self._died_s or 0.0),
                exit_code=code,
                exit_signal=signum,
            )
        rates = self._activity.rates()
        status = _status(self.pid)
        rss = status.get("VmRSS", "").split()
        threads = status.get("Threads", "")
        return wire.Process(
            alive=True,
            state=status.get("State", "")[:1] or None,
            threads=int(threads) if threads.isdecimal() else None,
            rss_bytes=int(rss[0]) * 1024 if rss else None,
            interpreter_age_s=interpreter_age_s,
            tracer=_tracer(status),
            cores=rates.cores,
            starved=rates.starved,
            bytes_s=rates.bytes_s,
        )

    def tracer_of_a_thread(self) -> wire.Tracer | None:
        """Who traces one of its threads: `strace -p THREAD` leaves the others alone."""
        tracers = (_tracer(_status(f"{self.pid}/task/{tid}")) for tid in _tasks(self.pid))
        return next((tracer for tracer in tracers if tracer is not None), None)

    def syscall(self) -> int | None:
        """Which system call its main thread is in; None: in none, or nobody may know."""
        try:
            word = Path(f"/proc/{self.pid}/syscall").read_text(encoding="ascii").partition(" ")[0]
        except OSError:
            return None
        return int(word) if word.isdecimal() else None


def _tracer(status: dict[str, str]) -> wire.Tracer | None:
    """Who traces a task, but for the py-spy of a WorkerServer. One of another PID namespace is not
    seen: the kernel says 0.
    """
    pid = int(status.get("TracerPid") or 0)
    tracer = _status(pid) if pid else {}
    if not tracer:
        return None
    try:
        parent = Path(f"/proc/{tracer['PPid']}/cmdline").read_bytes().split(b"\0")
    except OSError:
        parent = []
    return None if _SIDECAR in parent else wire.Tracer(pid, tracer["Name"])


def _tasks(pid: int) -> list[str]:
    try:
        return sorted(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return []


def _open(pid: int, start_ticks: int) -> int:
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError as exc:
        raise GoneError(f"process {pid} is gone") from exc
    if run_dir.start_ticks(pid) != start_ticks:  # checked after the open: no gap
        os.close(fd)
        raise GoneError(f"process {pid} is not the rank any more")
    return fd


def _status(pid: int | str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key: value.strip() for key, _, value in pairs}
