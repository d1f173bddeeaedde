"""A byte-level transformer: the smallest model that trains and is split like a big one.

The vocabulary is the 256 byte values, so there is no tokenizer. With its defaults it has
475,776 parameters and a step takes 25 to 30 ms of one core. Inside a replica group it is split by
FSDP2 and into the stages of a pipeline.

It reads the Python standard library's own source: real text that is on every machine, with nothing
to download or ship. The sampler has no state. A batch is a function of (seed, step, replica group,
group rank), so a group that died and healed at step 900 draws exactly what it would have drawn,
with no data loader state in any checkpoint, and a step that was not committed is tried again on
the same batch.
"""

from __future__ import annotations

import re
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightkeeper.trainer.group import SHARD, STAGE, Intra
from lightkeeper.trainer.options import TrainOptions

VOCABULARY: Final = 256


class Block(nn.Module):
    """Attention, then a two-layer MLP, each on the normalised residual stream."""

    def __init__(self, opt: TrainOptions) -> None:
        super().__init__()
        width = opt.width
        self.head_width = width // opt.heads
        self.norm_attention = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.RMSNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` and the answer are (batch, context, width)."""
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, -1, 3, self.head_width)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each (batch, heads, length, head width)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.expand(self.norm_mlp(x)))
        added: Tensor = self.contract(hidden)
        return x + added


class ByteTransformer(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, opt: TrainOptions) -> None:
        super().__init__()
        self.embed: nn.Embedding | None = nn.Embedding(VOCABULARY, opt.width)
        self.position: nn.Embedding | None = nn.Embedding(opt.context, opt.width)
        self.blocks = nn.ModuleDict({str(n): Block(opt) for n in range(opt.layers)})
        self.norm: nn.RMSNorm | None = nn.RMSNorm(opt.width)
        self.head: nn.Linear | None = nn.Linear(opt.width, VOCABULARY, bias=False)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=0.02)
        self.parameter_count = len(list(self.parameters()))
        """Parameters of the whole model, also where this rank holds one stage of it."""

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """The logits of bytes, (batch, context) of int64; with `targets`, their mean loss.

        A stage of a pipeline takes what the stage before it gives, and gives what its last block
        does.
        """
        if self.embed is not None and self.position is not None:
            x = self.embed(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x if targets is None else loss_of(x, targets)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats per byte."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(opt: TrainOptions) -> ByteTransformer:
    """The model with the weights of its seed: the same on every rank of every group."""
    torch.manual_seed(opt.seed)
    return ByteTransformer(opt)


# -- inside a replica group ---------------------------------------------------------------------


def split(network: ByteTransformer, intra: Intra | None, opt: TrainOptions) -> None:
    """Give this rank its part of the model, in place, in the same order as torchtitan.

    Stages of a pipeline first, then FSDP2 around each block and around all.
    """
    if intra is not None and opt.pipeline > 1:
        _keep_stage(network, intra.mesh[STAGE].get_local_rank(), opt.pipeline)
    if intra is not None and intra.mesh[SHARD].size() > 1:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 8 s of CPU to import

        mesh = intra.mesh[SHARD]
        for block in network.blocks.values():
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)


def _keep_stage(network: ByteTransformer, stage: int, stages: int) -> None:
    """Drop what other stages hold: the first embeds, the last predicts, each has its blocks."""
    layers = len(network.blocks)
    for layer in range(layers):
        if layer * stages // layers != stage:
            del network.blocks[str(layer)]
    if stage > 0:
        network.embed = network.position = None
    if stage < stages - 1:
        network.norm = network.head = None


def local(tensor: Tensor) -> Tensor:
    """The rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# -- data ---------------------------------------------------------------------------------------


def standard_library() -> bytes:
    """The top-level modules of the running Python's standard library (about 4.7 MB in 3.11).

    Groups on different Python versions read different texts.
    """
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return b"\n".join(source.read_bytes() for source in sources)


def group_index(group: str) -> int:
    """The number that keys a replica group's data: its trailing digits, else a hash of its name.

    `rg_1` is 1, as in TorchFT.
    """
    digits = re.search(r"\d+$", group)
    return int(digits.group()) if digits else zlib.crc32(group.encode())


@dataclass(frozen=True)
class Batches:
    """What one rank reads: a text, and the key of its batches except for the step."""

    text: bytes
    opt: TrainOptions
    group_index: int
    reader: int
    """Number of the reader in its group; stages share one."""

    def draw(self, step: int, micro: int) -> tuple[Tensor, Tensor]:
        """Batch number `micro` of the try of `step`."""
        return self._batch(self.opt.seed, step, self.group_index, self.reader, micro)

    def draw_unseen(self, number: int) -> tuple[Tensor, Tensor]:
        """Batch `number` of the evaluation: the same on every rank, drawn with another seed."""
        return self._batch(self.opt.seed + 1, number, 0, 0, 0)

    def _batch(self, *key: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each (batch, context) of int64; targets are one byte later.

        Equal keys draw equal batches.
        """
        values, length = np.frombuffer(self.text, dtype=np.uint8), self.opt.context
        draw = np.random.default_rng(key)
        starts = draw.integers(0, len(values) - length, size=self.opt.batch)
        windows = np.stack([values[start : start + length + 1] for start in starts])
        tokens = torch.from_numpy(windows.astype(np.int64))
        return tokens[:, :-1], tokens[:, 1:]
