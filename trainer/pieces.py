"""A rank's own part of weights, gradient and optimizer state, cut into pieces.

Groups average their gradients and heal piece by piece. A piece is the part of the model that one
rank holds in a group of `--pieces` ranks: of every parameter, the rows that FSDP2 gives that rank.
In a smaller group each rank holds several pieces, so groups of different sizes exchange, vote and
heal together, and stay bitwise equal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightkeeper.trainer.group import RankPlace
from lightkeeper.trainer.model import ByteTransformer, is_tensor_parallel, local
from lightkeeper.trainer.options import TrainOptions


@dataclass(frozen=True, slots=True)
class Cut:
    """Which pieces this rank holds."""

    total: int
    """Pieces of the whole model, over all ranks of the group."""
    first: int
    """Number of this rank's first piece in the group."""
    count: int
    """How many consecutive pieces it holds."""
    leads: bool
    """Whether this rank accounts for what tensor parallel ranks share."""


def cut_of(place: RankPlace, opt: TrainOptions) -> Cut:
    """Which pieces of the model this rank holds.

    Pieces are numbered stage by stage, then along FSDP2's dimension; the tensor parallel ranks of
    one part are consecutive.
    """
    stages, tensor = opt.pipeline, opt.tensor_parallel
    shards = place.world_size // stages // tensor
    parts = opt.pieces or shards  # of FSDP2's dimension
    if parts % shards:
        sys.exit(f"trainer: --pieces {parts} do not divide among {shards} shards of {place.group}")
    if parts != shards and (tensor > 1 or opt.algorithm != "every-step"):
        sys.exit("trainer: --pieces: tensor parallel and semi-synchronous groups are of one size")
    count = parts // shards
    return Cut(
        total=stages * parts * tensor,
        first=place.group_rank * count,
        count=count,
        leads=place.group_rank % tensor == 0,
    )


class Pieces:
    """Views of this rank's tensors, taken once.

    TorchFT asks for the state on its quorum thread while the main thread is in the forward pass; a
    state_dict() at that moment runs hooks while FSDP2 works (it broke torchtitan 0.3.0). Returning
    the same tensors every time is safe: they change only in the optimizer step, during which
    TorchFT lets no checkpoint be read.
    """

    def __init__(
        self, network: ByteTransformer, optimizer: torch.optim.Optimizer, cut: Cut
    ) -> None:
        self.cut = cut
        self._columns = network.parameter_count
        self._parameters = list(network.named_parameters())
        self.gradient = self._flatten_gradient()
        """All gradients of this rank; each parameter's `.grad` is a view of it."""
        _make_moments(optimizer)
        self.state = {name: local(part) for name, part in tensors_of(network, optimizer).items()}
        """Name -> this rank's part of every tensor of the state."""
        size = self.gradient.numel() // cut.count
        self.exchanged = (
            [self.gradient] if cut.count == 1 else list(torch.split(self.gradient.clone(), size))
        )
        """What the groups average, one flat tensor per piece; see `pack`."""

    def _flatten_gradient(self) -> Tensor:
        """FSDP2 adds to an existing gradient, so it can live in our own memory."""
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
        """The state of this rank's piece `index` (from 0), sharing memory."""
        return {name: self._slice(tensor, index) for name, tensor in self.state.items()}

    def weights_of(self, index: int) -> dict[str, Tensor]:
        """The weights of that state, without the optimizer's part."""
        return {name: part for name, part in self.state_of(index).items() if "/" not in name}

    def _slice(self, tensor: Tensor, index: int) -> Tensor:
        if tensor.dim() == 0:  # AdamW's step count of each parameter
            return tensor
        rows = tensor.shape[0] // self.cut.count
        return tensor[index * rows : (index + 1) * rows]

    def pack(self) -> None:
        """Before the exchange: copy the gradient into pieces."""
        if self.cut.count > 1:
            for mine, packed in self._pairs():
                packed.copy_(mine)

    def unpack(self) -> None:
        """After the exchange: copy back to where the optimizer reads."""
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

        One row per piece, which `norm` adds in a fixed order, so that groups of different sizes
        get the same norm to the last bit.
        """
        squares = torch.zeros(self.cut.total, self._columns, device=self.gradient.device)
        for index in range(self.cut.count):
            row = squares[self.cut.first + index]
            for column, view in enumerate(self._packed(index)):
                if self.cut.leads or is_tensor_parallel(self._parameters[column][0]):
                    row[column] = view.square().sum()
        return squares


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


def norm(squares: Tensor) -> Tensor:
    """Norm of the whole gradient, from the squares of all pieces."""
    total = torch.zeros_like(squares[0])
    for row in squares:  # one by one: the order must not depend on the number of rows
        total = total + row
    return total.sum().sqrt()
