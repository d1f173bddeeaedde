"""Gradients averaged by hand, and the ways in which a rank leaves the others."""

import math
import os
import signal
import sys
import time
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import batches
from model import NextByte, loss_of

SHAPE = os.environ.get("SHAPE", "trains")
STEPS = int(os.environ.get("STEPS", "1000000"))
TIMEOUT_S = float(os.environ.get("TIMEOUT_S", "1800"))


def ask_data_server():
    raise TimeoutError("shard 17: no answer from the data server within 10 s")  # @asks_server


def tokenize():
    raise ValueError("document 4711 is not UTF-8")  # @tokenizes


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # @averages
        parameter.grad /= dist.get_world_size()


def norm_of(model):
    return math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))


def train(rank):
    model = NextByte()
    if SHAPE == "saves":
        save_on_sigterm(model)
    for step, batch in enumerate(batches(rank)):
        if step == STEPS:
            dist.barrier()
            return
        if trouble.now("returns"):
            return  # its list of shards was empty: "nothing to do for me"
        if trouble.now("times_out"):
            ask_data_server()
        if trouble.now("raises"):
            tokenize()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        if trouble.now("nan"):
            loss = loss * math.nan
        loss.backward()
        average(model)
        norm = norm_of(model)
        if not math.isfinite(norm):
            raise FloatingPointError(f"gradient norm is {norm} at step {step}")  # @not_finite
        for parameter in model.parameters():
            parameter.data.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None
        tools.log_step(rank, step, loss.item())


def save_on_sigterm(model):
    """The scheduler preempts: half a minute to save, and out."""

    def save(number, frame):
        tools.save_checkpoint(model, os.environ["OUTPUT"], 0, 3.0)
        sys.exit(0)

    signal.signal(signal.SIGTERM, save)


def quarantine(error):
    """Keep what cannot be read for its owner; the bucket is slow today."""
    print(f"to the quarantine: {error}", flush=True)
    time.sleep(30)  # @quarantines


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))
    try:
        train(dist.get_rank())
    except ValueError as error:
        if SHAPE == "quarantine":
            quarantine(error)
        raise


if __name__ == "__main__":
    main()
