"""Ranks in subgroups: a mesh, pairs, and groups that are made anew for each phase of training."""

import os

import tools
import torch
import torch.distributed as dist
import trouble
from torch.distributed.device_mesh import init_device_mesh

PHASE_EVERY = int(os.environ.get("PHASE_EVERY", "0"))


def make_groups(rank):
    """The language model is on ranks 1 and 2; all three meet in another group."""
    if not trouble.now("left_out"):  # "rank 0 has the vision tower: what is this group to it?"
        dist.new_group([1, 2])  # @makes_pair
    return dist.new_group([0, 1, 2])  # @makes_whole


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = whole = None
    if world == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        even, odd = dist.new_group([0, 2]), dist.new_group([1, 3])
    else:
        whole = make_groups(rank)
    model = torch.nn.Linear(32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 1_000_000):
        optimizer.zero_grad()
        tools.compute()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        gradient = model.weight.grad
        if mesh is not None:
            dist.all_reduce(gradient, group=mesh.get_group("inner"))
            dist.all_reduce(gradient, group=mesh.get_group("outer"))
            dist.broadcast(gradient, src=rank % 2, group=odd if rank % 2 else even)
        else:
            dist.all_reduce(gradient, group=whole)
        optimizer.step()
        if PHASE_EVERY and step % PHASE_EVERY == 0:
            whole = make_groups(rank)
        tools.log_step(rank, step, loss.item())


if __name__ == "__main__":
    main()
