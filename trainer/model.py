"""A byte-level transformer: the smallest model that trains like a big one, and is split like one.

The vocabulary is the 256 byte values, so there is no tokenizer. With its defaults it has
475,776 parameters and a step takes 25 to 30 ms of one core. Inside a replica group it is split by
FSDP2 and tensor parallel.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.group import SHARD, TENSOR, Intra
from trainer.options import TrainOptions

VOCABULARY: Final = 256
_SPLIT_BY_OUTPUT: Final = ("qkv", "expand")
_SPLIT_BY_INPUT: Final = ("project", "contract")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shape of the transformer."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    context: int = 128
    """Bytes that the model sees at once."""


class Block(nn.Module):
    """Attention, then a two-layer perceptron, each on the normalised residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.width
        self.head_width = width // config.heads
        self.norm_attention = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm_mlp = nn.RMSNorm(width)
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.contract = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """`x` and the answer are (batch, context, width)."""
        batch, length, _ = x.shape
        # Head by head, so that tensor parallel ranks hold whole heads: how many is in the shape.
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, -1, 3, self.head_width)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # each (batch, heads, length, head width)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.expand(self.norm_mlp(x)))
        added: Tensor = self.contract(hidden)
        return x + added


class ByteTransformer(nn.Module):
    """Predicts the next byte at every position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, config.width)
        self.position = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width)
        self.head = nn.Linear(config.width, VOCABULARY, bias=False)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy in nats a byte; both arguments are (batch, context) of int64."""
        x = self.embed(inputs) + self.position.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss


def build(config: ModelConfig, seed: int) -> ByteTransformer:
    """The model with the weights of `seed`: the same on every rank of every group."""
    torch.manual_seed(seed)
    return ByteTransformer(config)


# -- inside a replica group ---------------------------------------------------------------------


def split(network: ByteTransformer, intra: Intra | None, opt: TrainOptions) -> None:
    """Give this rank its part of the model, in place; the order is the one torchtitan has too.

    Tensor parallel first (whole attention heads and columns of the perceptron), then compile,
    then FSDP2 around each block and around all.
    """
    check_divisible(network, opt)
    if intra is not None and opt.tensor_parallel > 1:
        for block in network.blocks:
            _parallelize(block, intra)
    if opt.compile:
        for block in network.blocks:
            block.compile()
    if intra is not None and intra.mesh[SHARD].size() > 1:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 8 s of CPU to import

        mesh = intra.mesh[SHARD]
        for block in network.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)


def check_divisible(network: nn.Module, opt: TrainOptions) -> None:
    """Every tensor must fall into `--pieces` equal parts by rows, in each tensor parallel rank."""
    parts = max(1, opt.pieces) * opt.tensor_parallel
    for name, parameter in network.named_parameters():
        if parameter.shape[0] % parts:
            sys.exit(
                f"trainer: {name} has {parameter.shape[0]} rows, which do not fall into {parts} "
                "equal parts (--pieces times --tensor-parallel): choose another --width"
            )


def _parallelize(block: nn.Module, intra: Intra) -> None:
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    assert isinstance(block, Block)  # noqa: S101
    plan = {name: ColwiseParallel() for name in _SPLIT_BY_OUTPUT}
    parallelize_module(
        block, intra.mesh[TENSOR], {**plan, **{name: RowwiseParallel() for name in _SPLIT_BY_INPUT}}
    )


def is_tensor_parallel(name: str) -> bool:
    """Whether ranks of a tensor parallel group hold different parts of this parameter."""
    module = name.rpartition(".weight")[0].rpartition(".")[2]
    return module in _SPLIT_BY_OUTPUT + _SPLIT_BY_INPUT


def local(tensor: Tensor) -> Tensor:
    """What this rank itself holds of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
