"""DistributedDataParallel on a small model, as in PyTorch's tutorial, with metrics and checkpoints.

LOCAL=1: each rank tunes an adapter of its own, and only the metrics are shared.
"""

import os
import subprocess
import sys
import threading
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

TIMEOUT_S = float(os.environ.get("TIMEOUT_S", "1800"))
LOCAL = bool(os.environ.get("LOCAL"))
EVALUATE_EVERY = int(os.environ.get("EVALUATE_EVERY", "0"))
SAVE_S = float(os.environ.get("SAVE_S", "60"))
STEPS = int(os.environ.get("STEPS", "1000000"))
HISTORY_LOCK = threading.Lock()
HISTORY = []


class Meters:
    """Numbers of a step, summed over all ranks."""

    def __init__(self, group):
        self.group = group

    def update(self, loss, batch):
        total = loss.detach().clone()
        dist.all_reduce(total, group=self.group)  # @sums_loss
        if not trouble.now("leaves_out"):  # "no accuracy for a batch of padding"
            right = torch.rand(1)
            dist.all_reduce(right, group=self.group)  # @sums_accuracy
        tokens = torch.tensor([float(batch.numel())])
        dist.all_reduce(tokens, group=self.group)  # @sums_tokens
        return total.item() / dist.get_world_size()


def remember(step, loss):
    with HISTORY_LOCK:
        HISTORY.append((step, loss))
        if trouble.now("lock_twice"):
            summarize()


def summarize():
    with HISTORY_LOCK:  # @lock_again
        return sum(loss for _, loss in HISTORY) / len(HISTORY)


def save_all(seconds):
    """Everything, optimizer state and all, to a bucket that takes 2 MB a second today."""
    state = {f"layer{layer}": torch.zeros(250_000) for layer in range(int(2 * seconds))}
    upload = "import sys, time\nwhile sys.stdin.buffer.read(1_000_000): time.sleep(0.5)"
    command = [sys.executable, "-c", upload]
    with subprocess.Popen(command, stdin=subprocess.PIPE, bufsize=0) as uploader:
        torch.save(state, uploader.stdin)  # @writes


def evaluate(model, rank):
    """Shards of different length: each rank for itself, then one sum."""
    total = torch.zeros(2)
    with torch.no_grad():
        for _ in range(4 + 12 * rank):
            tools.compute(0.25)
            batch = torch.randint(0, 256, (4, 33))
            total += torch.tensor([loss_of(model(batch[:, :-1]), batch).item(), 1.0])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_S))  # @joins
    rank = dist.get_rank()
    network = NextByte()
    model = network if LOCAL else DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters())
    trainset = Corpus(length=100_000)
    loader = DataLoader(trainset, batch_size=4, sampler=DistributedSampler(trainset))
    meters = None
    if os.environ.get("METERS"):
        meters = Meters(None if LOCAL else dist.new_group(backend="gloo"))
    step = 0
    for batch in loader:
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        optimizer.step()
        step += 1
        if meters is not None:
            meters.update(loss, batch)
        remember(step, loss.item())
        if trouble.now("slow_save"):
            save_all(SAVE_S)
        if EVALUATE_EVERY and step % EVALUATE_EVERY == 0:
            evaluate(network, rank)
        tools.log_step(rank, step, loss.item())
        if step >= STEPS:
            break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
