"""torch's own C++ control plane, started in the rank on a unix socket.

It answers Flight Recorder dumps without the GIL, so it speaks when the rank's Python cannot.
What is known to end badly, and how it is avoided here (facts: torch 2.13.0):

- A Python handler, or a server whose last reference is dropped, turns a successful exit into
  SIGABRT: there are no Python handlers, and the server is referenced for ever (also in forked
  children, where dropping it would shut the parent's socket down).
- `shutdown()` may hang and is never called: the socket dies with the process.
- A process that exits before the server listens may hang: it is pinged once.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PING_TIMEOUT_S = 1.0
_ERRORS_ONLY = 2
_pinned: list[Any] = []


def start(path: Path) -> bool:
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
    """Torch announces its server as a warning on stderr, which is the job's and not ours."""
    try:
        library = Path(sys.modules["torch"].__file__ or "").parent / "lib" / "libc10.so"
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (KeyError, OSError, ValueError):  # a torch that logs in another way: one line more
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
