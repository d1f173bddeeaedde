"""FSDP2 and HSDP as people write them: a small model in shards, which may be replicated.

    torchrun --nproc-per-node 4 train.py --data FOLDER                # FSDP2: one mesh of 4 shards
    torchrun --nproc-per-node 4 train.py --data FOLDER --replicas 2   # HSDP: 2 replicas of 2 shards

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

CONTEXT = 64


def block(width):
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())


def read(file):
    text = file.read_bytes()[: CONTEXT + 1].ljust(CONTEXT + 1)
    return torch.tensor(list(text))[None]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--replicas", type=int, default=1)
    args = parser.parse_args()

    shards = int(os.environ["WORLD_SIZE"]) // args.replicas
    mesh = init_device_mesh("cpu", (args.replicas, shards), mesh_dim_names=("replicate", "shard"))
    if args.replicas == 1:
        mesh = mesh["shard"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 64), block(64), block(64), nn.Linear(64, 256))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    rank, ranks = dist.get_rank(), dist.get_world_size()
    for file in sorted(Path(args.data).iterdir())[rank::ranks]:
        text = read(file)
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
