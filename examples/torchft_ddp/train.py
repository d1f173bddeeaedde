"""Fault-tolerant DDP by TorchFT: a small model that learns to guess the next byte.

    RUST_LOG=warn torchft_lighthouse --min_replicas 1 --join_timeout_ms 10000 &
    export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
    REPLICA_GROUP_ID=0 torchrun --nproc-per-node 1 --master-port 29600 train.py --data FOLDER &
    REPLICA_GROUP_ID=1 torchrun --nproc-per-node 1 --master-port 29601 train.py --data FOLDER &

One rank a replica group: a group that dies is missed by nobody, and one that comes back takes the
weights of another. Nothing in here knows of lightkeeper.
"""

import argparse
import os
from datetime import timedelta
from itertools import chain, repeat
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer
from torchft.process_group import ProcessGroupGloo

CONTEXT = 64
SOON = timedelta(seconds=20)


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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--save", default="model.pt")
    parser.add_argument("--quorum-first", action="store_true", help="then the batch, as many do")
    args = parser.parse_args()
    group = int(os.environ["REPLICA_GROUP_ID"])

    torch.manual_seed(0)
    network = NextByte()
    adam = torch.optim.AdamW(network.parameters(), lr=3e-3)

    def state():
        return {"network": network.state_dict(), "adam": adam.state_dict()}

    def take(state):
        network.load_state_dict(state["network"])
        adam.load_state_dict(state["adam"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=SOON), load_state_dict=take, state_dict=state,
        min_replica_size=1, replica_id=f"{group}", timeout=SOON, hostname="127.0.0.1",
    )  # fmt: skip
    model = DistributedDataParallel(manager, network)
    optimizer = Optimizer(manager, adam)
    texts = Texts(args.data)
    sampler = DistributedSampler(
        texts, group, args.groups, group_rank=0, num_replicas=1, shuffle=False
    )
    batches = chain.from_iterable(repeat(DataLoader(texts, batch_size=4, sampler=sampler)))

    while manager.current_step() < args.steps:
        if args.quorum_first:
            optimizer.zero_grad()
        batch = next(batches)
        if not args.quorum_first:
            optimizer.zero_grad()  # asks for a quorum
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        loss.backward()  # averages over the groups of the quorum
        optimizer.step()  # if all of them could
        groups = manager.num_participants()
        print(f"step {manager.current_step()}: loss {loss.item():.4f}, groups {groups}", flush=True)

    torch.save(network.state_dict(), args.save)
    manager.shutdown(wait=False)


if __name__ == "__main__":
    main()
