"""LocalSGD and DiLoCo: groups train by themselves and meet every so many steps. TorchFT's own.

A step of TorchFT is then a meeting (sync). When a meeting fails, TorchFT counts it as not
committed, and the steps since the last one are tried again on the same data: DiLoCo from the
weights of the last meeting, LocalSGD from where it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

import torch
from torch import nn
from torchft.local_sgd import DiLoCo, LocalSGD

from trainer.exchange import Exchange
from trainer.options import Options

OUTER_RATE: Final = 0.7
OUTER_MOMENTUM: Final = 0.9
"""Of DiLoCo's outer optimizer, Nesterov's: the paper's choice (arXiv 2311.08105, section 3.1)."""


class SemiSync:
    """Counts the steps between two meetings and hands the rest to TorchFT."""

    def __init__(
        self, opt: Options, exchange: Exchange, network: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        self._exchange = exchange
        self._optimizer = optimizer
        self._every = opt.sync_every
        self._since = 0
        self._torchft: AbstractContextManager[Any]
        if opt.algorithm == "diloco":
            outer = torch.optim.SGD(
                network.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
            )
            self._torchft = DiLoCo(exchange.lead, [network], optimizer, outer, opt.sync_every)
        else:
            self._torchft = LocalSGD(exchange.lead, network, optimizer, opt.sync_every)

    def __enter__(self) -> SemiSync:
        self._torchft.__enter__()
        return self

    def __exit__(self, *why: Any) -> None:
        self._torchft.__exit__(*why)

    @property
    def step(self) -> int:
        """Steps of training so far that count, and those since the last meeting."""
        return self._exchange.current_step() * self._every + self._since

    @property
    def meets(self) -> bool:
        """Whether the groups meet in the coming `advance`."""
        return self._since + 1 == self._every

    def advance(self) -> bool:
        """One step of the optimizer, with a meeting when it is time; False when that failed."""
        met, meetings = self.meets, self._exchange.current_step()
        self._optimizer.step()  # TorchFT's hook on it holds the meeting
        self._since = 0 if met else self._since + 1
        return not met or self._exchange.current_step() > meetings
