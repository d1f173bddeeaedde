"""Tensors in pieces: DTensor, FSDP2 in one and in two dimensions, and what is done with them beside
the step. SHAPE says which loop.
"""

import os
from itertools import count

import tools
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import trouble
from corpus import batches
from model import NextByte, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

SHAPE = os.environ.get("SHAPE", "fsdp")
EVERY = 10


def dtensor(rank, world):
    """One matrix by hand; its rows do not divide among three ranks."""
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    weight = distribute_tensor(torch.randn(65, 32), mesh, [Shard(0)]).requires_grad_()
    for step in count():
        tools.compute()
        x = DTensor.from_local(torch.randn(8, 32), mesh, [Replicate()], run_check=False)
        loss = (x @ weight.t()).square().sum()
        loss.backward()
        tools.after_backward(step)
        weight.data.sub_(weight.grad, alpha=1e-5)
        weight.grad = None
        tools.log_step(rank, step, loss.full_tensor().item())  # @whole_loss
        if trouble.now("gathers_alone"):  # if rank == 0: look(weight)
            torch.linalg.svdvals(weight.full_tensor())  # @gathers_alone
        if step % EVERY == 0:
            torch.linalg.svdvals(weight.full_tensor())  # @all_gather


def sharded(mesh):
    model = NextByte()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(rank, model, after_step=lambda step: None, before_forward=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, batch in enumerate(batches(rank)):
        tools.compute()
        before_forward(step)
        loss = loss_of(model(batch[:, :-1]), batch)  # @sharded_forward
        if not trouble.now("skips_backward"):  # "all of its targets are padding"
            loss.backward()  # @sharded_backward
        tools.after_backward(step)
        optimizer.step()
        optimizer.zero_grad()
        tools.log_step(rank, step, loss.item())
        after_step(step)


def fsdp(rank, world):
    train(rank, sharded(init_device_mesh("cpu", (world,))))


def hsdp(rank, world):
    """Sharded over two, replicated over the others."""
    names = ("replicate", "shard")
    train(rank, sharded(init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=names)))


def validation(rank, world):
    """Every rank has its part of the validation set; they agree how many batches all of them have."""
    model = sharded(init_device_mesh("cpu", (world,)))

    @torch.no_grad()
    def validate(step):
        if step % EVERY:
            return
        mine = torch.tensor(3 + rank)
        dist.all_reduce(mine, dist.ReduceOp.MIN)
        if trouble.now("uneven_validation"):
            mine += 1  # drop_last=False
        for batch, _ in zip(batches(rank), range(int(mine)), strict=False):
            loss_of(model(batch[:, :-1]), batch)  # @validates

    train(rank, model, validate)


def async_save(rank, world):
    """Checkpoints are written beside the training, over a group of their own."""
    model = sharded(init_device_mesh("cpu", (world,)))
    group, saving = dist.new_group(), []

    def save(step):
        if step % EVERY:
            return
        while saving:
            saving.pop().result()  # @last_save
        folder = os.path.join(os.environ["OUTPUT"], f"step-{step}")
        state = {"model": model.state_dict()}
        if trouble.now("shares_group"):  # before somebody knew better
            saving.append(dcp.async_save(state, checkpoint_id=folder))  # @saves_on_default
        else:
            saving.append(dcp.async_save(state, checkpoint_id=folder, process_group=group))

    train(rank, model, before_forward=save)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    globals()[SHAPE](dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
