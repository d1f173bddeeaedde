"""A small model that guesses the next byte."""

from torch import nn


class NextByte(nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, 256)

    def forward(self, text, blocks=None):
        x = self.embed(text)
        for block in self.blocks[:blocks]:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def loss_of(logits, batch):
    return nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
