"""A rank's own piece of the model: its part of weights, gradient and optimizer state.

Of every parameter, the rows that FSDP2 gives this rank. Groups average their gradients and heal
piece by piece, each rank with those of the same number in the other groups.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from lightkeeper.trainer.model import ByteTransformer, local


class Piece:
    """Views of this rank's tensors, taken once.

    TorchFT asks for the state on its quorum thread while the main thread is in the forward pass; a
    state_dict() at that moment runs hooks while FSDP2 works (it broke torchtitan 0.3.0). Returning
    the same tensors every time is safe: they change only in the optimizer step, during which
    TorchFT lets no checkpoint be read.
    """

    def __init__(self, network: ByteTransformer, optimizer: torch.optim.Optimizer) -> None:
        self._count = network.parameter_count
        self._parameters = list(network.named_parameters())
        self.gradient = self._flatten_gradient()
        """All gradients of this rank; each parameter's `.grad` is a view of it."""
        _make_moments(optimizer)
        self.state = {name: local(part) for name, part in tensors_of(network, optimizer).items()}
        """Name -> this rank's part of every tensor of the state."""
        self.weights = {name: part for name, part in self.state.items() if "/" not in name}
        """The same without the optimizer's."""

    def _flatten_gradient(self) -> Tensor:
        """FSDP2 adds to an existing gradient, so it can live in our own memory."""
        parts = [local(parameter) for _, parameter in self._parameters]
        flat = torch.zeros(sum(part.numel() for part in parts), device=parts[0].device)
        views = torch.split(flat, [part.numel() for part in parts])
        for (_, parameter), part, view in zip(self._parameters, parts, views, strict=True):
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
        """Sum of squares of each gradient; as many numbers in every stage of a pipeline."""
        squares = torch.zeros(self._count, device=self.gradient.device)
        for number, (_, parameter) in enumerate(self._parameters):
            assert parameter.grad is not None  # noqa: S101
            squares[number] = local(parameter.grad).square().sum()
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
