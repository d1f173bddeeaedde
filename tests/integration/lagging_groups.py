"""Three replica groups of one rank under a real Lighthouse, of which one can be told to lag.

`python -m tests.integration.lagging_groups FOLDER MONITOR`: prints the Lighthouse's address and the
pid of its process as JSON, then trains until it is ended. While FOLDER/GROUP.errs
exists, every second attempt of that group meets an error of its own.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch

import lightkeeper
from tests.forks import child
from tests.torchft_groups import lighthouse, manager_of, silence

GROUPS = ("rg_0", "rg_1", "rg_2")


def rank(folder: Path, name: str, address: str, monitor: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        {
            "REPLICA_GROUP": name, "RANK": "0", "WORLD_SIZE": "1", "LIGHTKEEPER_HOST": f"h-{name}",
            "LIGHTKEEPER_MONITOR": monitor, "LIGHTKEEPER_TOKEN": "secret",
            "LIGHTKEEPER_RUN_DIR": str(folder / "run"), "LIGHTKEEPER_JOB": "lagging",
        }
    )  # fmt: skip
    lightkeeper.attach()
    weights = torch.zeros(3)
    manager, _store = manager_of(
        name, address, weights, 60,
        gloo_timeout=timedelta(seconds=10), quorum_timeout=timedelta(seconds=120),
    )  # fmt: skip
    errs = folder / f"{name}.errs"
    attempt = 0
    while True:
        attempt += 1
        manager.start_quorum()
        grad = torch.ones(3)
        manager.allreduce(grad).wait()
        if attempt % 2 and errs.exists():
            manager.report_error(RuntimeError("a card that fails"))
        if manager.should_commit():
            weights += grad
        time.sleep(0.2)


def main(folder: Path, monitor: str) -> None:
    silence()
    pid, address = lighthouse(join_timeout_ms=2000, heartbeat_timeout_ms=5000)
    print(json.dumps({"address": address, "pid": pid}), flush=True)
    for name in GROUPS:
        child(rank, folder, name, address, monitor)
    signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
