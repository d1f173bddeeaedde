"""`-m lightkeeper.worker_server.sidecar.witnesses RUN_DIR`: a sidecar starts it, see `machine`.

It ends when its standard input does, that is with its sidecar, whatever its threads wait for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path


def _end_with_the_sidecar(file: Path) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
        file.unlink(missing_ok=True)
    os._exit(0)


if __name__ == "__main__":
    from lightkeeper.worker_server.sidecar.machine import FILE
    from lightkeeper.worker_server.sidecar.witnesses.panel import sit

    folder = Path(sys.argv[1])
    threading.Thread(target=_end_with_the_sidecar, args=(folder / FILE,), daemon=True).start()
    with contextlib.suppress(OSError):
        os.nice(10)
    sit(folder)
