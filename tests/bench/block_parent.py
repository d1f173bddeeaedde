"""Imports torch and TorchFT once and forks training runs ("blocks") on demand.

`python block_parent.py`, then on stdin one JSON object a line: {"kind": "loop" | "trainer" |
"lighthouse", "attached": bool, "log": path, ...}. Answers with the pids. Every rank appends the
seconds of each step (of a loop: the mean of ten all-reduces) to its log, with the time.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torchft  # noqa: F401 - the trainer's forks shall not pay for it

import lightkeeper
from lightkeeper.trainer import train as trainer
from tests import forks

LOOP_FLOATS = 1000
OPS_A_STEP = 10


def births(line):
    order = json.loads(line)
    return [functools.partial(live, order, rank) for rank in range(order.get("ranks", 1))]


def live(order, rank):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    LIVES[order["kind"]](order, rank)


def settle(order, rank):
    """The environment that a launcher would give."""
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(order["ranks"]), REPLICA_GROUP=order["group"],
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(order["port"]), GLOO_SOCKET_IFNAME="lo",
        LIGHTKEEPER="1" if order["attached"] else "0",
    )  # fmt: skip
    if "cpu" in order:
        os.sched_setaffinity(0, {order["cpu"]})
    torch.set_num_threads(1)


def loop(order, rank):
    """Nothing but small all-reduces: the worst case for whoever records them."""
    settle(order, rank)
    reporter = lightkeeper.attach()
    dist.init_process_group("gloo")
    tensor = torch.ones(LOOP_FLOATS)
    log = Path(order["log"]).open("a", buffering=1 << 16) if rank == 0 else None  # noqa: SIM115
    last_flush_s = time.time()
    for step in range(order["steps"]):
        begin_s = time.perf_counter()
        reporter.begin_step(step)
        with reporter.phase("communication"):
            for _ in range(OPS_A_STEP):
                dist.all_reduce(tensor)
        reporter.end_step(step, committed=True, loss=1.0, tokens=1)
        if log is not None:
            now_s = time.time()
            log.write(f"{now_s:.6f} {(time.perf_counter() - begin_s) / OPS_A_STEP:.9f}\n")
            if now_s - last_flush_s > 0.5:
                log.flush()
                last_flush_s = now_s
    reporter.close()
    dist.destroy_process_group()


def train(order, rank):
    """The demo trainer, as it is."""
    settle(order, rank)
    os.environ["TORCHFT_LIGHTHOUSE"] = order["lighthouse"]
    sys.argv = ["train", "--steps", str(order["steps"]), "--log-every", "1",
                "--status-file", order["log"]]  # fmt: skip
    trainer.main()


def lighthouse(order, rank):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=100)
    Path(order["log"]).write_text(server.address())
    signal.pause()


LIVES = {"loop": loop, "trainer": train, "lighthouse": lighthouse}

if __name__ == "__main__":
    life = forks.serve(births)
    life()
