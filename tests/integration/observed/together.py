"""The campaign's forks, but no rank asks for its first quorum before all are told to.

Without it the first quorum is of whoever was there first, and two runs of one seed differ by that.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from experiments import forks


def hold_back(folder: Path) -> None:
    """Let every rank say that it is ready, and wait for the file `go`, before its first quorum."""
    from torchft import Manager

    start = Manager.start_quorum

    def first(self: Manager, *words: object, **named: object) -> None:
        Manager.start_quorum = start
        (folder / f"ready-{os.environ['REPLICA_GROUP']}.{os.environ['RANK']}").touch()
        while not (folder / "go").exists():
            time.sleep(0.02)
        start(self, *words, **named)

    Manager.start_quorum = first


if __name__ == "__main__":
    hold_back(Path(sys.argv[1]).parent)
    forks.main()
