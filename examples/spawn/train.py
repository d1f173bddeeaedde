"""Ranks that a script spawns itself, as people write it: distributed data parallel on one machine.

    python train.py --data FOLDER

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT = 64


class NextByte(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        return self.head(self.rnn(self.embed(text))[0])


def read(file):
    text = file.read_bytes()[: CONTEXT + 1].ljust(CONTEXT + 1)
    return torch.tensor(list(text))[None]


def train(rank, ranks, meet, data):
    dist.init_process_group("gloo", init_method=meet, rank=rank, world_size=ranks)
    torch.manual_seed(0)
    model = DistributedDataParallel(NextByte())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for file in sorted(Path(data).iterdir())[rank::ranks]:
        text = read(file)
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--meet", default="tcp://127.0.0.1:29500")
    args = parser.parse_args()
    torch.multiprocessing.spawn(train, (args.ranks, args.meet, args.data), nprocs=args.ranks)


if __name__ == "__main__":
    main()
