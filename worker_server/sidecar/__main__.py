"""`-m lightkeeper.worker_server.sidecar PAGE [PIDFD]`: `attach` starts it; it outlives the rank.

It detaches before any heavy import, so that the rank has no child left: a training script that
waits for its own children must not find ours.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    from pathlib import Path

    from lightkeeper.worker_server.sidecar.serve import serve_rank

    sys.exit(serve_rank(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None))
