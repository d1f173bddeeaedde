"""Hugging Face Accelerate as people write it: a small model that learns to guess the next byte.

    torchrun --nproc-per-node 2 train.py --data FOLDER        # or: accelerate launch train.py ...

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

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

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    set_seed(0)
    model = NextByte()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = DataLoader(Texts(args.data), batch_size=4)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)

    for epoch in range(args.epochs):
        for batch in batches:
            with accelerator.accumulate(model):
                logits = model(batch[:, :-1])
                loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        mean = accelerator.gather(loss.detach()).mean().item()
        accelerator.print(f"epoch {epoch}: loss {mean:.4f}")

    accelerator.wait_for_everyone()
    accelerator.save(accelerator.unwrap_model(model).state_dict(), args.save)
    accelerator.end_training()


if __name__ == "__main__":
    main()
