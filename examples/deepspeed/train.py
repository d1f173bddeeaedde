"""DeepSpeed as people write it: a small model under ZeRO.

    torchrun --nproc-per-node 2 train.py --data FOLDER --stage 1

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import deepspeed
import torch
from torch import nn

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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--stage", type=int, default=1)
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = NextByte()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": args.stage},
        },
    )
    rank, ranks = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    for file in sorted(Path(args.data).iterdir())[rank::ranks]:
        text = read(file)
        logits = engine(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])
        engine.backward(loss)
        engine.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
