"""Tensor, pipeline and data parallel groups in the order of Megatron-LM, on a few layers.

    torchrun --nproc-per-node 8 train.py --data FOLDER --tensor 2 --pipeline 2   # and data 2

Each stage of the pipeline holds one layer, whose columns its tensor group shares. The first rank
of a first stage reads a text and broadcasts it in its tensor group; it travels along the pipeline,
and the gradients come back. The data groups then average them. FOLDER holds text files, at least
one for each data rank. Nothing in here knows of lightkeeper.
"""

import argparse
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

CONTEXT = 64
WIDTH = 32


class Copied(torch.autograd.Function):
    """To all of the tensor group: what comes back is summed."""

    @staticmethod
    def forward(ctx, hidden, group):
        ctx.group = group
        return hidden

    @staticmethod
    def backward(ctx, gradient):
        dist.all_reduce(gradient := gradient.contiguous(), group=ctx.group)
        return gradient, None


class Summed(torch.autograd.Function):
    """Over the tensor group: what comes back is everybody's."""

    @staticmethod
    def forward(_, hidden, group):
        dist.all_reduce(hidden := hidden.clone(), group=group)
        return hidden

    @staticmethod
    def backward(_, gradient):
        return gradient, None


class Layer(nn.Module):
    """A share of a two-layer perceptron: columns of the first matrix, rows of the second."""

    def __init__(self, share, group):
        super().__init__()
        self.group = group
        self.up = nn.Linear(WIDTH, 4 * WIDTH // share, bias=False)
        self.down = nn.Linear(4 * WIDTH // share, WIDTH, bias=False)

    def forward(self, hidden):
        inner = nn.functional.gelu(self.up(Copied.apply(hidden, self.group)))
        return hidden + Summed.apply(self.down(inner), self.group)


def groups_of(tensor, data, pipeline):
    """The three groups of this rank with their members. All ranks make all groups, in one order."""
    ranks = torch.arange(tensor * data * pipeline).view(pipeline, data, tensor)
    lines = {
        "tensor": [ranks[p, d] for p, d in product(range(pipeline), range(data))],
        "pipeline": [ranks[:, d, t] for d, t in product(range(data), range(tensor))],
        "data": [ranks[p, :, t] for p, t in product(range(pipeline), range(tensor))],
    }
    mine = {}
    for name, members in lines.items():
        for line in members:
            group = dist.new_group(line.tolist(), group_desc=name)
            if dist.get_rank() in line:
                mine[name] = group, line.tolist()
    return mine


def read(file):
    text = file.read_bytes()[: CONTEXT + 1].ljust(CONTEXT + 1)
    return torch.tensor(list(text))[None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--pipeline", type=int, default=2)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    me = dist.get_rank()
    data = dist.get_world_size() // (args.tensor * args.pipeline)
    mine = groups_of(args.tensor, data, args.pipeline)
    (tensor_group, peers), (_, stages), (data_group, replicas) = mine.values()
    stage = stages.index(me)
    before = stages[stage - 1] if stage else None
    after = stages[stage + 1] if stage + 1 < len(stages) else None

    torch.manual_seed(stage)
    embed = nn.Embedding(256, WIDTH) if before is None else None
    head = nn.Linear(WIDTH, 256) if after is None else None
    torch.manual_seed(me)
    layer = Layer(args.tensor, tensor_group)
    mods = nn.ModuleList(part for part in (embed, layer, head) if part is not None)
    optimizer = torch.optim.AdamW(mods.parameters(), lr=3e-3)

    for file in sorted(Path(args.data).iterdir())[replicas.index(me) :: data]:
        text = torch.zeros(1, CONTEXT + 1, dtype=torch.long)
        if before is None:
            if me == peers[0]:
                text = read(file)
            dist.broadcast(text, src=peers[0], group=tensor_group)
            given = embed(text[:, :-1])
        else:
            given = torch.empty(1, CONTEXT, WIDTH)
            dist.recv(text, src=before)
            dist.recv(given, src=before)
            given.requires_grad_()
        hidden = layer(given)
        optimizer.zero_grad()
        if after is None:
            loss = nn.functional.cross_entropy(head(hidden).transpose(1, 2), text[:, 1:])
            loss.backward()
        else:
            dist.send(text, dst=after)
            dist.send(hidden.detach(), dst=after)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, src=after)
            hidden.backward(gradient)
        if before is not None:
            dist.send(given.grad, dst=before)
        for weight in mods.parameters():
            dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM, group=data_group)
            weight.grad /= data
        optimizer.step()
    if after is None and me == dist.get_world_size() - 1:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
