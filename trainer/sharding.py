"""How the model is split inside a replica group: FSDP2, tensor parallel, torch.compile."""

from __future__ import annotations

import sys
from typing import Final

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.model import Block, ByteTransformer
from trainer.options import Options
from trainer.place import SHARD, TENSOR, Intra

_SPLIT_BY_OUTPUT: Final = ("qkv", "expand")
_SPLIT_BY_INPUT: Final = ("project", "contract")


def split(network: ByteTransformer, intra: Intra | None, opt: Options) -> None:
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


def check_divisible(network: nn.Module, opt: Options) -> None:
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
