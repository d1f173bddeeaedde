"""`-m experiments.netlab.inside PID SCRIPT ...`, or `-m` and a module instead of the script, in a
fork of a nursery: it becomes a process of the host whose first one has that pid.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
from typing import Final

_NAMESPACES: Final = 0x40000000 | 0x20000000 | 0x04000000 | 0x00020000
"""Network, pids, name and mounts."""
_PR_SET_PDEATHSIG: Final = 1


def main(first: str, *words: str) -> None:
    """A rank of a watched job attaches, as under `lightkeeper run`."""
    libc, folder = ctypes.CDLL(None, use_errno=True), os.getcwd()
    if libc.setns(os.pidfd_open(int(first)), _NAMESPACES):
        raise OSError(ctypes.get_errno(), "no way into the host")
    if pid := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) % 256)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.chdir(folder)
    os.nice(1)
    sys.orig_argv, sys.argv = [sys.executable, *words], [*words]
    if words[0] == "-m":
        del sys.argv[0]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    if "LIGHTKEEPER_MONITOR" in os.environ:
        from lightkeeper import autoload

        os.environ["LIGHTKEEPER_ATTACH"] = "1"
        autoload()
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
