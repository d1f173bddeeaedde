"""Two replica groups whose ranks own a TorchFT Manager for each of two pieces of a model.

`python pieces_parent.py FOLDER`: `a` trains alone, `b` joins and heals both pieces; writes
FOLDER/a.page and FOLDER/b.page, prints how both ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.forks import child
from tests.worker_server.torchft_parent import lighthouse, reporter_of, silence

PIECES = (2**18, 2**19)
"""Floats of each."""
TOGETHER = 3


def manager_of(name, piece, address):
    """One piece's Manager, with a store and a Lighthouse of its own."""
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    weights = torch.zeros(PIECES[piece])
    made = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=20)),
        load_state_dict=lambda state: weights.copy_(state["w"]),
        state_dict=lambda: {"w": weights},
        min_replica_size=1,
        timeout=timedelta(seconds=20),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=f"{name}_{piece}",
        hostname="127.0.0.1",
    )
    return made, store


def rank(folder, name, addresses):
    """Every step is one of both pieces; over when both groups made some together."""
    torch.set_num_threads(1)
    reporter_of(folder, name)
    joins = Path(folder) / "b.joins"
    while name == "b" and not joins.exists():
        time.sleep(0.01)
    owned = [manager_of(name, piece, address) for piece, address in enumerate(addresses)]
    managers = [manager for manager, _ in owned]
    together = 0
    while together < TOGETHER:
        for manager in managers:
            manager.start_quorum()
        for manager in managers:
            manager.allreduce(torch.ones(3)).wait()
        committed = [manager.should_commit() for manager in managers]
        counts = [manager.num_participants() for manager in managers]
        together += all(committed) and counts == [2, 2]
        if managers[0].current_step() == 2:
            joins.touch()
        time.sleep(0.02)
    os._exit(0)


def main(folder):
    silence()
    pids, addresses = [], []
    for _ in PIECES:
        out, into = os.pipe()
        pids.append(child(lighthouse, into))
        os.close(into)
        addresses.append(os.read(out, 200).decode())
    ranks = [child(rank, folder, name, addresses) for name in ("a", "b")]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
