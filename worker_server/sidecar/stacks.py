"""Stacks of the rank by py-spy, from outside, and where a rank without progress stands.

py-spy works while the GIL is held and while the rank is stopped.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.plain_text import escaped
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.sidecar.process import DEAF_S
from lightkeeper.worker_server.wire import Doing

# Whose code a call is, and the most telling line of a stack: the user's innermost one.
#
# Paths are absolute (a traceback, py-spy's JSON) or relative to sys.path (the beat's note).

_PARTS = ("torch/", "torchft/", "lightkeeper/worker_server/", "lightkeeper/__init__.py")
"""Training machinery: its frames never answer where a program stands."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_TYPED = frozenset({"<string>", "<stdin>"})
"""`python -c` and the like; other names in brackets are generated code."""


class Call(NamedTuple):
    function: str
    path: str
    line: int


class Origin(IntEnum):
    """Whose a file is; a lower one says more."""

    USER = 0
    INSTALLED = 1  # a package: a training framework, perhaps
    MACHINERY = 2  # torch, torchft, ours
    STANDARD = 3  # the standard library, generated code


@lru_cache(4096)
def origin(path: str) -> Origin:
    if path.startswith("<"):
        return Origin.USER if path in _TYPED else Origin.STANDARD
    below = _in_packages(path)
    if below is not None:
        return Origin.MACHINERY if below.startswith(_PARTS) else Origin.INSTALLED
    top = path.partition("/")[0].removesuffix(".py")
    if path.startswith((_ours(), *_PARTS)):
        return Origin.MACHINERY
    if path.startswith(_roots()) or top in sys.stdlib_module_names:
        return Origin.STANDARD
    if os.path.isabs(path):
        return Origin.STANDARD if "/torchinductor_" in path else Origin.USER
    roots = (sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return Origin.INSTALLED if any(Path(root, path).exists() for root in roots) else Origin.USER


def _in_packages(path: str) -> str | None:
    """The path below the packages' folder, if it is there."""
    for mark in _INSTALLED:
        before, _, below = path.rpartition(mark)
        if before:
            return below
    return None


@lru_cache(1)
def _roots() -> tuple[str, ...]:
    paths = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    # in a virtual environment both are those of its base interpreter
    paths |= {os.path.dirname(os.path.realpath(os.__file__))}
    return tuple(f"{path}/" for path in sorted(paths))


@lru_cache(1)
def _ours() -> str:
    return f"{Path(__file__).parents[1]}/"


@lru_cache(4096)
def short(path: str) -> str:
    """A path relative to its entry of sys.path, if that is an installed one."""
    below = _in_packages(path)
    if below is not None:
        return below
    if path.startswith(_ours()):
        return f"lightkeeper/worker_server/{path.removeprefix(_ours())}"
    root = next((root for root in _roots() if path.startswith(root)), "")
    return path.removeprefix(root)


def innermost(calls: Sequence[Call]) -> int | None:
    """Index of the innermost call of the user's code; `calls` are newest first.

    If none is the user's: the innermost of an installed package, else of torch, else of all.
    """
    if not calls:
        return None
    return min(range(len(calls)), key=lambda n: (origin(calls[n].path), n))


def frame_of(calls: Sequence[Call], index: int) -> wire.Frame:
    """A call as reported: a lambda or a generator gets the name of its function."""
    call = calls[index]
    name = _plain_name(call.function)
    if name.startswith("<") and name != "<module>":
        outer = (_plain_name(c.function) for c in calls[index + 1 :] if c.path == call.path)
        name = next((around for around in outer if not around.startswith("<")), name)
    return wire.Frame(name, call.path.rpartition("/")[2], call.line)


_DECORATORS: Final = re.compile(
    r"lightkeeper/worker_server/|torch/distributed/c10d_logger\.py|torch/utils/_contextlib\.py"
    r"|(contextlib|functools)\.py|<"
)
"""Files, as `short` has them, whose functions stand between a call and the function called."""


def called_by(calls: Sequence[Call], index: int) -> str | None:
    """What `calls[index]` calls: a function without its class, a class; None: in C, or nothing."""
    inward = (call for call in reversed(calls[:index]) if not _DECORATORS.match(short(call.path)))
    call = next(inward, None)
    called = "<" if call is None else _plain_name(call.function).removesuffix(".__init__")
    name = called.rpartition(".")[2]
    return None if name.startswith("<") else name  # a module that is imported


def _plain_name(function: str) -> str:
    """`Loader.rows.<locals>.<genexpr>` is `Loader.rows`, `main.<locals>.helper` is `helper`."""
    parts = function.split(".<locals>.")
    while len(parts) > 1 and parts[-1].startswith("<"):
        parts.pop()
    return parts[-1]


_TIMEOUT_S = 15.0
_KILL_S = 1.0
"""For a killed one to be gone."""
_FRESH_S = 1.0
"""A more recent answer is reused: py-spy stops the rank for a moment."""
_CALL = re.compile(r"    (.+?) \((.+):(\d+)\)$")
_PTRACE = (
    ". It needs ptrace: the sidecar must run as the rank's user, and a container needs "
    "CAP_SYS_PTRACE or kernel.yama.ptrace_scope <= 1"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """py-spy's output, and its time."""

    text: str
    taken_s: float
    again: bool = False
    """True if it was taken for an earlier request."""


class ThreadLook(NamedTuple):
    name: str
    number: int
    """The kernel's."""
    calls: tuple[Call, ...]
    """Newest first."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """A look at a running process."""

    taken: Taken
    main: ThreadLook
    """The thread that trains; if that is not known, or has ended, the main one."""
    owns_gil: bool
    """True if that thread does."""
    behind: ThreadLook | None = None
    """The thread that it waits for, if that runs the user's code."""


def find_py_spy() -> str | None:
    """The py-spy beside this interpreter, else the one on PATH."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("py-spy", path=beside) or shutil.which("py-spy")


@dataclass(eq=False)
class Stacks:
    """Takes stacks of one process, one at a time, because py-spy pauses it."""

    pid: int
    find: Callable[[], str | None] = find_py_spy
    clock: Callable[[], float] = time.monotonic
    limit_s: float = _TIMEOUT_S
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run

    def __post_init__(self) -> None:
        self._stuck: threading.Thread | None = None
        self._lock = threading.Lock()
        self._last: dict[bool, Taken | tuple[str, float]] = {}

    def take(self, *, pause: bool, native: bool = False) -> Taken:
        """The stacks of all Python threads.

        Without `pause` it is read while running: for a process that hangs or is stopped.

        Raises:
            SilentError: py-spy is missing, not permitted, busy or silent.
        """
        with self._alone():
            last = self._last.get(native)
            match last:
                case Taken() if self.clock() - last.taken_s < _FRESH_S:
                    return Taken(last.text, last.taken_s, again=True)
                case (reason, failed_s) if self.clock() - failed_s < _FRESH_S:
                    raise SilentError(reason)
            try:
                text = self._run(pause=pause, native=native)
            except SilentError as exc:
                self._last[native] = str(exc), self.clock()
                raise
            taken = self._last[native] = Taken(text, self.clock())
            return taken

    def look(self, trains: int = 0) -> ProcessLook:
        """All threads without stopping them, with full paths.

        Raises:
            SilentError: as `take`, or py-spy's answer cannot be parsed.
        """
        with self._alone():
            answer = self._run("--json", pause=False, native=False)
        try:
            return _look_of(json.loads(answer), trains, self.pid, self.clock())
        except (ValueError, LookupError, TypeError, StopIteration) as exc:
            raise SilentError("py-spy's JSON is not understood") from exc

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            raise SilentError("py-spy is still at work for an earlier request")
        try:
            yield
        finally:
            self._lock.release()

    def _run(self, *more: str, pause: bool, native: bool) -> str:
        tool = self.find()
        if tool is None:
            raise SilentError("py-spy is not installed (pip install 'lightkeeper[stacks]')")
        command = [tool, "dump", "--pid", str(self.pid), *more]
        if not pause:
            command.append("--nonblocking")  # else it waits to stop what is already stopped
        if native:
            command.append("--native")
        done = self._finish(command)
        if done.returncode or not done.stdout.strip():
            reason = " ".join((done.stderr or done.stdout).split())[:300] or "no output"
            advice = _PTRACE if "perm" in reason.lower() else ""
            raise SilentError(f"py-spy failed: {reason}{advice}")
        return done.stdout

    def _finish(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """py-spy's result, within its time limit.

        It runs in its own thread: one that waits in the kernel (its file, or the rank's memory,
        is on an unreachable file server) cannot be killed, and must not block the caller.
        """
        if self._stuck is not None and self._stuck.is_alive():
            raise SilentError("py-spy hangs in the kernel since an earlier request")
        ended: list[subprocess.CompletedProcess[str] | Exception] = []

        def run() -> None:
            try:
                ended.append(self.run(
                    command, capture_output=True, stdin=subprocess.DEVNULL, timeout=self.limit_s,
                    check=False, text=True, errors="replace",
                ))  # fmt: skip
            except (OSError, subprocess.SubprocessError) as exc:
                ended.append(exc)

        thread = threading.Thread(target=run, name="py-spy", daemon=True)
        thread.start()
        thread.join(self.limit_s + _KILL_S)
        done = ended[0] if ended else None
        if isinstance(done, subprocess.CompletedProcess):
            return done
        if done is None or isinstance(done, subprocess.TimeoutExpired):
            self._stuck = thread
            raise SilentError(f"py-spy took more than {self.limit_s:g} s")
        raise SilentError(f"py-spy does not start: {done}")


def _look_of(threads: list[dict[str, Any]], trains: int, pid: int, now_s: float) -> ProcessLook:
    lines, looks = [], []
    for thread in threads:
        calls = tuple(Call(c["name"], c["filename"], int(c["line"])) for c in thread["frames"])
        looks.append(ThreadLook(thread["thread_name"] or "", thread["os_thread_id"], calls))
        state = f"{'active' if thread['active'] else 'idle'}{'+gil' if thread['owns_gil'] else ''}"
        lines.append(f'Thread {thread["os_thread_id"]} ({state}): "{thread["thread_name"]}"')
        lines += [f"    {c['name']} ({c['short_filename']}:{c['line']})" for c in thread["frames"]]
    ways = (trains, pid, "MainThread")
    at = next(n for way in ways for n, seen in enumerate(looks) if way in (seen.number, seen.name))
    main = looks[at] if looks[at].number == trains else looks[at]._replace(number=pid)
    taken = Taken("\n".join(map(escaped, lines)) + "\n", now_s)
    return ProcessLook(taken, main, threads[at]["owns_gil"], _behind(main.calls, looks))


def _behind(main: Sequence[Call], looks: Iterable[ThreadLook]) -> ThreadLook | None:
    """TorchFT's thread for quorums, which asks the user's code for the state that a group which
    heals is to get, while the main thread waits for it.
    """
    for look in looks if _runs(main, "wait_quorum") else ():
        at = innermost(look.calls) if _runs(look.calls, "_async_quorum") else None
        if at is not None and origin(look.calls[at].path) is Origin.USER:
            return look
    return None


_OURS: Final = r" {4}[^\n]+ \((?:[^()\n]*/)?lightkeeper/worker_server/[^()\n]*\)\n"
_BETWEEN: Final = re.compile(rf"(?<=\)\n)((?:{_OURS})+)(?= {{4}}\S)")


def folded(text: str) -> str:
    """py-spy's text with frames of ours between those of a program in one line."""

    def line(run: re.Match[str]) -> str:
        count = run[1].count("\n")
        return f"    ({count} frame{'s' * (count > 1)} of lightkeeper)\n"

    return _BETWEEN.sub(line, text)


def _runs(calls: Iterable[Call], method: str) -> bool:
    """True if this method of TorchFT's Manager does."""
    names = (c.function for c in calls if short(c.path) == "torchft/manager.py")
    return any(name.rpartition(".")[2] == method for name in names)


def first_in_note(text: str) -> ThreadLook:
    """The first thread in a text from the rank's beat: the one that trains. Number 0: not given."""
    head, *lines = text.splitlines() or ("",)
    number = re.match(r"\w+ (\d{1,9}):", head)
    calls = (_CALL.match(line) for line in lines)
    own = (Call(at[1], at[2], int(at[3])) for at in takewhile(bool, calls) if at)
    return ThreadLook("", int(number[1]) if number else 0, tuple(own))


# Where a rank without progress stands: sample after sample, until it moves.
#
# Two samples agree if the user's innermost frame is the same, and the innermost one outside the
# standard library and torch: a program whose own last line is `trainer.train()` moves below it.
#
# When a rank counts as without progress, and when its stack is sampled then.
#
# A look reads the process while it runs and stops nothing. It takes 9 ms of a CPU that is not the
# rank's (py-spy 0.4.3, torch 2.13): 0.2 % of a core early in a stall, 0.03 % later. The first look
# comes after 3 s; the second, 2 s later, shows whether the rank stands or was only passing. If it
# was only passing, such pauses are usual here: for the next ten minutes the first look comes after
# 5 s. A healthy rank whose steps take 3 to 5 s costs 6 looks an hour that way; one whose steps take
# longer 720, early looks or not. A rank that is known to do something long, or has not begun its
# first step, is left alone for longer.

_SOON_S = 3.0
_STALL_S = 5.0
"""From then on the rank hangs, for those who ask it for more than a look: torch's record takes it
18 ms. If longer, evidence may come after the kill."""
_LONG_STALL_S = 30.0
_START_STALL_S = 10.0
"""For a rank that has done nothing yet: it mostly imports, and peers give up after 60 s."""
_PASSING_S = 600.0
"""For so long after an early look at a rank that then continued, there is none."""
_AGAIN_S, _OFTEN_S, _SELDOM_S = 2.0, 5.0, 30.0
_OFTEN_FOR_S = 60.0

Mark = tuple[object, ...]
"""Stays equal while a rank makes no progress."""


class RankProgress(NamedTuple):
    """How far a rank has come."""

    step: wire.StepState | None
    heads: Sequence[wire.GroupHead] = ()
    transfers: Sequence[wire.TransferHead] = ()

    @property
    def mark(self) -> Mark:
        """Changes with any visible progress of the rank's own threads."""
        moves = (
            *((head.enqueued, head.completed, head.inside) for head in self._ring()),
            *((row.peer, row.tag, row.posted, row.unfinished, row.held) for row in self.transfers),
        )
        if (step := self.step) is None:
            return (moves,)
        counts = tuple(step.counters.values())
        return (moves, step.progress, step.attempt, step.commits, step.waits_in, counts)

    @property
    def moved_age_s(self) -> float:
        """Since the last move that has an age."""
        ages = [head.age_s for head in self._ring()] + [row.age_s for row in self.transfers]
        if self.step is not None:
            waits_s = self.step.waits_s
            ages += [self.step.phase_age_s, *([] if waits_s is None else [waits_s])]
        return min(ages, default=0.0)

    @property
    def patience_s(self) -> float:
        """After so long without a move it hangs."""
        rows: Iterable[Any] = (*self.heads, *self.transfers)
        if any(row.unfinished for row in rows):
            return _STALL_S
        if self.step is None:
            return _STALL_S if self.heads or self.transfers else _START_STALL_S
        return _LONG_STALL_S if self.step.phase in wire.LONG_PHASES else _STALL_S

    @property
    def waits(self) -> bool:
        """True if it is known to wait for other ranks."""
        calls = any(head.inside for head in self.heads) or any(row.held for row in self.transfers)
        return calls or (self.step is not None and self.step.waits_in is not None)

    def _ring(self) -> Iterator[wire.GroupHead]:
        return (head for head in self.heads if head.read_age_s is None)


class HangWatch:
    """Follows one rank; call `due` about once a second."""

    def __init__(self) -> None:
        self.hanging = False
        """True if the rank hung at the last call."""
        self._mark: Mark | None = None
        self.since_s = 0.0
        """When it last moved."""
        self._called_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0
        self._looks = 0
        self._early = False
        """True if the first look was one that a hang alone would not have made yet."""
        self._passing_until_s = 0.0

    def due(self, process: wire.Process, progress: RankProgress, now_s: float) -> bool:
        """True if the rank makes no progress and it is time to look; True counts as a look."""
        mark = progress.mark
        if mark != self._mark:
            if self._early:
                self._passing_until_s = now_s + _PASSING_S
            called_s = now_s if self._called_s is None else self._called_s
            self.since_s = max(called_s, now_s - progress.moved_age_s)
            self._mark, self._first_s, self._looks, self._early = mark, None, 0, False
        self._called_s = now_s
        still_s, patience_s = now_s - self.since_s, progress.patience_s
        self.hanging = _held(process) or still_s >= patience_s
        soon_s = _SOON_S if now_s >= self._passing_until_s else _STALL_S
        early = not self.hanging and soon_s <= still_s and patience_s == _STALL_S
        if not (self.hanging or early) or process.tracer is not None:
            return False
        if self._first_s is None:
            self._first_s, self._early = now_s, early
        elif now_s - self._last_s < self._pause_s():
            return False
        self._last_s = now_s
        self._looks += 1
        return True

    def _pause_s(self) -> float:
        if self._looks < (3 if self._early else 2):
            return _AGAIN_S
        return _OFTEN_S if self._last_s - (self._first_s or 0.0) < _OFTEN_FOR_S else _SELDOM_S


def _held(process: wire.Process) -> bool:
    age_s = process.interpreter_age_s
    return process.stopped or (age_s is not None and age_s > DEAF_S)


# What a stack is known to do: by the calls inside the user's, else by its system call.
#
# A table; kinds that say more come first. A rank that imports, saves or compiles may take its
# time, whatever it waits in meanwhile, and one that waits for other ranks is no culprit.

_FILES: Final = {
    Doing.START: ("<frozen importlib", "importlib/", "huggingface_hub/", r"torch/hub\.py"),
    Doing.SAVE: (
        "torch/serialization", "torch/distributed/checkpoint/", "torchft/checkpointing/",
        "safetensors/", r"pickle\.py", "orbax/",
    ),
    Doing.STORE: (
        r"torch/distributed/rendezvous\.py", "torch/distributed/elastic/(rendezvous/|utils/store)",
        r"torchft/process_group\.py:create_store_client",
    ),
    Doing.GROUP: (
        r"torch/distributed/distributed_c10d\.py:_?(init_process|new_\w*group|(split|shrink)_group)",
        r"torch/distributed/device_mesh\.py:(\w+\.)?(__init__|init_device_mesh)$",
        r"torchft/process_group\.py:(\w+\.)?(re)?configure$",
    ),
    Doing.COLLECTIVE: ("torchft/", "torch/distributed/", "torch/nn/parallel/distributed"),
    Doing.COMPILE: (
        "torch/_dynamo/(?!eval_frame|external_utils|decorators)", "triton/compiler/",
        "torch/_inductor/(?!output_code|utils|cudagraph|runtime/)",
        "torch/_functorch/(?!.*runtime_wrappers)", "torch/fx/passes/", "torch/utils/cpp_extension",
    ),
    Doing.DATA: (
        "torch/utils/data/", "torchdata/", "datasets/iterable", "webdataset/", "streaming/base/",
    ),
    Doing.PROCESS: (r"subprocess\.py", "multiprocessing/(popen|process|pool)"),
    Doing.LOCK: (
        r"threading\.py", r"queue\.py", "multiprocessing/(queues|synchronize|managers)",
        "concurrent/", "asyncio/", "filelock/", r"torch/utils/file_baton\.py",
    ),
    Doing.IO: (
        r"(selectors|socket|ssl|pathlib|shutil|tempfile|codecs|_pyio|os|gzip|zipfile|tarfile)\.py",
        "http/", "urllib", "requests/", "multiprocessing/connection", "sqlite3/", "numpy/lib/",
        "pandas/io/", "fsspec/", "s3fs/", "boto",
    ),
}  # fmt: skip
"""`PATH:FUNCTION`, with paths relative to sys.path; a call has the first kind that matches. Running
compiled code is not compiling. The wait for a store itself is C++, so only callers that wait for
nothing else count: TorchFT's `Manager.__init__` waits for the Lighthouse as well."""
_TABLE: Final = tuple((kind, re.compile("|".join(files))) for kind, files in _FILES.items())
_CALLS_A_MODULE: Final = "torch/nn/modules/module.py"
_KEPT: Final = "checkpoint|ckpt|state|model|weights"
_NAMES: Final = (
    (
        Doing.SAVE,
        re.compile(rf"(^|[_.])((save|load|write|restore)_(\w+_)?({_KEPT})|checkpoint|ckpt)"),
    ),
    (
        Doing.EVALUATE,
        re.compile(r"(^|[_.])(eval|evaluate|evaluation|val|validate|validation)(_|$)"),
    ),
)
"""The user's functions around it."""
_ORDER: Final = (
    Doing.START, Doing.STORE, Doing.GROUP, Doing.COLLECTIVE, Doing.SAVE, Doing.COMPILE,
    Doing.EVALUATE, Doing.DATA, Doing.PROCESS, Doing.LOCK, Doing.SLEEP, Doing.IO,
)  # fmt: skip

_X86: Final = {
    Doing.LOCK: (202, 449, 73, 72, 65, 220),  # futex, futex_waitv, flock, fcntl, sem(timed)op
    Doing.SLEEP: (35, 230, 34, 128, 130),  # (clock_)nanosleep, pause, rt_sig(timedwait|suspend)
    Doing.PROCESS: (61, 247),  # wait4, waitid
    Doing.IO: (
        0, 1, 2, 3, 4, 5, 6, 7, 17, 18, 19, 20, 21, 23, 26, 40, 42, 43, 44, 45, 46, 47, 74, 75,
        82, 83, 84, 87, 89, 137, 217, 232, 257, 258, 262, 263, 270, 271, 281, 288, 316, 326, 332,
    ),  # read to lseek, select, sockets, sync, names of files, epoll
}  # fmt: skip
_ARM: Final = {
    Doing.LOCK: (98, 449, 32, 25, 192, 193),
    Doing.SLEEP: (101, 115, 133, 137),
    Doing.PROCESS: (95, 260),
    Doing.IO: (
        22, 34, 35, 38, 43, 56, 57, 61, 63, 64, 65, 66, 67, 68, 71, 72, 73, 78, 79, 80, 82, 83,
        202, 203, 206, 207, 211, 212, 242, 276, 285, 291,
    ),
}  # fmt: skip
_SYSCALLS: Final = {
    number: kind
    for kind, numbers in {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {}).items()
    for number in numbers
}


def doing_of(calls: Sequence[Call], index: int, syscall: int | None, *, waits: bool) -> Doing:
    """What a thread does; `calls` are newest first, `calls[index]` is the user's innermost one.

    `waits`: it is known to wait for other ranks. A system call of torch's C++ is ignored: a
    backward pass that waits for a peer in DDP's reducer looks like a lock.
    """
    inside = calls[:index] if origin(calls[index].path) is Origin.USER else calls[: index + 1]
    kinds = set(_kinds(inside))
    native = any(short(call.path).startswith("torch/") for call in inside)
    if not kinds and syscall is not None and not native:
        kinds.add(_SYSCALLS.get(syscall, Doing.UNKNOWN))
    for call in calls[index:]:
        if origin(call.path) is Origin.USER:
            kinds |= {kind for kind, names in _NAMES if re.search(names, call.function.lower())}
    if waits:
        kinds.add(Doing.COLLECTIVE)
    return next((kind for kind in _ORDER if kind in kinds), Doing.UNKNOWN)


def _kinds(calls: Iterable[Call]) -> Iterable[Doing]:
    computes = False
    for call in calls:
        path = short(call.path)
        computes = computes or path == _CALLS_A_MODULE
        place = f"{path}:{_plain_name(call.function)}"
        kind = next((kind for kind, places in _TABLE if places.match(place)), None)
        if kind is not None and not (computes and kind is Doing.COLLECTIVE):
            yield kind  # DDP and FSDP wrap modules: running those is not a collective


class StackSample(NamedTuple):
    """The main thread, or the one that it waits for, at one moment."""

    calls: tuple[Call, ...]
    """Newest first."""
    taken_s: float
    syscall: int | None = None
    thread: str | None = None
    """Its name, if it is not the main one."""
    error: str | None = None
    """As a witness has it."""


class _Stand(NamedTuple):
    mark: Mark
    innermost: Call
    first_s: float
    last_s: float
    witness: wire.Witness
    """At the last sample."""


class StandstillWitness:
    """Any thread may read; one adds."""

    def __init__(self) -> None:
        self._stand: _Stand | None = None

    def add(self, sample: StackSample, mark: Mark, *, waits: bool) -> None:
        """Add a sample taken at this mark; `waits`: known to wait for other ranks."""
        index = innermost(sample.calls)
        if index is None:
            return
        stand = self._stand if self._stand is not None and self._stand.mark == mark else None
        if stand is not None and sample.taken_s <= stand.last_s:
            return  # the beat's note, already seen
        frame = frame_of(sample.calls, index)
        waits = waits and sample.thread is None
        doing = doing_of(sample.calls, index, sample.syscall, waits=waits)
        below = (call for call in sample.calls if origin(call.path) <= Origin.INSTALLED)
        at = next(below, sample.calls[0])
        first_s, samples = sample.taken_s, 1
        if stand is not None and (stand.witness.frame, stand.innermost) == (frame, at):
            first_s, samples = stand.first_s, stand.witness.samples + 1
        call, same_s = called_by(sample.calls, index), sample.taken_s - first_s
        witness = wire.Witness(
            frame, doing, samples, same_s, 0.0, call, sample.thread, sample.error
        )
        self._stand = _Stand(mark, at, first_s, sample.taken_s, witness)

    def witness(self, mark: Mark, now_s: float) -> wire.Witness | None:
        """The witness of a rank with this mark now, or at its end; None once it has moved."""
        stand = self._stand
        if stand is None or stand.mark != mark:
            return None
        return replace(stand.witness, age_s=max(0.0, now_s - stand.last_s))
