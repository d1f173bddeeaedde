"""`-m lightkeeper.worker_server.sidecar PAGE [PIDFD]`: `attach` starts it; it outlives the rank.

It detaches before any heavy import, so that the rank has no child left: a training script that
waits for its own children must not find ours.

A module beside the training script may have the name of one that we need (`secrets.py`): what the
rank's PYTHONPATH has comes last here.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the rank, or its beat, may block some
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or ignore this one: py-spy would have no status
    theirs = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)[1:])]
    sys.path.sort(key=lambda entry: entry in theirs)
    if os.fork():
        os._exit(0)
    from pathlib import Path

    from lightkeeper.worker_server.sidecar.serve import serve_rank

    sys.exit(serve_rank(Path(sys.argv[1]), *map(int, sys.argv[2:])))
