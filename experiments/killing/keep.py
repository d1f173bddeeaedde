"""`python -m experiments.killing.keep`: what systemd is to one unit of examples/systemd.

Restart=always after a pause. What the process left behind is ended before it starts again
(KillMode=control-group): orphans come to this process, as they stay in the unit's control group.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments.harness import descendants
from lightkeeper.trainer.status import StatusFile
from lightkeeper.trainer.supervisor import die_with_parent

_PR_SET_CHILD_SUBREAPER: Final = 36
_POLL_S: Final = 0.02
_GRACE_S: Final = 15.0
"""From SIGTERM to SIGKILL."""


class Unit:
    """One command, kept."""

    def __init__(
        self, command: Sequence[str], pause_s: float, record: StatusFile, *, forks: bool = False
    ) -> None:  # fmt: skip
        self._command, self._forks = command, forks
        self._pause_s = pause_s
        self._record = record
        self._stops: list[int] = []

    def run(self) -> None:
        """Until SIGTERM; then everything is ended."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self._stops.append(got))
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        while not self._stops:
            began_s = time.time()
            pid = self._start()
            self._record.write("started", pid=pid)
            code = self._until_over(pid)
            self._record.write("left", pid=pid, rc=code, lived_s=time.time() - began_s)
            self._end_rest()
            self._wait(self._pause_s)
        self._end_rest()

    def _start(self) -> int:
        if not self._forks or self._command[1] != "-m":
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - this process has one thread
            ).pid
        if pid := os.fork():
            return pid
        die_with_parent()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        sys.argv = [*self._command[2:]]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()

    def _until_over(self, started: int) -> int:
        asked = False
        deadline = float("inf")
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == started:
                return os.waitstatus_to_exitcode(status)
            if self._stops and not asked:
                asked, deadline = True, time.monotonic() + _GRACE_S
                os.kill(started, signal.SIGTERM)
            if time.monotonic() > deadline:
                deadline = float("inf")
                os.kill(started, signal.SIGKILL)
            if pid == 0:
                time.sleep(_POLL_S)

    def _end_rest(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            until = time.monotonic() + _GRACE_S
            while time.monotonic() < until:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        time.sleep(_POLL_S)
                except ChildProcessError:
                    return

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._stops and time.monotonic() < until:
            time.sleep(_POLL_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point."""
    top = argparse.ArgumentParser(prog="experiments.killing.keep", description=__doc__)
    top.add_argument("--name", required=True)
    top.add_argument("--events", type=Path, required=True, help="JSON lines: started, left")
    top.add_argument("--pause", type=float, default=1.0, help="RestartSec (default 1)")
    top.add_argument("--fork", action="store_true", help="a module is run by a fork of this one")
    top.add_argument("command", nargs="+")
    args = top.parse_args(arguments)
    record = StatusFile(args.events, unit=args.name)
    Unit(args.command, args.pause, record, forks=args.fork).run()


if __name__ == "__main__":
    main()
