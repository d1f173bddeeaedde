"""Processes without the price of their imports: forks of one that has made them, for all workers of
pytest. `nursery("torch").start(["train.py", "--steps", "3"], environ)` is what `Popen` of this
interpreter with these words is, less the seconds of CPU for torch and TorchFT.

The first worker that needs a nursery starts it, at an address in the kernel; the others find it
there. It ends with the process that the workers belong to, and a worker's children with the worker.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.forks import light
from tests.waiting import AT_LEAST_S, wait_for

ROOT: Final = Path(__file__).parents[1]
_ATTACHED: Final = tuple(
    f"lightkeeper.worker_server.rank.{name}"
    for name in ("attach", "collectives", "loop", "process_groups", "torchft")
)
_IMPORTED: Final = {
    "torch": (
        "torch", "torch._dynamo",  # an optimizer imports it at its first step
        "torch.nn.parallel", "torch.utils.data", "torch.distributed.checkpoint",
        "torch.distributed.fsdp", "torch.distributed.pipelining", "torchft",
        "torch.distributed.checkpoint._fsspec_filesystem",  # which checkpoints import, 0.2 s
        "lightkeeper.trainer.train", *_ATTACHED,
    ),
    "distributed": ("torch.distributed", *_ATTACHED),
    "rank": _ATTACHED[:1],
    "sidecar": ("lightkeeper.worker_server.sidecar.serve",),
    "monitor": (
        "lightkeeper.monitor.commands.run", "lightkeeper.monitor.commands.gate",
        "lightkeeper.monitor.store.database",
    ),
}  # fmt: skip
SIDECARS: Final = "SIDECARS_OF_TESTS"
"""Environment variable: which nursery forks the WorkerServers of ranks (`tests.sidecars`)."""
_PR_SET_PDEATHSIG: Final = 1
_LONGEST: Final = 1 << 20
"""Bytes of an order."""


class Child:
    """As `subprocess.Popen` has it."""

    def __init__(self, ask: Callable[..., Any], pid: int) -> None:
        self._ask, self.pid = ask, pid
        self._ends = os.pidfd_open(pid)  # it is not reaped before it is asked about
        self.returncode: int | None = None
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None

    def poll(self) -> int | None:
        return self._code(within_s=0)

    def wait(self, timeout: float = 60.0) -> int:
        timeout = max(timeout, AT_LEAST_S)
        code = self._code(within_s=timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout)
        return code

    def _code(self, within_s: float) -> int | None:
        if self.returncode is None:
            ends = select.poll()
            ends.register(self._ends, select.POLLIN)
            if ends.poll(1000 * within_s):
                self.returncode = self._ask(status=self.pid)
                os.close(self._ends)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process whose forks the scripts are; it is started where there is none yet."""

    def __init__(self, kind: str) -> None:
        self._lock = threading.Lock()
        owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        self.name = f"lightkeeper-tests-{owner}-{kind}"
        address = f"\0{self.name}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
            except OSError:  # another worker has it
                pass
            else:
                listener.listen()
                self._start(kind, owner, listener.fileno())
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        wait_for(lambda: self._connected(address), within_s=30, what=f"the nursery of {kind}")

    def _connected(self, address: str) -> bool:
        return self._socket.connect_ex(address) == 0

    def _start(self, kind: str, owner: int, listener: int) -> None:
        own = {name: text for name, text in os.environ.items() if "LIGHTKEEPER" not in name}
        own |= {"OMP_NUM_THREADS": "1", "RUST_LOG": "error", "PYTHONPATH": str(ROOT)}
        words = ("-m", "tests.nursery", kind, str(owner), str(listener))
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", *words], env=own, cwd=ROOT,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(listener,),
        )  # fmt: skip

    def _ask(self, streams: Sequence[int] = (), **order: Any) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
            return json.loads(self._socket.recv(_LONGEST))

    def start(
        self, words: Sequence[str | Path], environ: Mapping[str, str], *,
        out: Path | None = None, err: Path | None = None, cwd: Path = ROOT, talks: bool = False,
        whole: bool = False,
    ) -> Child:  # fmt: skip
        """A script, or `-m` and a module, or `-c` and code, with its arguments and variables.

        Args:
            words: what stands behind `python`.
            environ: all variables.
            out: gets what it prints; None: nobody does.
            err: gets what it says on stderr; None: nobody does.
            cwd: where it begins.
            talks: its stdin and stdout are pipes of the child's that is returned.
            whole: it also takes down its interpreter at its end, and all that torch has made.
        """
        reads, into = os.pipe() if talks else (os.open(os.devnull, os.O_RDONLY), None)
        comes, prints = os.pipe() if talks else (None, _appended(out))
        streams = (reads, prints, _appended(err))
        try:
            pid = self._ask(
                streams, words=[*map(str, words)], environ={**environ}, cwd=str(cwd), whole=whole
            )  # fmt: skip
        finally:
            for stream in streams:
                os.close(stream)
        child = Child(self._ask, pid)
        if into is not None and comes is not None:
            child.stdin, child.stdout = open(into, "w"), open(comes)  # noqa: SIM115
        return child


def _appended(path: Path | None) -> int:
    return os.open(path or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def opened_here(number: int) -> Path:
    """A file of this process by its descriptor, for a child to open: an unnamed one, or stderr."""
    return Path(f"/proc/{os.getpid()}/fd/{number}")


@functools.cache
def nursery(kind: str) -> Nursery:
    """By what it has imported: torch and TorchFT, torch.distributed alone, or what an attach, a
    WorkerServer, monitor and gate need.
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


def _live(order: dict[str, Any], streams: Sequence[int]) -> None:
    """What a fork does instead of going on: the script, as a process of its own would."""
    words = order["words"]
    if "stays" in order:
        os.setpgid(0, 0)
    else:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11: its parent's
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environ"])
    time.tzset()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - seeks no more
    os.closerange(len(streams), os.sysconf("SC_OPEN_MAX"))  # what is the nursery's
    sys.orig_argv, sys.argv = [sys.executable, *words], words
    if SIDECARS in os.environ and "stays" not in order:
        from tests import sidecars

        sidecars.install()
    if "torch" in sys.modules:
        from lightkeeper import autoload

        autoload()  # as `import torch` does at its end
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.modules["__main__"] = main_module = types.ModuleType("__main__")
        exec(words[1], main_module.__dict__)
    else:
        runpy.run_path(words[0], run_name="__main__")


class Forking:
    """Forks for whoever is connected."""

    def __init__(self, owner: int, listener: socket.socket) -> None:
        self._ready = selectors.DefaultSelector()
        self._ready.register(os.pidfd_open(owner), selectors.EVENT_READ, "owner")
        self._ready.register(listener, selectors.EVENT_READ, "listener")
        self._children: dict[socket.socket, set[int]] = {}

    def until_fork(self) -> tuple[dict[str, Any], Sequence[int]]:
        """Serve; returns in a child, with what it is to be."""
        while True:
            for key, _ in self._ready.select():
                if key.data == "owner":
                    os._exit(0)  # to collect torch's garbage takes seconds; children die with us
                if key.data == "listener":
                    self._welcome(key.fileobj)
                elif (life := self._answer(key.fileobj)) is not None:
                    return life

    def _welcome(self, listener: Any) -> None:
        worker, _ = listener.accept()
        peer = worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", peer)[1] != os.getuid():
            worker.close()
            return
        self._children[worker] = set()
        self._ready.register(worker, selectors.EVENT_READ)

    def _answer(self, worker: Any) -> tuple[dict[str, Any], Sequence[int]] | None:
        line, streams, _, _ = socket.recv_fds(worker, _LONGEST, 4)
        children = self._children[worker]
        if not line:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            del self._children[worker]
            self._ready.unregister(worker)
            worker.close()
            return None
        order = json.loads(line)
        if "status" in order:
            pid, status = os.waitpid(order["status"], 0)
            children.discard(pid)
            answer = os.waitstatus_to_exitcode(status)
        elif not (answer := os.fork()):
            return order, streams
        else:
            if "stays" not in order:
                children.add(answer)
            for stream in streams:
                os.close(stream)
        worker.send(json.dumps(answer).encode())
        return None


_status: int | None = None
"""With which a fork ends, once it is known."""


def _leave() -> None:
    """After all else that is to be done at the end: to free the modules, which are the nursery's,
    takes 0.3 s of CPU with torch, 0.06 s in a monitor, 0.02 s in a WorkerServer."""
    if _status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_status)


def _live_and_leave(order: dict[str, Any], streams: Sequence[int]) -> None:
    global _status  # noqa: PLW0603  it is asked for at exit
    try:
        _live(order, streams)
        _status = 0
    except SystemExit as exc:
        code = 0 if exc.code is None else exc.code
        _status = code & 0xFF if isinstance(code, int) else 1
        raise
    except Exception:
        _status = 1
        raise


def main(kind: str, owner: str, listener: str) -> None:
    atexit.register(_leave)  # before the imports, so that it comes last
    with warnings.catch_warnings(action="ignore"):
        for name in _IMPORTED[kind]:
            importlib.import_module(name)
    if paging := sys.modules.get("lightkeeper.monitor.show.web.paging"):
        paging.compile_templates()  # 0.5 s of CPU in each monitor
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.distributed.Reducer = never_freed(torch.distributed.Reducer)
    service = Forking(int(owner), socket.socket(fileno=int(listener)))
    light()
    order, streams = service.until_fork()
    del service
    (_live if order.get("whole") else _live_and_leave)(order, streams)


if __name__ == "__main__":
    main(*sys.argv[1:])
