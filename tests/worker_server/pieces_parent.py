"""Two replica groups whose ranks own a TorchFT Manager for each of two pieces of a model.

`python pieces_parent.py FOLDER`: `a` trains alone, `b` joins and heals both pieces; writes
FOLDER/a.page and FOLDER/b.page, prints how both ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from tests.forks import child
from tests.torchft_groups import lighthouse, manager_of, silence
from tests.waiting import wait_for
from tests.worker_server.torchft_parent import reporter_of

PIECES = (2**18, 2**19)
"""Floats of each."""
TOGETHER = 3


def rank(folder, name, addresses):
    """Every step is one of both pieces; over when `b` made some together with `a`.

    While `b` comes, `a` makes no step, and no heartbeat is late for 5 s: with `b` in the quorum of
    one piece only, `a` would wait for it there, and `b` for `a` in the other.
    """
    torch.set_num_threads(1)
    reporter_of(folder, name)
    joins, joined, done = (Path(folder) / f"b.{word}" for word in ("joins", "joined", "done"))
    if name == "b":
        wait_for(joins.exists, within_s=60, what="a trains")
    owned = [
        manager_of(f"{name}_{piece}", address, torch.zeros(PIECES[piece]), 10)
        for piece, address in enumerate(addresses)
    ]
    managers = [manager for manager, _ in owned]
    if name == "b":
        joined.touch()
    together = 0
    while not done.exists():
        for manager in managers:
            manager.start_quorum()
        for manager in managers:
            manager.allreduce(torch.ones(3)).wait()
        committed = [manager.should_commit() for manager in managers]
        counts = [manager.num_participants() for manager in managers]
        together += all(committed) and counts == [2, 2]
        if name == "b" and together == TOGETHER:
            done.touch()
        if name == "a" and managers[0].current_step() >= 2 and not joins.exists():
            joins.touch()
            wait_for(joined.exists, within_s=60, what="b joins")
        time.sleep(0.02)
    os._exit(0)


def main(folder):
    silence()
    pids, addresses = zip(*(lighthouse(heartbeat_timeout_ms=5000) for _ in PIECES), strict=True)
    ranks = [child(rank, folder, name, addresses) for name in ("a", "b")]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
