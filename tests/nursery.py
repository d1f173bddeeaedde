"""Processes without the price of their imports: forks of one that has made them, for all tests of a
worker. `nursery("torch").start(["train.py", "--steps", "3"], environ)` is what `Popen` of this
interpreter with these words is, less the seconds of CPU for torch and TorchFT.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.forks import light
from tests.waiting import wait_for

ROOT: Final = Path(__file__).parents[1]
_IMPORTED: Final = {
    "torch": (
        "torch", "torch._dynamo",  # an optimizer imports it at its first step
        "torch.nn.parallel", "torch.utils.data", "torch.distributed.checkpoint",
        "torch.distributed.fsdp", "torch.distributed.pipelining", "torchft",
        "lightkeeper.trainer.train",
    ),
    "distributed": ("torch.distributed",),
    "rank": ("lightkeeper.worker_server.rank.attach",),
    "monitor": ("lightkeeper.monitor.commands.run", "lightkeeper.monitor.commands.gate"),
}  # fmt: skip
_PR_SET_PDEATHSIG: Final = 1


class Child:
    """As `subprocess.Popen` has it."""

    def __init__(self, ask: Callable[..., Any], pid: int) -> None:
        self._ask, self.pid = ask, pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._ask(status=self.pid)
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        try:
            wait_for(lambda: self.poll() is not None, within_s=timeout, what="it ends")
        except AssertionError as exc:
            raise subprocess.TimeoutExpired("a fork", timeout) from exc
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process whose forks the scripts are; they die with it, and it with this one."""

    def __init__(self, kind: str) -> None:
        own = {name: text for name, text in os.environ.items() if "LIGHTKEEPER" not in name}
        own |= {"OMP_NUM_THREADS": "1", "RUST_LOG": "error", "PYTHONPATH": str(ROOT)}
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.nursery", kind], env=own, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            return json.loads(self._process.stdout.readline())

    def start(
        self, words: Sequence[str | Path], environ: Mapping[str, str], *,
        out: Path | None = None, err: Path | None = None, cwd: Path = ROOT,
    ) -> Child:  # fmt: skip
        """A script, or `-m` and a module, or `-c` and code, with its arguments and variables.

        Args:
            words: what stands behind `python`.
            environ: all variables.
            out: gets what it prints; None: nobody does.
            err: gets what it says on stderr; None: nobody does.
            cwd: where it begins.
        """
        pid = self._ask(
            words=[*map(str, words)], environ={**environ}, cwd=str(cwd),
            into=[str(path or os.devnull) for path in (out, err)],
        )  # fmt: skip
        return Child(self._ask, pid)


def opened_here(number: int) -> Path:
    """A file of this process by its descriptor, for a child to open: an unnamed one, or stderr."""
    return Path(f"/proc/{os.getpid()}/fd/{number}")


@functools.cache
def nursery(kind: str) -> Nursery:
    """This worker's, by what it has imported: torch and TorchFT, torch.distributed alone, what an
    attach needs, or monitor and gate.
    """
    return Nursery(kind)


# -- in the process -------------------------------------------------------------------------------


def never_freed(make: Callable[..., Any]) -> Callable[..., Any]:
    """A Reducer that is freed joins gloo's thread and holds the GIL, for which that may wait.

    Work that is done releases the Python context of the backward pass. So any DDP job on gloo can
    hang at its end (torch 2.13, pytorch issue 56297; seen twice here).
    """

    def made(*args: Any, **options: Any) -> Any:
        reducer = make(*args, **options)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(reducer))
        return reducer

    return made


def _live(order: dict[str, Any]) -> None:
    """What a fork does instead of going on: the script, as a process of its own would."""
    words = order["words"]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, path in enumerate(order["into"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644), stream)
    sys.orig_argv, sys.argv = [sys.executable, *words], words
    if "torch" in sys.modules:
        from lightkeeper import autoload

        autoload()  # as `import torch` does at its end
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        exec(words[1], {"__name__": "__main__"})
    else:
        runpy.run_path(words[0], run_name="__main__")


def main(kind: str) -> None:
    for name in _IMPORTED[kind]:
        importlib.import_module(name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.distributed.Reducer = never_freed(torch.distributed.Reducer)
    light()
    for line in sys.stdin:
        order = json.loads(line)
        if "status" in order:
            pid, status = os.waitpid(order["status"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        elif not (answer := os.fork()):
            return _live(order)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # to collect torch's garbage takes seconds


if __name__ == "__main__":
    main(sys.argv[1])
