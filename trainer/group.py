"""What the ranks of one replica group tell each other in a step, besides FSDP2's own traffic."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainer import broken
from trainer.faults import Variant
from trainer.place import Intra


def agree_on(step: int, intra: Intra | None, root: int = 0) -> int:
    """The step of group rank `root`: all ranks of the group read the data of that one."""
    if intra is None:
        return step
    clock = torch.tensor([step])
    dist.broadcast(clock, group_src=root, group=intra.norms)
    return int(clock)


def agree_on_text(text: str, intra: Intra | None) -> str:
    """What group rank 0 says, on all ranks of the group."""
    if intra is None:
        return text
    said = torch.tensor(list(text.encode()), dtype=torch.uint8)
    said = said.resize_(agree_on(len(said), intra))
    dist.broadcast(said, group_src=0, group=intra.norms)
    return bytes(said.tolist()).decode()


def sum_in_group(
    squares: Tensor, loss: Tensor, intra: Intra | None, variant: Variant | None = None
) -> None:
    """Sum `squares` (and average `loss`) over the group, in place; `variant` injects a fault."""
    if intra is None:
        return
    if variant is not None:
        broken.all_reduces(squares, loss, intra.norms, intra.metrics, variant)
    else:
        dist.all_reduce(squares, group=intra.norms)
        dist.all_reduce(loss, group=intra.metrics)
    loss /= dist.get_world_size(intra.metrics)  # gloo sums; it has no average
