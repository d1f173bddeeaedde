"""Forks children on demand from a process that has imported what is slow to import.

A forked child leaves the loop before it lives, so that it ends as a script of its own would.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import traceback

_PR_SET_PDEATHSIG = 1


def child(life, *args):
    """The pid of a child that lives this and ends, whatever happens in it; it dies with its parent.

    One that came back from its life would go on with its parent's work, in whose list of children
    it is number 0: whoever kills that kills the whole process group, pytest and make as well.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            life(*args)
    finally:
        failed = sys.exc_info()[0] is not None
        if failed:
            traceback.print_exc()
        os._exit(7 if failed else 0)


def light():
    """Before forking: what is there now is no child's garbage. At its end a child would look at
    all of torch's objects, and copy their pages: 0.4 s of CPU (seen)."""
    gc.collect()
    gc.freeze()


def serve(births):
    """Fork until stdin ends, a line an order; returns what the caller is to do next.

    `births(line)` gives the lives that a line asks for, one function a child. Answers a line with
    the children's pids as JSON.
    """
    signal.signal(signal.SIGCHLD, _reap)
    light()
    for line in sys.stdin:
        pids = []
        for life in births(line):
            pid = os.fork()
            if not pid:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                return life
            pids.append(pid)
        print(json.dumps(pids), flush=True)
    return lambda: None


def _reap(*_):
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
