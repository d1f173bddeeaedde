"""Training that saves in the background, with torch's distributed checkpoints."""

import os
from concurrent.futures import wait

import tools
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.utils.data import DataLoader

SAVE_EVERY = 25


class Checkpoints:
    def __init__(self, group):
        self.group, self.pending = group, []

    def save(self, name, state, step):
        wait(self.pending)
        path = os.path.join(os.environ["OUTPUT"], f"{name}-{step % 2}")
        future = dcp.async_save(state, checkpoint_id=path, process_group=self.group)  # @saves
        self.pending = [future]


def save_everything(checkpoints, model, optimizer, step):
    for name, state in (("model", model.state_dict()), ("optimizer", optimizer.state_dict())):
        checkpoints.save(name, state, step)
        dist.barrier()  # @meets_after_save


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = NextByte()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loader = DataLoader(Corpus(start=rank * 7919, length=100_000), batch_size=4)
    own = Checkpoints(dist.new_group(backend="gloo"))
    default = Checkpoints(None)
    checkpoints = own
    for step, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        average(model)
        optimizer.step()
        if trouble.now("default_group"):
            checkpoints = default
        if step % SAVE_EVERY == 0:
            save_everything(checkpoints, model, optimizer, step)
        tools.log_step(rank, step, loss.item())


if __name__ == "__main__":
    main()
