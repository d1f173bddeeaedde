"""A byte-level transformer: the smallest model that trains and is split like a big one.

The vocabulary is the 256 byte values, so there is no tokenizer. With its defaults it has
475,776 parameters and a step takes 25 to 30 ms of one core. Inside a replica group FSDP2 splits it:
each rank holds its *piece*, some rows of every parameter. Groups average their gradients and heal
piece by piece, each rank with those of the same number in the other groups.

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

from lightkeeper.trainer.group import Intra
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
        self.embed = nn.Embedding(VOCABULARY, opt.width)
        self.position = nn.Embedding(opt.context, opt.width)
        self.blocks = nn.ModuleDict({str(n): Block(opt) for n in range(opt.layers)})
        self.norm = nn.RMSNorm(opt.width)
        self.head = nn.Linear(opt.width, VOCABULARY, bias=False)
        for table in (self.embed, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Tensor:
        """The logits of bytes, (batch, context) of int64; with `targets`, their mean cross entropy
        in nats per byte.
        """
        x = self.embed(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build_model(opt: TrainOptions) -> ByteTransformer:
    """The model with the weights of its seed: the same on every rank of every group."""
    torch.manual_seed(opt.seed)
    return ByteTransformer(opt)


# -- inside a replica group ---------------------------------------------------------------------


def split(network: ByteTransformer, intra: Intra | None) -> None:
    """Give this rank its part of the model, in place: FSDP2 around each block and around all."""
    if intra is not None:
        from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - 8 s of CPU to import

        for block in network.blocks.values():
            fully_shard(block, mesh=intra.mesh)
        fully_shard(network, mesh=intra.mesh)


def local(tensor: Tensor) -> Tensor:
    """The rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Piece:
    """Views of this rank's tensors, taken once.

    TorchFT asks for the state on its quorum thread while the main thread is in the forward pass; a
    state_dict() at that moment runs hooks while FSDP2 works (it broke torchtitan 0.3.0). Returning
    the same tensors every time is safe: they change only in the optimizer step, during which
    TorchFT lets no checkpoint be read.
    """

    def __init__(self, network: ByteTransformer, optimizer: torch.optim.Optimizer) -> None:
        self._parameters = list(network.parameters())
        self.gradient = self._flatten_gradient()
        """All gradients of this rank; each parameter's `.grad` is a view of it."""
        _make_moments(optimizer)
        self.state = {name: local(part) for name, part in tensors_of(network, optimizer).items()}
        """Name -> this rank's part of every tensor of the state."""
        self.weights = {name: part for name, part in self.state.items() if "/" not in name}
        """The state without the optimizer's."""

    def _flatten_gradient(self) -> Tensor:
        """FSDP2 adds to an existing gradient, so it can live in our own memory."""
        parts = [local(parameter) for parameter in self._parameters]
        flat = torch.zeros(sum(part.numel() for part in parts), device=parts[0].device)
        views = torch.split(flat, [part.numel() for part in parts])
        for parameter, part, view in zip(self._parameters, parts, views, strict=True):
            gradient = view.view_as(part)
            if isinstance(parameter, DTensor):
                gradient = DTensor.from_local(
                    gradient,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
            parameter.grad = gradient
        return flat

    def squares(self) -> Tensor:
        """Sum of squares of each parameter's gradient."""
        gradients = (p.grad for p in self._parameters if p.grad is not None)
        return torch.stack([local(gradient).square().sum() for gradient in gradients])


def tensors_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every weight, and its optimizer state as NAME/KIND.

    A sharded tensor stays a DTensor, which knows where its part belongs.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        tensors[name] = parameter.data
        for kind, tensor in optimizer.state[parameter].items():
            tensors[f"{name}/{kind}"] = tensor
    return tensors


def _make_moments(optimizer: torch.optim.Optimizer) -> None:
    """AdamW makes its tensors in its first step, so this takes one that changes nothing."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()  # gradients and rate are zero: this only creates the moments
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for tensor in state.values():
            local(tensor).zero_()


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
    """Number of the rank in its group."""

    def draw(self, step: int) -> tuple[Tensor, Tensor]:
        """The batch of the try of `step`."""
        return self._batch(self.opt.seed, step, self.group_index, self.reader, 0)

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
