"""A rank as one stage of its group's pipeline, by torch.distributed.pipelining.

Each stage holds consecutive blocks. The batches of a step are the micro-batches of the schedule:
their activations go from stage to stage, their gradients come back. Only the last stage knows the
loss.

A stage computes in phases "forward" and "backward" and waits for its neighbours in "communication",
in which those two are nested.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from lightkeeper.trainer.group import STAGE, Intra
from lightkeeper.trainer.model import ByteTransformer, loss_of

if TYPE_CHECKING:
    from lightkeeper.trainer.injector import Injector
    from lightkeeper.trainer.options import TrainOptions
    from lightkeeper.worker_server.rank.reporter import Reporter


class Pipeline:
    """One stage, and the schedule by which it works."""

    def __init__(
        self,
        network: ByteTransformer,
        intra: Intra,
        opt: TrainOptions,
        injector: Injector,
        reporter: Reporter,
    ) -> None:
        """Every stage of the pipeline calls this at the same time."""
        device = next(network.parameters()).device
        self.stage = _ReportedStage(
            network,
            intra.mesh[STAGE].get_local_rank(),
            opt.pipeline,
            device,
            group=intra.mesh[STAGE].get_group(),
        )
        self.stage.injector, self.stage.reporter = injector, reporter
        self._schedule = Schedule1F1B(self.stage, opt.accumulate, loss_of)
        self._received = torch.zeros(opt.batch, opt.context, opt.width, device=device)
        # The first step tells each stage what it will receive, and loses FSDP2's gradients.
        nothing = torch.zeros(opt.batch, opt.context, dtype=torch.int64, device=device)
        self.step([(nothing, nothing)] * opt.accumulate)

    def step(self, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Forward and backward over inputs and targets; the mean loss in the last stage, else 0."""
        inputs, targets = (torch.cat(tensors) for tensors in zip(*batches, strict=True))
        losses: list[Tensor] = []
        if self.stage.is_first:
            self._schedule.step(inputs)
        elif self.stage.is_last:
            self._schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            self._schedule.step()
        return torch.stack(losses).mean().detach() if losses else self._received.new_zeros(())

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of one batch, in every stage."""
        stage, group = self.stage, self.stage.group
        if not stage.is_first:
            inputs = self._received
            dist.recv(inputs, group_src=stage.stage_index - 1, group=group)
        output = stage.submod(inputs)
        if not stage.is_last:
            dist.send(output, group_dst=stage.stage_index + 1, group=group)
        loss = loss_of(output, targets) if stage.is_last else output.new_zeros(())
        dist.broadcast(loss, group_src=stage.num_stages - 1, group=group)
        return loss


class _ReportedStage(PipelineStage):
    """Reports when it computes; the rest of a schedule is waiting."""

    injector: Injector
    reporter: Reporter

    def forward_one_chunk(self, *args: Any, **more: Any) -> Any:
        with self.reporter.phase("forward"):
            self.injector.strike("forward")
            return super().forward_one_chunk(*args, **more)

    def backward_one_chunk(self, *args: Any, **more: Any) -> None:
        with self.reporter.phase("backward"):
            self.injector.strike("backward")
            super().backward_one_chunk(*args, **more)
