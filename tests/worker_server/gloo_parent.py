"""Imports torch once and forks pairs of gloo ranks on demand; rank 1 of a pair misbehaves.

`python gloo_parent.py`, then on stdin one line a pair: `GROUP FATE PORT`. Answers with the two
pids as JSON. Rank 1 meets its fate once there is a file GROUP.go in the run directory.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import lightkeeper
from lightkeeper.worker_server.rank import attach  # noqa: F401  once for all
from tests import forks


def births(line):
    group, fate, port = line.split()
    return [functools.partial(live, group, fate, int(port), rank) for rank in (0, 1)]


def live(group, fate, port, rank):
    os.environ.update(
        REPLICA_GROUP=group, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo",
    )  # fmt: skip
    torch.set_num_threads(1)
    reporter = lightkeeper.attach()
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    go = Path(os.environ["LIGHTKEEPER_RUN_DIR"]) / f"{group}.go"
    for step in range(10**9):
        due = rank == 1 and go.exists()
        train_step(reporter, step, fate if due else None)


def train_step(reporter, step, fate):
    reporter.begin_step(step)
    with reporter.phase("forward"):
        time.sleep(0.01)
        forward_of_the_culprit(fate)
    with reporter.phase("communication"):
        dist.all_reduce(torch.ones(8))
    reporter.end_step(step, committed=True, loss=1.0)


def forward_of_the_culprit(fate):
    match fate:
        case "hung":
            time.sleep(1000)
        case "gil":
            ctypes.PyDLL(None).sleep(1000)  # PyDLL keeps the GIL during the call
        case "sigstop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "exception":
            raise ValueError("as training does")


if __name__ == "__main__":
    life = forks.serve(births)
    life()
