"""A rank's own part of weights, gradient and optimizer state, cut into pieces.

Groups average their gradients piece by piece, and heal piece by piece. A piece is the part of
the model that one rank holds in a group of `--pieces` ranks: of every parameter, the rows that
FSDP2 gives that rank. A group of fewer ranks holds several pieces in each, so groups of different
sizes exchange, vote and heal together, and stay equal bit by bit.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainer.group import RankPlace
from trainer.model import is_tensor_parallel, local
from trainer.options import TrainOptions


@dataclass(frozen=True, slots=True)
class Cut:
    """Which pieces this rank holds."""

    total: int
    """Pieces of the whole model: of all ranks of the group together."""
    first: int
    """Number of this rank's first piece, counted over the group."""
    count: int
    """How many it holds, one after the other."""
    leads: bool
    """Whether this rank answers for what tensor parallel ranks hold in common."""


def cut_of(place: RankPlace, opt: TrainOptions) -> Cut:
    """Which pieces of the model this rank holds.

    Pieces are numbered along FSDP2's dimension first; the tensor parallel ranks of one part of it
    follow each other.
    """
    tensor = opt.tensor_parallel
    shards = place.world_size // tensor
    parts = opt.pieces or shards  # of FSDP2's dimension
    if parts % shards:
        sys.exit(f"trainer: --pieces {parts} do not divide among {shards} shards of {place.group}")
    if parts != shards and (tensor > 1 or opt.algorithm != "every-step"):
        sys.exit("trainer: --pieces: tensor parallel and semi-synchronous groups are of one size")
    count = parts // shards
    return Cut(
        total=parts * tensor,
        first=place.group_rank * count,
        count=count,
        leads=place.group_rank % tensor == 0,
    )


class Pieces:
    """Views of this rank's tensors, taken once.

    TorchFT asks for the state on its quorum thread while the main thread is in the forward pass;
    a state_dict() made at that moment runs hooks under FSDP2's feet (it broke torchtitan 0.3.0).
    Handing out the same tensors every time is safe: they change only in the optimizer step, and
    TorchFT lets no checkpoint be read during that.
    """

    def __init__(self, network: nn.Module, optimizer: torch.optim.Optimizer, cut: Cut) -> None:
        self.cut = cut
        self._parameters = list(network.named_parameters())
        self.gradient = self._flatten_gradient()
        """All gradients of this rank; each parameter's `.grad` is a view of it."""
        _make_moments(optimizer)
        self.state = {name: local(part) for name, part in tensors_of(network, optimizer).items()}
        """Name -> this rank's part of every tensor that makes two groups equal."""
        size = self.gradient.numel() // cut.count
        self.exchanged = (
            [self.gradient] if cut.count == 1 else list(torch.split(self.gradient.clone(), size))
        )
        """What the groups average, a flat tensor a piece; see `pack`."""

    def _flatten_gradient(self) -> Tensor:
        """FSDP2 adds to a gradient that is there already, so it can live in memory of ours."""
        parts = [local(parameter) for _, parameter in self._parameters]
        flat = torch.zeros(sum(part.numel() for part in parts), device=parts[0].device)
        begin = 0
        for (_, parameter), part in zip(self._parameters, parts, strict=True):
            view = flat[begin : begin + part.numel()].view_as(part)
            begin += part.numel()
            parameter.grad = (
                DTensor.from_local(
                    view,
                    parameter.device_mesh,
                    parameter.placements,
                    run_check=False,
                    shape=parameter.shape,
                    stride=parameter.stride(),
                )
                if isinstance(parameter, DTensor)
                else view
            )
        return flat

    def state_of(self, index: int) -> dict[str, Tensor]:
        """The state of this rank's piece number `index` (from 0), sharing memory."""
        return {name: self._slice(tensor, index) for name, tensor in self.state.items()}

    def weights_of(self, index: int) -> dict[str, Tensor]:
        """Of that state the weights alone, without what the optimizer keeps of each."""
        return {name: part for name, part in self.state_of(index).items() if "/" not in name}

    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        if tensor.dim() == 0:  # AdamW counts its steps, for each parameter
            return tensor
        rows = tensor.shape[0] // self.cut.count
        return tensor[index * rows : (index + 1) * rows]

    def pack(self) -> None:
        """Before the exchange: the gradient, piece by piece."""
        if self.cut.count > 1:
            for mine, packed in self._pairs():
                packed.copy_(mine)

    def unpack(self) -> None:
        """After the exchange: back to where the optimizer reads it."""
        if self.cut.count > 1:
            for mine, packed in self._pairs():
                mine.copy_(packed)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each gradient in each piece: where the optimizer reads it, and where it is packed."""
        for index in range(self.cut.count):
            for (_, parameter), packed in zip(self._parameters, self._packed(index), strict=True):
                assert parameter.grad is not None  # noqa: S101
                mine = self._slice(local(parameter.grad), index)
                yield mine, packed.view_as(mine)

    def _packed(self, index: int) -> Iterator[Tensor]:
        """Each parameter's part of a piece's flat tensor."""
        begin = 0
        for _, parameter in self._parameters:
            size = local(parameter).numel() // self.cut.count
            yield self.exchanged[index][begin : begin + size]
            begin += size

    def squares(self) -> Tensor:
        """Sums of squares of the packed gradient: (pieces, parameters), zero for others' pieces.

        One row a piece, added up in one order by `norm`: so that groups of different sizes find
        the same norm to the last bit.
        """
        squares = torch.zeros(self.cut.total, len(self._parameters), device=self.gradient.device)
        for index in range(self.cut.count):
            row = squares[self.cut.first + index]
            for column, view in enumerate(self._packed(index)):
                if self.cut.leads or is_tensor_parallel(self._parameters[column][0]):
                    row[column] = view.square().sum()
        return squares


def tensors_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every weight, and what the optimizer keeps of it as NAME/KIND.

    A sharded tensor comes as it is, and knows where its part belongs.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        tensors[name] = parameter.data
        for kind, tensor in optimizer.state[parameter].items():
            tensors[f"{name}/{kind}"] = tensor
    return tensors


def _make_moments(optimizer: torch.optim.Optimizer) -> None:
    """AdamW makes its tensors in its first step, so there is one here that changes nothing."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()  # gradients are zero and so is the rate: only the moments come into being
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    for state in optimizer.state.values():
        for tensor in state.values():
            local(tensor).zero_()


def norm(squares: Tensor) -> Tensor:
    """Norm of the whole gradient, from the squares of all pieces."""
    total = torch.zeros_like(squares[0])
    for row in squares:  # one after the other: the number of rows may not decide on the order
        total = total + row
    return total.sum().sqrt()
