"""The sidecar as the rank sees it: started with the attach, started again when it is gone.

One that is stopped (state T) or does not answer itself any more is ended first, so that a rank
never has two. That costs the beat one read of /proc and one stat a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker_server import run_dir
from worker_server.rank.settings import for_sidecar
from worker_server.rank.warn_once import warn

_START_LIMIT_S = 60.0
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Before each new start. A sidecar that goes five times has a reason that a sixth does not mend."""
_STEADY_S = 600.0
"""One that lived for so long had none: in a job of weeks the kernel may take more than five."""
_STOPPED_LOOKS = 5
_MUTE_LOOKS = 30
"""Looks in a row, a second apart: what stops the rank too must not count. A server marks itself
every three seconds; with a load of 21 on two cores the longest gap in 75 s was 3.1 s."""
_LOOK_S = 0.9
_PR_SET_PTRACER = 0x59616D61


class SidecarProcess:
    """Keeps one sidecar beside this process; `look` is called by the beat."""

    def __init__(
        self,
        files: run_dir.RankFiles,
        start: Callable[[run_dir.RankFiles], subprocess.Popen[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
        state: Callable[[int, int], str | None] = run_dir.state_of,
        end: Callable[[int, int], None] | None = None,
    ) -> None:
        self._files = files
        self._state = state
        self._end = end or _end
        self._start = start or start_sidecar
        self._clock = clock
        self._launcher: subprocess.Popen[bytes] | None = self._start(files)
        self._started_s = clock()
        self._known: tuple[int, int] | None = None
        """Pid and start ticks of the sidecar that was let in."""
        self._former: tuple[int, int] | None = None
        """Of the one before, whose file stays until the next one publishes."""
        self._restarts = 0
        self._looked_s = clock()
        self._mark: int | None = None
        self._stopped_looks = self._mute_looks = 0
        self._due_s: float | None = None
        self._given_up = False

    @property
    def settled(self) -> bool:
        """Whether there is nothing to wait for: it is up, or will not come."""
        return self._given_up or (self._known is not None and self._due_s is None)

    def look(self) -> None:
        """Reap the launcher, let the sidecar in, start it again if it is gone."""
        self._reap()
        if self._given_up:
            return
        if self._known is None:
            self._admit()
        elif (state := self._state(*self._known)) is None:
            self._again()
        elif self._clock() - self._looked_s >= _LOOK_S:
            self._looked_s = self._clock()
            self._watch(state, *self._known)

    def _watch(self, state: str, pid: int, ticks: int) -> None:
        """End one that serves nobody any more; it is started again once it is gone."""
        mark = self._files.endpoint_mark()
        mute = mark is not None and mark == self._mark
        self._mark = mark
        self._mute_looks = self._mute_looks + 1 if mute else 0
        self._stopped_looks = self._stopped_looks + 1 if state == "T" else 0
        if self._stopped_looks >= _STOPPED_LOOKS or self._mute_looks >= _MUTE_LOOKS:
            self._stopped_looks = self._mute_looks = 0
            self._end(pid, ticks)

    def let_go(self) -> None:
        """At the end of the process: a launcher that still runs is nobody's concern."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.returncode = 0  # else Popen warns of it where such warnings are on

    def _reap(self) -> None:
        """The launcher forks the sidecar and exits; leave no zombie of it."""
        if self._launcher is not None and self._launcher.poll() is not None:
            self._launcher = None

    def _admit(self) -> None:
        """Let the sidecar (and its py-spy) look into this process, where Yama forbids it."""
        found = _published(self._files.read_endpoint() or {})
        if found not in (None, self._former) and self._launcher is None:
            self._known = found
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(found[0]), 0, 0, 0)
        elif self._clock() - self._started_s > _START_LIMIT_S:
            self._give_up("did not come up")

    def _again(self) -> None:
        now = self._clock()
        if self._due_s is None and now - self._started_s >= _STEADY_S:
            self._restarts = 0
        if self._restarts >= len(_PAUSES_S):
            self._give_up(f"was started {1 + self._restarts} times and is gone again")
        elif self._due_s is None:
            self._due_s = now + _PAUSES_S[self._restarts]
        elif now >= self._due_s:
            self._former, self._due_s, self._known = self._known, None, None
            self._restarts += 1
            self._started_s = now
            with contextlib.suppress(OSError):  # no process to be had: the time limit tells
                self._launcher = self._start(self._files)

    def _give_up(self, why: str) -> None:
        self._given_up = True
        warn(f"lightkeeper's WorkerServer {why}: see {self._files.log}", stacklevel=2)


def _published(endpoint: Mapping[str, Any]) -> tuple[int, int] | None:
    """The sidecar that published this file."""
    pid, ticks = endpoint.get("sidecar_pid"), endpoint.get("sidecar_ticks")
    if not isinstance(pid, int) or not isinstance(ticks, int):
        return None
    return pid, ticks


def _end(pid: int, ticks: int) -> None:
    """SIGKILL to this very process."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if run_dir.state_of(pid, ticks) is not None:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)


def start_sidecar(files: run_dir.RankFiles) -> subprocess.Popen[bytes]:
    """A process of a group of its own that holds none of our files, pipes or terminals.

    A group and not a session: what is meant for the rank's group (Ctrl-C, Ctrl-Z, a launcher's
    kill) passes it by all the same, and the kernel's autogroup scheduling shares the cores out by
    session. A new session with one small process in it got 0.1 s of CPU within 15 s on a host whose
    ranks spun on every core, and never came up (Linux 6.18).

    It inherits a pidfd of this process: however early we die, it knows whom to answer for, and
    how we ended.
    """
    home = str(Path(__file__).resolve().parents[2])
    environ = for_sidecar(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [home, environ.get("PYTHONPATH")]))
    environ.pop("LD_PRELOAD", None)  # a profiler or allocator meant for training
    own = os.pidfd_open(os.getpid())
    try:
        with files.log.open("ab") as log:  # what goes wrong before it can log by itself
            return subprocess.Popen(
                [sys.executable, "-m", "worker_server.sidecar", str(files.page), str(own)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=files.page.parent,
                env=environ,
                process_group=0,
                close_fds=True,
                pass_fds=(own,),
            )
    finally:
        os.close(own)
