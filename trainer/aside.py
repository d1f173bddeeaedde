"""What a job does now and then beside its steps: evaluate, and write its state to disk.

Both say so by their phase, so that nobody has to worry. TorchFT heals a group from its peers, so
a checkpoint is for the day on which none is left; nothing here reads it back.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from trainer.data import Corpus
from trainer.options import Options
from trainer.status import StatusFile
from worker_server.wire import split_rank_name

if TYPE_CHECKING:
    from worker_server.reporter import StepReporter


def now_and_then(
    opt: Options,
    *,
    step: int,
    rank: str,
    network: nn.Module,
    corpus: Corpus,
    state: dict[str, Tensor],
    reporter: StepReporter,
    record: StatusFile,
) -> None:
    """After a committed step: evaluate or save when it is time."""
    group, number = split_rank_name(rank)
    if opt.evaluate_every and step % opt.evaluate_every == 0:
        with reporter.phase("evaluation"):
            loss = evaluate(network, corpus, opt)
        record.write("evaluation", step=step, loss=loss)
    if opt.checkpoint_every and step % opt.checkpoint_every == 0 and opt.checkpoint_dir:
        with reporter.phase("checkpoint"):
            if number == 0:
                save(opt.checkpoint_dir / f"{group}.pt", step, state)


def evaluate(network: nn.Module, corpus: Corpus, opt: Options) -> float:
    """Mean loss over text drawn with another seed; each rank by itself."""
    total = 0.0
    with torch.no_grad():
        for number in range(opt.evaluate_batches):
            inputs, targets = corpus.batch(
                seed=opt.seed + 1,
                step=number,
                group_index=0,
                group_rank=0,
                size=opt.batch,
                length=opt.context,
            )
            total += float(network(inputs, targets))
    return total / opt.evaluate_batches


def save(path: Path, step: int, state: dict[str, Tensor]) -> None:
    """Write the state of `step`; a reader sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    with half.open("wb") as file:
        torch.save({"step": step, "state": state}, file)
        file.flush()
        os.fsync(file.fileno())
    half.replace(path)
