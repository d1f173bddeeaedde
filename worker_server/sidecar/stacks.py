"""Stacks of the rank by py-spy, from outside: works while the GIL is held and while stopped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

_TIMEOUT_S = 15.0
_TRUSTED_EXIT = 0
_WITHOUT = "Without it: /v1/state has the phase and its age, /v1/flight_recorder the call sites."


class StacksError(Exception):
    """No stacks; the message says what is missing and what there is instead."""


def find_py_spy() -> str | None:
    """The py-spy beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy")


class Stacks:
    """Takes the stacks of one process; one at a time, because py-spy pauses it."""

    def __init__(self, pid: int, find: Callable[[], str | None] = find_py_spy) -> None:
        self._pid = pid
        self._find = find
        self._lock = threading.Lock()

    def take(self, *, stopped: bool, native: bool = False) -> str:
        """The stacks of all Python threads, as text.

        Raises:
            StacksError: py-spy is missing, not permitted, busy or silent.
        """
        tool = self._find()
        if tool is None:
            raise StacksError(
                f"py-spy is not installed (pip install 'lightkeeper[stacks]'). {_WITHOUT}"
            )
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            raise StacksError("py-spy is still at work for an earlier request")
        try:
            return self._run(tool, stopped=stopped, native=native)
        finally:
            self._lock.release()

    def _run(self, tool: str, *, stopped: bool, native: bool) -> str:
        command = [tool, "dump", "--pid", str(self._pid)]
        if stopped:
            command.append("--nonblocking")  # py-spy would wait for ever for its own stop
        if native:
            command.append("--native")
        try:
            done = subprocess.run(
                command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S,
                check=False, text=True, errors="replace",
            )  # fmt: skip
        except subprocess.TimeoutExpired as exc:
            raise StacksError(f"py-spy took more than {_TIMEOUT_S:g} s. {_WITHOUT}") from exc
        except OSError as exc:
            raise StacksError(f"py-spy does not start: {exc}. {_WITHOUT}") from exc
        if done.returncode != _TRUSTED_EXIT or not done.stdout.strip():
            reason = " ".join((done.stderr or done.stdout).split())[:300] or "no output"
            raise StacksError(f"py-spy failed: {reason}. {_advice(reason)}{_WITHOUT}")
        return done.stdout


def _advice(reason: str) -> str:
    if "ermission" not in reason and "perm" not in reason.lower():
        return ""
    return (
        "It needs ptrace: the sidecar must run as the rank's user, and a container needs "
        "CAP_SYS_PTRACE or kernel.yama.ptrace_scope <= 1. "
    )
