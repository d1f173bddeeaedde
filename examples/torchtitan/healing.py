"""What a group hands to one that heals: its local shards themselves, looked up once.

torchft asks for the state on the thread of its quorum, while the loop computes. torchtitan 0.3.0
then calls `model.state_dict()`, for which FSDP2 shards the model under the feet of the running
forward pass, and answers for the optimizers with the learning rate of step 0. Here nothing of the
model is called while it runs, and the learning rate is that of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torchtitan.experiments.torchft.checkpoint import TorchFTCheckpointManager

import lightkeeper


class Shards:
    """What this rank holds of the weights and of the optimizers' state, in the memory it lives in.

    torchft reads it until the commit, and nothing writes to it before that.
    """

    def __init__(self, models: list[Any], optimizers: Any, others: dict[str, Any]) -> None:
        self.weights: dict[str, torch.Tensor] = {}
        self._optimizers = list(optimizers)
        self._others = others
        for number, model in enumerate(models):
            saved = model.state_dict().keys()  # of the buffers some are not
            buffers = [(name, buffer) for name, buffer in model.named_buffers() if name in saved]
            for name, tensor in [*model.named_parameters(), *buffers]:
                self.weights[f"{number}.{name}"] = _local(tensor.detach())
        self._tensors = {**self.weights, **self._optimizer_state()}

    def state_dict(self) -> dict[str, Any]:
        """Called by torchft on another thread."""
        return {
            "tensors": self._tensors,
            "rates": [
                [group["lr"] for group in optimizer.param_groups] for optimizer in self._optimizers
            ],
            "others": {name: other.state_dict() for name, other in self._others.items()},
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Called by torchft within `should_commit`, on the thread of the loop."""
        for name, tensor in self._tensors.items():
            tensor.copy_(state["tensors"][name])
        for optimizer, rates in zip(self._optimizers, state["rates"], strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
        for name, other in self._others.items():
            other.load_state_dict(state["others"][name])

    def _optimizer_state(self) -> dict[str, torch.Tensor]:
        return {
            f"optimizer {number}.{at}.{name}": _local(value)
            for number, optimizer in enumerate(self._optimizers)
            for at, parameter in enumerate(_parameters(optimizer))
            for name, value in optimizer.state[parameter].items()
        }


class HealingCheckpoints(TorchFTCheckpointManager):
    """torchtitan's checkpoints, except for what is handed to a group that heals."""

    @dataclass(kw_only=True, slots=True)
    class Config(TorchFTCheckpointManager.Config):
        """torchtitan finds the class by its Config."""

    def __init__(self, config: Config, **parts: Any) -> None:
        manager = parts["ft_manager"].manager
        manager.set_state_dict_fns = lambda *_: None  # torchtitan's own would be asked as well
        super().__init__(config, **parts)
        del manager.set_state_dict_fns
        others = {"schedulers": parts["lr_schedulers"], "trainer": parts["states"]["train_state"]}
        self._shards = Shards(parts["model_parts"], parts["optimizers"], others)
        manager.register_state_dict_fn(
            "shards", self._shards.load_state_dict, self._shards.state_dict
        )
        self._printed = 0

    def _save(self, curr_step: int, last_step: bool = False) -> bool:
        """After each step: let the keeper compare the weights of the groups, too."""
        step = self.ft_manager.current_step()
        if step > self._printed:  # it was committed
            self._printed = step
            lightkeeper.attach().fingerprint(self._shards.weights, step)
        return super()._save(curr_step, last_step)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
