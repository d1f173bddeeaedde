"""What a job does now and then beside its steps: speak, evaluate, and write its state to disk.

The last two say so by their phase, so that nobody has to worry.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from trainer import checkpoint, status
from trainer.pieces import tensors_of

if TYPE_CHECKING:
    from trainer.options import Options
    from trainer.rank import Rank


def after_step(
    rank: Rank, *, step: int, committed: bool, loss: float | None, seconds: float
) -> None:
    """After a try that led to `step`: say how it went, and do what is due."""
    opt = rank.opt
    if not committed or (opt.log_every and step % opt.log_every == 0):
        say(rank, step=step, committed=committed, loss=loss, seconds=seconds)
    if not committed:
        return
    if opt.fingerprint_every and step % opt.fingerprint_every == 0:
        fingerprint(rank, step)
    if opt.evaluate_every and step % opt.evaluate_every == 0:
        with rank.reporter.phase("evaluation"):
            unseen = evaluate(rank)
        rank.record.write("evaluation", step=step, loss=unseen)
    if due(opt, step) and opt.checkpoint_dir:
        with rank.reporter.phase("checkpoint"):
            checkpoint.save(
                opt.checkpoint_dir / rank.place.group,
                rank.exchange.current_step(),
                rank.exchange.lead.batches_committed(),
                tensors_of(rank.network, rank.optimizer),
                rank.intra,
                rank.place.group_rank,
            )


def say(rank: Rank, *, step: int, committed: bool, loss: float | None, seconds: float) -> None:
    """One line about a step: for programs from every rank, for people from group rank 0."""
    groups = rank.exchange.lead.num_participants()
    rank.record.write(
        "step",
        step=step,
        committed=committed,
        loss=loss if loss is not None and math.isfinite(loss) else None,
        participants=groups,
        seconds=round(seconds, 6),
    )
    if rank.place.group_rank == 0:
        print(
            f"{rank.place.name}  step {step}  "
            f"{'heals' if loss is None else f'loss {loss:.3f}'}  groups {groups}  "
            f"{seconds * 1e3:.0f} ms{'' if committed else '  NOT COMMITTED'}",
            flush=True,
        )


def fingerprint(rank: Rank, step: int) -> None:
    """Hash every piece of the state: groups of any size hold equal ones.

    Groups that meet now and then hold equal weights just then, and moments of their own.
    """
    every_step = rank.opt.algorithm == "every-step"
    if not every_step and step % rank.opt.sync_every:
        return
    for index in range(rank.pieces.cut.count):
        pieces = rank.pieces
        state = pieces.state_of(index) if every_step else pieces.weights_of(index)
        rank.record.write(
            "fingerprint",
            step=step,
            piece=rank.pieces.cut.first + index,
            sha256=status.fingerprint(state),
        )


def evaluate(rank: Rank) -> float:
    """Mean loss over text drawn with another seed; all ranks read the same."""
    total = 0.0
    with torch.no_grad():
        for number in range(rank.opt.evaluate_batches):
            inputs, targets = rank.batches.draw_unseen(number)
            device = rank.place.device
            total += float(rank.network(inputs.to(device), targets.to(device)))
    return total / rank.opt.evaluate_batches


def due(opt: Options, step: int) -> bool:
    """Whether `step` is to be written; those between two meetings are of one group alone."""
    every, meet = opt.checkpoint_every, opt.sync_every
    return bool(every) and step % every == 0 and (opt.algorithm == "every-step" or step % meet == 0)
