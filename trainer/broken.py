"""Faults that need torch: collectives gone wrong in one way, a flipped bit."""

from __future__ import annotations

from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer import faults
from trainer.faults import Kind, Variant
from trainer.sharding import local

VARIANTS: Final = tuple(v for v in faults.VARIANTS[Kind.MISMATCH] if v is not Variant.ROOT)
"""Mismatches that are made here; a wrong root needs a broadcast."""


def all_reduces(
    squares: Tensor,
    loss: Tensor,
    group: dist.ProcessGroup,
    metrics: dist.ProcessGroup,
    variant: Variant,
) -> None:
    """In place of: all-reduce of `squares` in `group`, then of `loss` in `metrics`."""
    match variant:
        case Variant.OP:
            gathered = [torch.empty_like(squares) for _ in range(dist.get_world_size(group))]
            dist.all_gather(gathered, squares, group=group)
        case Variant.SIZE:
            dist.all_reduce(squares.flatten()[: squares.numel() // 2], group=group)
        case Variant.DTYPE:
            dist.all_reduce(squares.view(torch.int32), group=group)
        case Variant.ORDER:
            dist.all_reduce(loss, group=metrics)
            dist.all_reduce(squares, group=group)
            return
        case Variant.EXTRA:
            dist.all_reduce(squares, group=group)
            dist.all_reduce(squares, group=group)
        case Variant.RECEIVE:
            peer = (dist.get_rank(group) + 1) % dist.get_world_size(group)
            dist.recv(torch.empty_like(loss), group_src=peer, group=group)
        case _:  # SKIP: the other ranks wait for a call that does not come
            pass
    dist.all_reduce(loss, group=metrics)


def flip_bit(network: nn.Module) -> None:
    """Silent data corruption: one bit of one weight, and whoever holds it does not know."""
    weights = local(next(network.parameters()).data).view(-1).view(torch.int32)
    weights[0] ^= 1 << 20  # in the mantissa: the number stays near to what it was
