"""Lightning as people write it: a small model that learns to guess the next byte.

    python train.py --data FOLDER --devices 2        # or: torchrun --nproc-per-node 2 train.py ...

FOLDER holds text files, at least one for each rank. Nothing in here knows of lightkeeper.
"""

import argparse
from pathlib import Path

import lightning as L
import torch
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


class NextByte(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)

    def loss(self, text):
        logits = self.head(self.rnn(self.embed(text[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.transpose(1, 2), text[:, 1:])

    def training_step(self, batch, index):
        return self.loss(batch)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch), sync_dist=True, on_epoch=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--validate", required=True)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()

    L.seed_everything(0)
    model = NextByte()
    trainer = L.Trainer(
        accelerator="auto", devices=args.devices, strategy="ddp", max_epochs=args.epochs,
        default_root_dir=Path(args.save).parent, logger=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(
        model,
        DataLoader(Texts(args.data), batch_size=4),
        DataLoader(Texts(args.validate), batch_size=4),
    )
    if trainer.is_global_zero:
        print(f"val_loss {trainer.callback_metrics['val_loss'].item():.4f}", flush=True)
        torch.save(model.state_dict(), args.save)


if __name__ == "__main__":
    main()
