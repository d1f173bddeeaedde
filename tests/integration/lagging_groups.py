"""Three replica groups of one rank under a real Lighthouse, of which one can be told to lag.

`python -m tests.integration.lagging_groups FOLDER MONITOR`: prints the Lighthouse's address and the
pid of its process as JSON, then trains until its standard input ends. While FOLDER/GROUP.errs
exists, every second attempt of that group meets an error of its own.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo

import worker_server
from tests.forks import child

GROUPS = ("rg_0", "rg_1", "rg_2")


def silence() -> None:
    """What torchft and the Lighthouse log is not the answer."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def lighthouse(pipe: int) -> None:
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=2000, quorum_tick_ms=20,
        heartbeat_timeout_ms=5000,
    )  # fmt: skip
    os.write(pipe, server.address().encode())
    threading.Event().wait()


def rank(folder: Path, name: str, address: str, monitor: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        {
            "REPLICA_GROUP": name, "RANK": "0", "WORLD_SIZE": "1", "LIGHTKEEPER_HOST": f"h-{name}",
            "LIGHTKEEPER_MONITOR": monitor, "LIGHTKEEPER_TOKEN": "secret",
            "LIGHTKEEPER_RUN_DIR": str(folder / "run"), "LIGHTKEEPER_JOB": "lagging",
        }
    )  # fmt: skip
    worker_server.attach()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    weights = {"w": torch.zeros(3)}
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=lambda state: weights.update(w=state["w"].clone()),
        state_dict=lambda: {"w": weights["w"].clone()},
        min_replica_size=1,
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=120),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=name,
        hostname="127.0.0.1",
    )
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
            weights["w"] += grad
        time.sleep(0.2)


def main(folder: Path, monitor: str) -> None:
    silence()
    out, into = os.pipe()
    pids = [child(lighthouse, into)]
    os.close(into)  # or a Lighthouse that ends at once would be waited for for ever
    address = os.read(out, 200).decode()
    if not address:
        sys.exit("no Lighthouse")
    print(json.dumps({"address": address, "pid": pids[0]}), flush=True)
    pids += [child(rank, folder, name, address, monitor) for name in GROUPS]
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
