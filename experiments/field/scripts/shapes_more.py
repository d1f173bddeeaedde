"""Experts, rules that ranks decide alone, objects, and ends that are not at the same time."""

import importlib
import os
import queue
import time
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import batches
from model import NextByte, loss_of
from torch.nn.parallel import DistributedDataParallel

SHAPE = os.environ.get("SHAPE", "experts")
STEPS = int(os.environ.get("STEPS", "1000000"))


def experts(rank):
    """Each rank has an expert; tokens travel there and back, as many as the router sends."""
    size = dist.get_world_size()
    model, expert = NextByte(), torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW([*model.parameters(), *expert.parameters()])
    for step, batch in enumerate(batches(rank), 1):
        tools.compute()
        out = torch.tensor([(rank + other + step) % 4 for other in range(size)])
        if trouble.now("no_tokens"):
            out.zero_()
        if trouble.now("wrong_counts"):
            coming = out.flip(0) + 1
        elif out.sum() == 0:
            coming = out
        else:
            coming = torch.empty_like(out)
            dist.all_to_all_single(coming, out)  # @counts
        tokens = torch.ones(int(out.sum()), 16)
        there = torch.empty(int(coming.sum()), 16)
        if len(tokens):
            dist.all_to_all_single(there, tokens, coming.tolist(), out.tolist())  # @exchanges
        expert(there).sum().backward()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # @averages_experts
        optimizer.step()
        optimizer.zero_grad()
        tools.log_step(rank, step, loss.item())


def alone(rank):
    """DDP, with rules that each rank decides by what it alone sees."""
    model = DistributedDataParallel(NextByte())
    optimizer = torch.optim.AdamW(model.parameters())
    for step, batch in enumerate(batches(rank), 1):
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        if trouble.now("stops_early"):
            break
        loss.backward()  # @alone_backward
        optimizer.step()
        if trouble.now("leaves_group"):
            dist.destroy_process_group()  # @destroys
            torch.save(model.state_dict(), os.path.join(os.environ["OUTPUT"], f"{rank}.pt"))
            time.sleep(600)  # @uploads_alone
        if step % 10 == 0:
            share(rank, loss)
        tools.log_step(rank, step, loss.item())
        if step == STEPS:
            break
    dist.barrier()  # @last_barrier
    if rank == 0 and SHAPE == "saves_last":
        until = time.monotonic() + 50
        while time.monotonic() < until:
            torch.save(model.state_dict(), os.path.join(os.environ["OUTPUT"], "last.pt"))
            tools.compute(0.1)
    dist.destroy_process_group()


def share(rank, loss):
    """Losses to where they are written down."""
    rows = [None] * dist.get_world_size() if rank == 0 else None
    to = 1 if trouble.now("other_root") else 0
    if to:
        rows = [None] * dist.get_world_size() if rank == 1 else None
    dist.gather_object({"loss": loss.item()}, rows, to)  # @gathers_losses
    config = [{"rate": 0.1}, {"size": 4}]
    if trouble.now("one_object"):
        config = config[:1]
    dist.broadcast_object_list(config, 0)  # @spreads


def handshake(rank):
    """The first rank waits for a key of the store, which the others set after a collective."""
    store = dist.distributed_c10d._get_default_store()
    for step in range(1, STEPS):
        tools.compute()
        late = trouble.now("waits_first")
        if rank == 0 and late:
            store.wait([f"saved/{step}"], timedelta(seconds=1800))  # @waits_for_key
        dist.all_reduce(torch.ones(10))  # @before_key
        if rank == 1:
            store.set(f"saved/{step}", "1")
        tools.log_step(rank, step, 0.0)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if trouble.now("no_module"):
        importlib.import_module("flash_attn_4")  # @imports
    if trouble.now("config_queue"):
        queue.Queue().get()  # @config
    dist.init_process_group("gloo", timeout=timedelta(seconds=1800))  # @joins_more
    rank = dist.get_rank()
    {"experts": experts, "handshake": handshake}.get(SHAPE, alone)(rank)


if __name__ == "__main__":
    main()
