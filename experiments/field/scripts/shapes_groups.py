"""Ranks that meet in groups: made late, connected late, or two by two. SHAPE says which loop."""

import os
from itertools import count

import tools
import torch
import torch.distributed as dist
import trouble

SHAPE = os.environ.get("SHAPE", "subgroups")
EVERY = 10


def average(value, group=None):
    dist.all_reduce(value, group=group)  # @averages_in_group
    return value / dist.get_world_size(group)


def subgroups(rank, world):
    """Every few steps teams of two are drawn anew: all ranks make all groups, in one order."""
    for step in count(1):
        tools.compute()
        average(torch.ones(1000))
        if step % EVERY == 0:
            teams = [sorted({first, (first + 1) % world}) for first in range(world)]
            for team in teams:
                if rank not in team and trouble.now("skips_new_group"):
                    continue  # "not my team"
                group = dist.new_group(team)  # @makes_team
                if rank in team:
                    average(torch.ones(10), group)
        tools.log_step(rank, step)


def late(rank, world):
    """A group that is made at the start and used much later: gloo connects it then, if told so."""
    evaluators = dist.new_group()
    for step in count(1):
        tools.compute()
        average(torch.ones(1000))
        if step % (3 * EVERY) == 0:
            if trouble.now("dead_disk"):
                look_up_labels()
            average(torch.ones(10), evaluators)  # @evaluators_meet
        tools.log_step(rank, step)


def look_up_labels():
    with open(os.environ["DEAD_FILE"]) as file:  # @opens_labels
        return file.read()


def halos(rank, world):
    """Two neighbours swap their borders: the even one sends first."""
    other, border, received = rank ^ 1, torch.ones(1000), torch.empty(1000)
    for step in count(1):
        tools.compute()
        if rank % 2 == 0 or trouble.now("sends_first"):
            dist.send(border, other)  # @sends_border
            dist.recv(received, other)  # @receives_border
        else:
            dist.recv(received, other)  # @receives_first
            dist.send(border, other)
        if step % EVERY == 0:
            average(border)
        tools.log_step(rank, step)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    globals()[SHAPE](dist.get_rank(), dist.get_world_size())


if __name__ == "__main__":
    main()
