"""Stacks of the rank by py-spy, from outside: works while the GIL is held and while stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from worker_server import wire
from worker_server.sidecar.queries import StacksError

# Whose code a call is, and the one line of a stack that says most: the innermost of the user's.
#
# Paths are whole (a traceback, py-spy's JSON) or below an entry of sys.path (the beat's note).

_PARTS = frozenset({"torch", "torchft", "worker_server"})
"""What training is made of: its frames are never the answer to where a program stands."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_TYPED = frozenset({"<string>", "<stdin>"})
"""`python -c` and the like; other names in brackets are of code that a program generated."""


class Call(NamedTuple):
    """One frame of a stack."""

    function: str
    path: str
    line: int


class Origin(IntEnum):
    """Whose a file is; the lower, the more it says."""

    USER = 0
    INSTALLED = 1  # a package: a training framework, perhaps
    MACHINERY = 2  # the standard library, torch, torchft, ours


@lru_cache(4096)
def origin(path: str) -> Origin:
    """Whose this file is."""
    if path.startswith("<"):
        return Origin.USER if path in _TYPED else Origin.MACHINERY
    for mark in _INSTALLED:
        before, _, below = path.rpartition(mark)
        if before:
            machinery = below.partition("/")[0] in _PARTS
            return Origin.MACHINERY if machinery else Origin.INSTALLED
    if os.path.isabs(path):
        ours = path.startswith(_roots()) or "/torchinductor_" in path
        return Origin.MACHINERY if ours else Origin.USER
    top = path.partition("/")[0].removesuffix(".py")
    if top in _PARTS or top in sys.stdlib_module_names:
        return Origin.MACHINERY
    installed = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return Origin.INSTALLED if any(Path(i, path).exists() for i in installed) else Origin.USER


@lru_cache(1)
def _roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    # in a virtual environment both are those of the interpreter that it was made of
    paths |= {str(Path(__file__).parents[1]), os.path.dirname(os.path.realpath(os.__file__))}
    return tuple(f"{path}/" for path in sorted(paths))


@lru_cache(4096)
def short(path: str) -> str:
    """A path below its entry of sys.path, as far as that is one that is installed."""
    for mark in _INSTALLED:
        before, _, below = path.rpartition(mark)
        if before:
            return below
    root = next((root for root in _roots() if path.startswith(root)), "")
    return path.removeprefix(root)


def innermost(calls: Sequence[Call]) -> int | None:
    """Which of these calls, newest first, is the innermost of the user's code.

    Where none is the user's, the innermost of an installed package, else of all.
    """
    if not calls:
        return None
    return min(range(len(calls)), key=lambda n: (origin(calls[n].path), n))


def frame_of(calls: Sequence[Call], index: int) -> wire.Frame:
    """A call as it is told: a lambda or a generator by the function that it stands in."""
    call = calls[index]
    name = _told(call.function)
    if name.startswith("<") and name != "<module>":
        outer = (_told(c.function) for c in calls[index + 1 :] if c.path == call.path)
        name = next((known for known in outer if not known.startswith("<")), name)
    return wire.Frame(name, call.path.rpartition("/")[2], call.line)


def _told(function: str) -> str:
    """`Loader.rows.<locals>.<genexpr>` is `Loader.rows`, `main.<locals>.helper` is `helper`."""
    parts = function.split(".<locals>.")
    while len(parts) > 1 and parts[-1].startswith("<"):
        parts.pop()
    return parts[-1]


_TIMEOUT_S = 15.0
_KILL_S = 1.0
"""For one that was killed to be gone."""
_FRESH_S = 1.0
"""An answer younger than this is given again: py-spy stops the rank for a moment."""
_TRUSTED_EXIT = 0
_CALL = re.compile(r"    (.+?) \((.+):(\d+)\)$")


@dataclass(frozen=True, slots=True)
class Taken:
    """What py-spy said, and when."""

    text: str
    taken_s: float
    again: bool = False
    """Whether it was taken for an earlier request."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """One look at a process that goes on."""

    taken: Taken
    main: tuple[Call, ...]
    """Calls of the main thread, newest first."""
    owns_gil: bool
    """Whether the main thread does."""


def find_py_spy() -> str | None:
    """The py-spy beside this interpreter, else the one on PATH."""
    beside = Path(sys.executable).parent / "py-spy"
    if os.access(beside, os.X_OK):
        return str(beside)
    return shutil.which("py-spy")


class Stacks:
    """Takes the stacks of one process; one at a time, because py-spy pauses it."""

    def __init__(
        self,
        pid: int,
        find: Callable[[], str | None] = find_py_spy,
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = _TIMEOUT_S,
        run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
    ) -> None:
        self._run_tool = run
        self._limit_s = limit_s
        self._stuck: threading.Thread | None = None
        self._pid = pid
        self._find = find
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[bool, Taken | tuple[str, float]] = {}

    def take(self, *, pause: bool, native: bool = False) -> Taken:
        """The stacks of all Python threads.

        Without `pause` the process is read while it runs: for one that hangs or is stopped.

        Raises:
            StacksError: py-spy is missing, not permitted, busy or silent.
        """
        with self._alone():
            last = self._last.get(native)
            match last:
                case Taken() if self._clock() - last.taken_s < _FRESH_S:
                    return Taken(last.text, last.taken_s, again=True)
                case (reason, failed_s) if self._clock() - failed_s < _FRESH_S:
                    raise StacksError(reason)
            try:
                text = self._run(pause=pause, native=native)
            except StacksError as exc:
                self._last[native] = str(exc), self._clock()
                raise
            taken = self._last[native] = Taken(text, self._clock())
            return taken

    def look(self) -> ProcessLook:
        """All threads without stopping them, with whole paths.

        Raises:
            StacksError: as `take`, or py-spy's answer is not understood.
        """
        with self._alone():
            answer = self._run("--json", pause=False, native=False)
        try:
            return _look_of(json.loads(answer), self._pid, self._clock())
        except (ValueError, LookupError, TypeError, StopIteration) as exc:
            raise StacksError("py-spy's JSON is not understood") from exc

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            raise StacksError("py-spy is still at work for an earlier request")
        try:
            yield
        finally:
            self._lock.release()

    def _run(self, *more: str, pause: bool, native: bool) -> str:
        tool = self._find()
        if tool is None:
            raise StacksError("py-spy is not installed (pip install 'lightkeeper[stacks]')")
        command = [tool, "dump", "--pid", str(self._pid), *more]
        if not pause:
            command.append("--nonblocking")  # of a stopped one it would wait for its own stop
        if native:
            command.append("--native")
        done = self._finish(command)
        if done.returncode != _TRUSTED_EXIT or not done.stdout.strip():
            reason = " ".join((done.stderr or done.stdout).split())[:300] or "no output"
            raise StacksError(f"py-spy failed: {reason}{_advice(reason)}")
        return done.stdout

    def _finish(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """What py-spy says, within its time and ours.

        It runs in a thread of its own: one that waits in the kernel (its file, or the rank's
        memory, on a file server that is away) cannot be killed, and must not hold its asker.
        """
        if self._stuck is not None and self._stuck.is_alive():
            raise StacksError("py-spy hangs in the kernel since an earlier request")
        ended: list[subprocess.CompletedProcess[str] | Exception] = []

        def run() -> None:
            try:
                ended.append(self._run_tool(
                    command, capture_output=True, stdin=subprocess.DEVNULL, timeout=self._limit_s,
                    check=False, text=True, errors="replace",
                ))  # fmt: skip
            except (OSError, subprocess.SubprocessError) as exc:
                ended.append(exc)

        thread = threading.Thread(target=run, name="py-spy", daemon=True)
        thread.start()
        thread.join(self._limit_s + _KILL_S)
        done = ended[0] if ended else None
        if isinstance(done, subprocess.CompletedProcess):
            return done
        if done is None or isinstance(done, subprocess.TimeoutExpired):
            self._stuck = thread
            raise StacksError(f"py-spy took more than {self._limit_s:g} s")
        raise StacksError(f"py-spy does not start: {done}")


def _look_of(threads: list[dict[str, Any]], pid: int, now_s: float) -> ProcessLook:
    lines = []
    for thread in threads:
        state = f"{'active' if thread['active'] else 'idle'}{'+gil' if thread['owns_gil'] else ''}"
        lines.append(f'Thread {thread["os_thread_id"]} ({state}): "{thread["thread_name"]}"')
        lines += [f"    {c['name']} ({c['short_filename']}:{c['line']})" for c in thread["frames"]]
    main = next((t for t in threads if t["os_thread_id"] == pid), None)
    if main is None:
        main = next(t for t in threads if t["thread_name"] == "MainThread")
    calls = tuple(Call(c["name"], c["filename"], int(c["line"])) for c in main["frames"])
    return ProcessLook(Taken("\n".join(lines) + "\n", now_s), calls, main["owns_gil"])


def calls_of(text: str) -> tuple[Call, ...]:
    """Calls of the first thread of a text such as the rank's beat writes: the main thread's."""
    calls: list[Call] = []
    for line in text.splitlines()[1:]:
        at = _CALL.match(line)
        if at is None:
            break
        calls.append(Call(at[1], at[2], int(at[3])))
    return tuple(calls)


def _advice(reason: str) -> str:
    if "perm" not in reason.lower():
        return ""
    return (
        ". It needs ptrace: the sidecar must run as the rank's user, and a container needs "
        "CAP_SYS_PTRACE or kernel.yama.ptrace_scope <= 1"
    )
