"""TorchFT's side of a rank: the Manager of its piece of the model.

Ranks of the same number form one process group across groups. All pieces of a group vote on a
commit together.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor, nn
from torchft import Manager
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

from lightkeeper.trainer.group import RankPlace
from lightkeeper.trainer.options import TrainOptions

OUTER_RATE: Final = 0.7
OUTER_MOMENTUM: Final = 0.9
"""Of DiLoCo's outer optimizer, Nesterov's: the paper's choice (arXiv 2311.08105, section 3.1)."""


def connect(place: RankPlace, opt: TrainOptions, state: dict[str, Tensor]) -> Manager:
    """The Manager that averages, votes and heals; that of rank 0 hosts the group's server too."""

    def load(fetched: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            tensor.copy_(fetched[name])  # in place: optimizer and flat gradient keep their views

    timeout = timedelta(seconds=opt.timeout_s)
    # Rebuilt at every quorum: a mesh of gloo's sockets, or an NCCL communicator.
    kind = ProcessGroupGloo if place.device.type == "cpu" else ProcessGroupNCCL
    return Manager(
        pg=kind(timeout=timeout),
        load_state_dict=load,
        state_dict=lambda: state,
        min_replica_size=opt.min_replicas,
        # The quorum forms while this rank computes. Semi-synchronous algorithms need it before.
        use_async_quorum=opt.algorithm == "every-step",
        # The seed makes all weights equal. TorchFT would copy them at step 0, for each group rank
        # from another group, and a receiving group contributes no gradient to that step: the ranks
        # of one group would take different first steps.
        init_sync=False,
        timeout=timeout,
        quorum_timeout=timedelta(seconds=opt.quorum_timeout_s),
        quorum_retries=opt.quorum_retries,
        connect_timeout=timedelta(seconds=opt.connect_timeout_s),
        rank=place.group_rank,
        world_size=place.world_size,
        replica_id=place.group,
        hostname=place.address,
    )


class SemiSync:
    """TorchFT's LocalSGD and DiLoCo: groups train alone and meet every few steps.

    A step of TorchFT is then a meeting (sync). When a meeting fails, TorchFT does not commit it,
    and the steps since the last one are tried again on the same data: DiLoCo from the weights of
    the last meeting, LocalSGD from its current weights.
    """

    def __init__(
        self,
        opt: TrainOptions,
        manager: Manager,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._manager = manager
        self._optimizer = optimizer
        self._every = opt.sync_every
        self._since = 0
        self.hooks: AbstractContextManager[Any]
        """On the optimizer, while entered."""
        if opt.algorithm == "diloco":
            outer = torch.optim.SGD(
                network.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
            )
            self.hooks = DiLoCo(manager, [network], optimizer, outer, opt.sync_every)
        else:
            self.hooks = LocalSGD(manager, network, optimizer, opt.sync_every)

    def current_step(self) -> int:
        """Committed training steps so far, plus those since the last meeting."""
        return int(self._manager.current_step()) * self._every + self._since

    @property
    def meets(self) -> bool:
        """Whether the groups meet in the next `advance`."""
        return self._since + 1 == self._every

    def advance(self) -> bool:
        """One optimizer step, with a meeting when due; False when the meeting failed."""
        met, meetings = self.meets, self._manager.current_step()
        self._optimizer.step()  # TorchFT's hook on it holds the meeting
        self._since = 0 if met else self._since + 1
        return not met or bool(self._manager.current_step() > meetings)
