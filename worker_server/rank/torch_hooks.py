"""What torch calls back for: its own import, each compilation, each step of an optimizer.

- *Import.* Act as soon as torch (or a part of torchft) is imported, without importing it. The
  moment is the end of `import torch`: torch.distributed is imported in the middle of it, when half
  of torch is missing.
- *Compilations* by torch.compile are declared as the tag `compile`. A recompilation in the middle
  of a run takes a rank tens of seconds while all others wait for it, and looks like a hang. torch
  calls back when dynamo begins to trace a frame, when a backward pass is compiled late and when
  CUDA graphs are recorded, and again at the end. It costs nothing otherwise.
  `torch._dynamo.reset()` forgets all listeners, and so us.
- *Steps* of a loop that reports nothing: each step of its first optimizer is a step. torch calls a
  global hook after each `Optimizer.step`; ours takes a microsecond. Of several optimizers only the
  first to step is counted (a GAN's critic steps more often than its generator), and another one
  once that is gone or long silent. A step that a GradScaler skips, for an overflow, does not call
  the optimizer and is not counted. With a TorchFT Manager the votes are the commits, and steps
  between two votes (LocalSGD, DiLoCo) are local ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from lightkeeper.worker_server.harmless import warn
from lightkeeper.worker_server.rank.reporter import Reporter, ReportSource


def when_imported(name: str, act: Callable[[], None]) -> None:
    """Call `act` now if this module is imported, else right after its import.

    A fixed moment, not "a second later": every rank must count its collectives from the first.
    """
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _Watcher(name, act))


class _Watcher(MetaPathFinder):
    """Lets the other finders find the module, and calls `act` after its import.

    A query for the spec is no import: libraries call `importlib.util.find_spec("torch")` to see
    whether torch is installed. So it watches until an import was carried out.
    """

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._over = False
        self._asking: set[int] = set()
        """Threads in which the other finders are being asked: they may call back."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        me = threading.get_ident()
        if fullname != self._name or self._over or me in self._asking:
            return None
        self._asking.add(me)
        try:
            spec = self._ask_others(fullname, path, target)
        finally:
            self._asking.discard(me)
        if spec is not None and spec.loader is not None:
            _tell_import(spec.loader, fullname, self._imported)
        return spec

    def _ask_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in tuple(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(fullname, path, target)
            if spec is not None:
                return spec
        return None

    def _imported(self) -> None:
        if self._over:
            return
        self._over = True
        with contextlib.suppress(ValueError):  # others may have removed it
            sys.meta_path.remove(self)
        self._act()


def _tell_import(loader: Loader, name: str, act: Callable[[], None]) -> None:
    """Call `act` when this loader, which may load other modules too, has executed this one."""
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:
            vars(loader).pop("exec_module", None)
            act()

    loader.exec_module = exec_module  # type: ignore[method-assign]


# -- compilations --------------------------------------------------------------------------------


def declare_compilations(reporter: Reporter) -> None:
    """Tag every compilation of this process from now on; does not import dynamo."""
    when_imported("torch._dynamo.callback", lambda: _listen(reporter.tag("compile")))


def _listen(tag: AbstractContextManager[Any]) -> None:
    """Never raises: it runs inside an import, and other torch versions differ there."""
    try:
        from torch._dynamo.callback import callback_handler  # noqa: PLC0415  it is there

        def end(*_: object) -> None:
            tag.__exit__(None, None, None)

        # older torches call back without arguments
        callback_handler.register_start_callback(lambda *_: tag.__enter__())
        callback_handler.register_end_callback(end)
    except Exception as exc:  # noqa: BLE001
        warn(f"lightkeeper does not see what torch.compile does: {exc!r}")


# -- steps of an optimizer -----------------------------------------------------------------------

_SILENT = 64
"""Steps of other optimizers without one of the counted one, after which another is counted: more
than any critic takes per step of its generator, and a few minutes of training at most."""


class StepCounter:
    """Counts the steps of one optimizer. Never raises: the source does not, and the rest cannot."""

    def __init__(self, source: ReportSource) -> None:
        self._source = source
        self._steps = 0
        self._others = 0
        self._counted: weakref.ref[Any] | None = None

    def __call__(self, optimizer: Any) -> None:
        """After `optimizer.step()`."""
        counted = self._counted
        if counted is None or counted() is not optimizer:
            self._others += 1
            if counted is not None and counted() is not None and self._others < _SILENT:
                return
            self._counted = weakref.ref(optimizer)
        self._others = 0
        step = self._steps
        self._steps = step + 1
        self._source.count_step(step)


def count_steps(source: ReportSource) -> None:
    """Count every optimizer's steps in this process from now on; torch is imported."""
    import torch  # noqa: PLC0415  imported already
    from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: PLC0415

    counter = StepCounter(source)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        if not torch.compiler.is_compiling():  # a compiled step is traced: nothing of ours in it
            counter(optimizer)

    register_optimizer_step_post_hook(after_step)


# -- torch's own C++ control plane, started in the rank on a unix socket --------------------------
# It serves Flight Recorder dumps without the GIL, so it answers when the rank's Python cannot.
# Known failures, and how they are avoided here (facts: torch 2.13.0):
#
# - A Python handler, or a server whose last reference is dropped, turns a successful exit into
#   SIGABRT: there are no Python handlers, and the server is referenced forever (also in forked
#   children, where dropping it would shut the parent's socket down).
# - `shutdown()` may hang and is never called: the socket dies with the process.
# - A process that exits before the server listens may hang: it is pinged once.
# - A request while the process's exit destroys the table of handlers is a SIGSEGV after a good run
#   (seen under constant requests): the socket's name goes first.

_PING_TIMEOUT_S = 1.0
_ERRORS_ONLY = 2
_pinned: list[Any] = []


def start_control_plane(path: Path) -> bool:
    """Serve torch's control plane on `path`; False when this torch has none.

    Call only when torch.distributed is imported. At most one per process.
    """
    if _pinned:
        return True
    try:
        from torch._C._distributed_c10d import _WorkerServer  # noqa: PLC0415
    except ImportError:
        return False
    with _quiet():
        server = _WorkerServer(str(path))
    _pinned.append(server)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))
    path.chmod(0o600)
    return _ping(path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warning with which torch announces its server: stderr is the job's."""
    try:
        library = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (KeyError, OSError, ValueError):  # another torch logs differently: one line more
        yield
        return
    before, level.value = level.value, max(level.value, _ERRORS_ONLY)
    try:
        yield
    finally:
        level.value = before


def _ping(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PING_TIMEOUT_S)
            connection.connect(str(path))
            connection.sendall(
                b"POST /handler/ping HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
                b"Connection: close\r\n\r\n"
            )
            return connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        return False
