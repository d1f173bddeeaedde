"""Where a rank stands that makes no progress: one sample after the other, until it moves.

Two samples agree in the innermost frame of the user's, and in the innermost one outside of the
standard library and torch: a program whose own last line is `trainer.train()` moves below it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from worker_server import wire
from worker_server.sidecar.stacks import Call, Origin, frame_of, innermost, origin, short
from worker_server.wire import Doing

# When a rank makes no progress, and when its stack is looked at for that.
#
# A look reads the process while it runs and stops nothing. It takes 9 ms of a CPU that is not the
# rank's (py-spy 0.4.3, torch 2.13): 0.2 % of a core while a stall is young, 0.03 % later. The
# first look comes after 5 s, the second, which tells standing from passing by, 2 s after that. A
# rank that is known to be at something long, or has not begun its first step, is left alone for
# longer.

_STALL_S = 5.0
"""Longer: the evidence may come after the kill. Shorter: steps of some seconds are no hang."""
_LONG_STALL_S = 30.0
DEAF_S = 3.0
"""Beats come every second. Who missed three cannot run a handler of SIGTERM either."""
_AGAIN_S, _OFTEN_S, _SELDOM_S = 2.0, 5.0, 30.0
_OFTEN_FOR_S = 60.0

Mark = tuple[object, ...]
"""Equal while a rank makes no progress."""


def mark_of(step: wire.StepState | None, heads: Sequence[wire.GroupHead]) -> Mark:
    """What changes with every bit of progress of the rank's own threads that can be seen."""
    ring = (head for head in heads if head.read_age_s is None)
    moves = tuple((head.enqueued, head.completed, head.inside) for head in ring)
    if step is None:
        return (moves,)
    counts = tuple(step.counters.values())
    return (moves, step.progress, step.attempt, step.commits, step.waits_in, counts)


class HangWatch:
    """Follows one rank; `due` is asked about once a second."""

    def __init__(self) -> None:
        self.hanging = False
        """Whether the rank did at the last look."""
        self._mark: Mark | None = None
        self.since_s = 0.0
        """When it moved last."""
        self._first_s: float | None = None
        self._last_s = 0.0
        self._looks = 0

    def due(
        self,
        process: wire.Process,
        step: wire.StepState | None,
        heads: Sequence[wire.GroupHead],
        now_s: float,
    ) -> bool:
        """Whether the rank makes no progress and it is time to look; True counts as a look."""
        mark = mark_of(step, heads)
        if mark != self._mark:
            self._mark, self.since_s, self._first_s, self._looks = mark, now_s, None, 0
        self.hanging = _held(process) or now_s - self.since_s >= _patience_s(step, heads)
        if not self.hanging or process.tracer is not None:
            return False
        if self._first_s is not None and now_s - self._last_s < self._pause_s():
            return False
        self._first_s = now_s if self._first_s is None else self._first_s
        self._last_s = now_s
        self._looks += 1
        return True

    def _pause_s(self) -> float:
        if self._looks == 1:
            return _AGAIN_S
        return _OFTEN_S if self._last_s - (self._first_s or 0.0) < _OFTEN_FOR_S else _SELDOM_S


def _held(process: wire.Process) -> bool:
    age_s = process.interpreter_age_s
    return process.stopped or (age_s is not None and age_s > DEAF_S)


def _patience_s(step: wire.StepState | None, heads: Sequence[wire.GroupHead]) -> float:
    if any(head.enqueued > head.completed for head in heads):
        return _STALL_S
    starting = not heads if step is None else step.phase in wire.LONG_PHASES
    return _LONG_STALL_S if starting else _STALL_S


# What a stack is known to do: by the calls inside of the user's, else by its system call.
#
# A table, in the order in which one kind tells more than another: who imports, saves or compiles
# may take its time, whatever it waits in meanwhile, and who waits for other ranks is no culprit.

_FILES: Final = {
    Doing.START: ("<frozen importlib", "importlib/", "huggingface_hub/", r"torch/hub\.py"),
    Doing.SAVE: (
        "torch/serialization", "torch/distributed/checkpoint/", "torchft/checkpointing/",
        "safetensors/", r"pickle\.py", "orbax/",
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
        "concurrent/", "asyncio/", "filelock/",
    ),
    Doing.IO: (
        r"(selectors|socket|ssl|pathlib|shutil|tempfile|codecs|_pyio|os|gzip|zipfile|tarfile)\.py",
        "http/", "urllib", "requests/", "multiprocessing/connection", "sqlite3/", "numpy/lib/",
        "pandas/io/", "fsspec/", "s3fs/", "boto",
    ),
}  # fmt: skip
"""Below their entry of sys.path; the first kind that fits is a file's. What runs compiled code
is not what compiles."""
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
"""Functions of the user's around it."""
_ORDER: Final = (
    Doing.START, Doing.COLLECTIVE, Doing.SAVE, Doing.COMPILE, Doing.EVALUATE, Doing.DATA,
    Doing.PROCESS, Doing.LOCK, Doing.SLEEP, Doing.IO,
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
    """What a thread does whose innermost call of the user's is `calls[index]`, newest first.

    `waits`: it is known to wait for other ranks. The system call of torch's own C++ tells nothing:
    a backward pass that waits for a peer in DDP's reducer looks like a lock.
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
        kind = next((kind for kind, files in _TABLE if files.match(path)), None)
        if kind is not None and not (computes and kind is Doing.COLLECTIVE):
            yield kind  # DDP and FSDP wrap modules: what these do is not a collective


class StackSample(NamedTuple):
    """The main thread at one moment."""

    calls: tuple[Call, ...]
    """Newest first."""
    taken_s: float
    syscall: int | None = None


class _Stand(NamedTuple):
    mark: Mark
    frame: wire.Frame
    innermost: Call
    doing: wire.Doing
    samples: int
    first_s: float
    last_s: float


class StandstillWitness:
    """Any thread may ask; one adds."""

    def __init__(self) -> None:
        self._stand: _Stand | None = None

    def add(self, sample: StackSample, mark: Mark, *, waits: bool) -> None:
        """One more, of a moment with this mark; `waits`: for others, as far as is known."""
        index = innermost(sample.calls)
        if index is None:
            return
        stand = self._stand if self._stand is not None and self._stand.mark == mark else None
        if stand is not None and sample.taken_s <= stand.last_s:
            return  # the same note of the beat once more
        frame = frame_of(sample.calls, index)
        doing = doing_of(sample.calls, index, sample.syscall, waits=waits)
        below = (call for call in sample.calls if origin(call.path) is not Origin.MACHINERY)
        at = next(below, sample.calls[0])
        first_s, samples = sample.taken_s, 1
        if stand is not None and (stand.frame, stand.innermost) == (frame, at):
            first_s, samples = stand.first_s, stand.samples + 1
        self._stand = _Stand(mark, frame, at, doing, samples, first_s, sample.taken_s)

    def told(self, mark: Mark, now_s: float) -> wire.Witness | None:
        """What the wire says of a rank whose mark this is now; None once it has moved."""
        stand = self._stand
        if stand is None or stand.mark != mark:
            return None
        same_s = stand.last_s - stand.first_s
        age_s = max(0.0, now_s - stand.last_s)
        return wire.Witness(stand.frame, stand.doing, stand.samples, same_s, age_s)
