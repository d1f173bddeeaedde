"""How long ProcessGroupGloo is configured for a quorum, by the number of groups; forked processes.

The yardstick is the least that any rendezvous through a TCPStore does: a connection to it, a key
set, and the keys of all others read. Rounds of the two take turns; of a round the slowest counts.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions
from torchft.process_group import ProcessGroupGloo, create_store_client

WARM_UP = 2
LIMIT_S = 60.0
ALL_S = 300.0
"""Of all rounds together: a name server that does not answer costs 5 s each time."""
Row = dict[str, Any]


def member(rank: int, world: int, rounds: int, barrier: Any, port: Any, pipe: Any) -> None:
    """One group's rank: configured again and again, once for each quorum."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT_S)
    store = None
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port.value = store.port
    barrier.wait(LIMIT_S)
    group = ProcessGroupGloo(timeout=limit)
    took, plain = [], []
    for quorum in range(rounds + WARM_UP):
        address = f"127.0.0.1:{port.value}/{quorum}"
        barrier.wait(LIMIT_S)
        began_s = time.perf_counter()
        _meet(f"{address}/plain", rank, world, limit)
        plain.append(time.perf_counter() - began_s)
        barrier.wait(LIMIT_S)
        began_s = time.perf_counter()
        group.configure(f"{address}/group", f"rg_{rank}", rank, world, quorum)
        took.append(time.perf_counter() - began_s)
        ones = torch.ones(3)
        group.allreduce([ones], AllreduceOptions()).wait()
        assert ones.tolist() == [world] * 3
    pipe.send((took[WARM_UP:], plain[WARM_UP:]))
    barrier.wait(LIMIT_S)  # the store is rank 0's: nobody may be left without it


def _meet(address: str, rank: int, world: int, limit: timedelta) -> None:
    store = create_store_client(address, timeout=limit)
    store.set(str(rank), "here")
    for other in range(world):
        store.get(str(other))


def measure(world: int, rounds: int) -> Row:
    """A row: of each round the slowest member."""
    fork = multiprocessing.get_context("fork")
    barrier, port = fork.Barrier(world), fork.Value("i", 0)
    pipes, members = [], []
    for rank in range(world):
        ours, theirs = fork.Pipe()
        pipes.append(ours)
        process = fork.Process(
            target=member, args=(rank, world, rounds, barrier, port, theirs), daemon=True
        )
        process.start()
        members.append(process)
    try:
        answers = []
        for pipe, process in zip(pipes, members, strict=True):
            if not pipe.poll(ALL_S):
                raise RuntimeError(f"a group does not answer (exit status {process.exitcode})")
            answers.append(pipe.recv())
    finally:
        for process in members:
            process.join(10)
            process.kill()
    return {
        "what": "reconfigure",
        "groups": world,
        "took_s": [max(row) for row in zip(*(took for took, _ in answers), strict=True)],
        "yard": "a meeting in a TCPStore",
        "yard_s": [max(row) for row in zip(*(plain for _, plain in answers), strict=True)],
    }
