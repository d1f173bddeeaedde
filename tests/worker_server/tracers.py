"""A debugger in a few lines: `python tracers.py TID [stop]` traces a thread until stdin ends."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SEIZE, _INTERRUPT = 0x4206, 0x4207


@contextmanager
def traced(tid: int, *, stop: bool = False, by: tuple[str, ...] = ()) -> Iterator[int]:
    """A thread while it is traced (held if `stop`); the pid of the tracer or of what runs it."""
    command = [*by, sys.executable, "-S", __file__, str(tid), *(["stop"] if stop else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tracer:
        assert tracer.stdin is not None
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == b"traced\n"
        yield tracer.pid
        tracer.stdin.close()
        tracer.wait(10)


if __name__ == "__main__":
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if ptrace(_SEIZE, int(sys.argv[1]), None, None):
        sys.exit(f"errno {ctypes.get_errno()}")
    if sys.argv[2:]:
        ptrace(_INTERRUPT, int(sys.argv[1]), None, None)
        import os

        os.waitpid(int(sys.argv[1]), 0x40000000)  # __WALL
    print("traced", flush=True)
    sys.stdin.read()
