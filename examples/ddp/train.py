"""Distributed data parallel as people write it: a small model that learns to guess the next byte.

    torchrun --nproc-per-node 2 train.py --data FOLDER

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

CONTEXT = 64


class Texts(Dataset):
    """The beginning of each file of a folder, as bytes; read when it is asked for."""

    def __init__(self, folder):
        self.files = sorted(Path(folder).iterdir())

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with self.files[index].open("rb") as file:
            text = file.read(CONTEXT + 1).ljust(CONTEXT + 1)
        return torch.tensor(list(text))


class NextByte(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        return self.head(self.rnn(self.embed(text))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(NextByte())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    texts = Texts(args.data)
    batches = DataLoader(texts, batch_size=4, sampler=DistributedSampler(texts, shuffle=False))

    for epoch in range(args.epochs):
        for batch in batches:
            optimizer.zero_grad()
            logits = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
            torch.save(model.module.state_dict(), args.save)

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
