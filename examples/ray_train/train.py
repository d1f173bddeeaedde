"""Ray Train as people write it: distributed data parallel over workers that Ray starts.

    python train.py --data FOLDER

FOLDER holds text files, at least one for each worker. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import ray
import ray.train
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
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


def train(config):
    context = ray.train.get_context()
    torch.manual_seed(0)
    model = prepare_model(NextByte())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    files = sorted(Path(config["data"]).iterdir())
    for file in files[context.get_world_rank() :: context.get_world_size()]:
        text = read(file)
        logits = model(text[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ray.train.report({"loss": loss.item()})
    if context.get_world_rank() == 0:
        print(f"loss {loss.item():.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--storage", default="results")
    args = parser.parse_args()
    TorchTrainer(
        train,
        train_loop_config={"data": args.data},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(storage_path=str(Path(args.storage).resolve())),
    ).fit()


if __name__ == "__main__":
    main()
