"""TorchFT's side of a rank: one Manager for each piece of the model that it holds.

Pieces with the same number form one process group across groups, whatever the groups' sizes: to
TorchFT every group has as many ranks as the model has pieces. All pieces of a group vote on a
commit together, so several pieces in one process vote at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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
from lightkeeper.trainer.pieces import Cut, Pieces

State = dict[str, Tensor]

OUTER_RATE: Final = 0.7
OUTER_MOMENTUM: Final = 0.9
"""Of DiLoCo's outer optimizer, Nesterov's: the paper's choice (arXiv 2311.08105, section 3.1)."""


class Exchange:
    """Gradients across groups, commits and healing."""

    def __init__(self, managers: Sequence[Manager]) -> None:
        self.managers = tuple(managers)
        self._voters = ThreadPoolExecutor(len(self.managers), "vote") if len(managers) > 1 else None

    @property
    def lead(self) -> Manager:
        """The first; managers differ only in the values of their piece."""
        return self.managers[0]

    def current_step(self) -> int:
        """Committed steps of the job; healing jumps ahead."""
        return int(self.lead.current_step())

    def start_quorum(self) -> None:
        """Ask for a quorum; returns at once if quorums are asynchronous."""
        for manager in self.managers:
            manager.start_quorum()

    def average(self, pieces: Sequence[Tensor]) -> None:
        """Average each piece over the groups of the quorum, in place."""
        works = [
            manager.allreduce(piece) for manager, piece in zip(self.managers, pieces, strict=True)
        ]
        for work in works:
            work.wait()

    def vote_no(self, why: Exception) -> None:
        for manager in self.managers:
            manager.report_error(why)

    def should_commit(self) -> bool:
        """Whether the step counts; a healing group loads its new weights here."""
        if self._voters is None:
            return bool(self.lead.should_commit())
        votes = [self._voters.submit(manager.should_commit) for manager in self.managers]
        return all([vote.result() for vote in votes])  # noqa: C419 - every vote is waited for

    def resume(self, step: int, batches: int) -> None:
        """Continue from a checkpoint, before the first quorum."""
        for manager in self.managers:
            manager.load_state_dict({"step": step, "batches_committed": batches})

    def shutdown(self) -> None:
        """Leave without waiting."""
        for manager in self.managers:
            manager.shutdown(wait=False)
        if self._voters is not None:
            self._voters.shutdown(wait=False)


def connect(place: RankPlace, opt: TrainOptions, pieces: Pieces) -> Exchange:
    """A manager for each piece; piece 0's also hosts the group's manager server."""
    cut = pieces.cut
    states = map(pieces.state_of, range(cut.count))
    return Exchange(
        [_manager(place, opt, cut, n, state) for n, state in enumerate(states, cut.first)]
    )


def _manager(place: RankPlace, opt: TrainOptions, cut: Cut, piece: int, state: State) -> Manager:
    def load(fetched: State) -> None:
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
        rank=piece,
        world_size=cut.total,
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
        exchange: Exchange,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._exchange = exchange
        self._optimizer = optimizer
        self._every = opt.sync_every
        self._since = 0
        self.hooks: AbstractContextManager[Any]
        """On the optimizer, while entered."""
        if opt.algorithm == "diloco":
            outer = torch.optim.SGD(
                network.parameters(), lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True
            )
            self.hooks = DiLoCo(exchange.lead, [network], optimizer, outer, opt.sync_every)
        else:
            self.hooks = LocalSGD(exchange.lead, network, optimizer, opt.sync_every)

    def current_step(self) -> int:
        """Committed training steps so far, plus those since the last meeting."""
        return self._exchange.current_step() * self._every + self._since

    @property
    def meets(self) -> bool:
        """Whether the groups meet in the next `advance`."""
        return self._since + 1 == self._every

    def advance(self) -> bool:
        """One optimizer step, with a meeting when due; False when the meeting failed."""
        met, meetings = self.meets, self._exchange.current_step()
        self._optimizer.step()  # TorchFT's hook on it holds the meeting
        self._since = 0 if met else self._since + 1
        return not met or self._exchange.current_step() > meetings
