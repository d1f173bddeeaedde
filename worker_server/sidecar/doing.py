"""What a stack is known to do: by the calls inside of the user's, else by its system call.

A table, in the order in which one kind tells more than another: who imports, saves or compiles may
take its time, whatever it waits in meanwhile, and who waits for other ranks is no culprit.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Sequence
from typing import Final

from worker_server.sidecar.user_code import Call, Origin, origin, short
from worker_server.wire import Doing

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
