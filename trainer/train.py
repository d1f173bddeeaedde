"""One rank of a fault-tolerant training job, from top to bottom.

Run it under torchrun, one torchrun per replica group (see `--help` for a session to copy):

    REPLICA_GROUP=rg_1 torchrun --standalone --nproc-per-node 2 -m trainer.train --steps 100

Two levels of data parallelism. Inside a replica group the ranks depend on each other: FSDP2
splits the model over them, and when one fails, the group fails, and its launcher starts it again.
Across groups nobody depends on anybody: TorchFT agrees at every step on who takes part (the
quorum), averages the gradients of those, and votes on whether the step counts (the commit). A
group that comes back fetches the weights of one that stayed, over HTTP, while the others work on.

Waiting for other groups happens in phase "communication" and nowhere else. Waiting inside the
group happens there too, and in FSDP2's collectives, whose ranks the flight recorder knows. That
lets an observer tell who holds the job back from who is waiting for him.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

# TorchFT's Rust part reads this when it is imported; at its default it logs every quorum.
os.environ.setdefault("RUST_LOG", "error")

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record

import worker_server
from trainer import aside, broken, faults, link, options
from trainer.faults import Kind, Variant
from trainer.group import agree_on, sum_in_group
from trainer.pieces import norm
from trainer.rank import Rank, start
from trainer.semi_sync import SemiSync

if TYPE_CHECKING:
    from worker_server.reporter import StepReporter


def train(opt: options.Options, reporter: StepReporter) -> None:
    """Train until `--steps` steps are committed.

    Raises:
        Exception: whatever the communication libraries raise when they give up; the process
            ends and the group's launcher starts it again.
    """
    with reporter.phase("init"):
        rank = start(opt, reporter)
        if opt.resume and opt.fingerprint_every:
            aside.fingerprint(rank, rank.exchange.current_step())  # what was read, to compare
    step = meet_every_step(rank) if opt.algorithm == "every-step" else meet_now_and_then(rank)
    rank.record.write("finished", step=step)
    rank.record.close()
    reporter.close()  # from here on, silence is no failure
    rank.exchange.shutdown()
    dist.destroy_process_group()


# -- groups average their gradients at every step --------------------------------------------


def meet_every_step(rank: Rank) -> int:
    """Try steps until enough are committed; how many are."""
    exchange, opt = rank.exchange, rank.opt
    while not opt.steps or exchange.current_step() < opt.steps:
        began_s = time.perf_counter()
        step = exchange.current_step()
        rank.reporter.begin_step(step)
        committed, loss = try_step(rank, step)
        rank.reporter.end_step(
            step, committed=committed, loss=loss, tokens=0 if loss is None else tokens(opt)
        )
        aside.after_step(
            rank,
            step=exchange.current_step(),  # of the job; a heal jumps ahead
            committed=committed,
            loss=loss,
            seconds=time.perf_counter() - began_s,
        )
    return exchange.current_step()


def try_step(rank: Rank, step: int) -> tuple[bool, float | None]:
    """Whether the step counts, and its loss: the mean over this group.

    None while the group heals: it computed with weights that it is about to lose, and brought
    nothing to the step.
    """
    reporter, injector, pieces, exchange = rank.reporter, rank.injector, rank.pieces, rank.exchange
    with reporter.phase("communication"):
        exchange.start_quorum()  # returns at once; whoever needs the quorum waits for it below
        root = 1 if injector.take_mismatch(Variant.ROOT) else 0
        drawn = agree_on(step, rank.intra, root)

    pieces.gradient.zero_()
    mean_loss, finite = accumulate(rank, drawn)

    with reporter.phase("communication"):
        injector.strike("communication")
        throttle(rank)
        pieces.pack()
        if rank.intra is not None:
            squares = pieces.squares()
            sum_in_group(squares, mean_loss, rank.intra, injector.take_mismatch(*broken.VARIANTS))
            finite &= reporter.finite(
                loss=float(mean_loss), grad_norm=float(norm(squares)), where="group"
            )

        # TorchFT would commit a NaN, and a vote against it after the exchange keeps it from
        # this group alone. This group abstains from such a step instead: it brings zeros, so
        # that the other groups can commit, and votes no for itself. One step behind, it then
        # heals from them.
        if not finite:
            for piece in pieces.exchanged:
                piece.zero_()

        # Across groups: waits for the quorum, then averages over its participants.
        exchange.average(pieces.exchanged)
        # What came back may hold somebody else's NaN: nobody takes that in.
        squares = pieces.squares()
        finite &= reporter.finite(grad_norm=float(norm(squares)), where="exchanged")
        if not finite:
            exchange.vote_no(FloatingPointError(f"not finite at step {step}"))
        if rank.opt.clip:
            if rank.intra is not None:  # those of the average, from all ranks of the group
                dist.all_reduce(squares, group=rank.intra.norms)
            clip(pieces.exchanged, squares, rank.opt.clip)
        pieces.unpack()
        took_part = exchange.lead.is_participating()
        committed = exchange.should_commit()  # a healing group loads its new weights in here

    with reporter.phase("optimizer"):
        injector.strike("optimizer")
        if committed:
            rank.optimizer.step()
            if injector.take_corruption():
                broken.flip_bit(rank.network)
            publish_fingerprint(rank, exchange.current_step())
    loss = float(mean_loss) * injector.take_spike()
    return committed, loss if took_part else None


def accumulate(rank: Rank, step: int) -> tuple[Tensor, bool]:
    """Forward and backward over the step's batches: the mean loss, and whether all is finite.

    FSDP2 gathers weights and scatters gradients in here, within the group.
    """
    reporter, injector, pace, count = rank.reporter, rank.injector, rank.pace, rank.opt.accumulate
    total, finite = torch.zeros((), device=rank.place.device), True
    for micro in range(count):
        with reporter.phase("data"):
            if micro == 0:
                injector.poll(step)
                pace.load_data(injector.slowness[Kind.SLOW_DATA])
            inputs, targets = rank.batches.draw(step, micro)

        with reporter.phase("forward"):
            if micro == 0:
                injector.strike("forward")
                pace.begin_work(injector.slow_factor)
            loss = rank.network(inputs.to(rank.place.device), targets.to(rank.place.device))
            if injector.nan:
                loss = loss * math.nan

        with reporter.phase("backward"):
            if micro == 0:
                injector.strike("backward")
            (loss / count).backward()
            loss = loss.detach()
            total += loss / count
            # Asked before anybody else's numbers are in it: that tells who was first. What FSDP2
            # leaves of the gradient is the whole group's already.
            own = float(rank.pieces.gradient.norm()) if rank.intra is None else None
            finite &= reporter.finite(loss=float(loss), grad_norm=own)
    pace.end_work()
    return total, finite


def clip(gradients: Sequence[Tensor], squares: Tensor, most: float) -> None:
    """Scale gradients down to a norm of `most`, in place; equal squares give equal factors."""
    factor = (most / (norm(squares) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


def publish_fingerprint(rank: Rank, step: int) -> None:
    """Let the keeper compare this rank's first piece with those of the same number elsewhere."""
    rank.reporter.fingerprint(rank.printed, step, shard=rank.pieces.cut.first)


# -- groups train alone, and meet every so many steps -----------------------------------------


def meet_now_and_then(rank: Rank) -> int:
    """LocalSGD or DiLoCo, until enough steps are done; how many are."""
    opt = rank.opt
    with SemiSync(opt, rank.exchange, rank.network, rank.optimizer) as algorithm:
        while not opt.steps or algorithm.step < opt.steps:
            began_s = time.perf_counter()
            step = algorithm.step
            rank.reporter.begin_step(step)
            rank.pieces.gradient.zero_()
            with rank.reporter.phase("communication"):
                drawn = agree_on(step, rank.intra)
            loss, finite = accumulate(rank, drawn)
            met = algorithm.meets
            with rank.reporter.phase("communication" if met else "optimizer"):
                rank.injector.strike("communication" if met else "optimizer")
                squares = rank.pieces.squares()
                sum_in_group(squares, loss, rank.intra)
                if not (
                    rank.reporter.finite(grad_norm=float(norm(squares)), where="group") and finite
                ):
                    rank.pieces.gradient.zero_()  # the next meeting would bring it to all groups
                elif opt.clip:
                    clip([rank.pieces.gradient], squares, opt.clip)
                committed = algorithm.advance()
            rank.reporter.end_step(step, committed=committed, loss=float(loss), tokens=tokens(opt))
            if met and committed:  # between two meetings groups differ, as they should
                publish_fingerprint(rank, algorithm.step)
            aside.after_step(
                rank,
                step=algorithm.step,
                committed=committed,
                loss=float(loss),
                seconds=time.perf_counter() - began_s,
            )
        return algorithm.step


# -- odds and ends -----------------------------------------------------------------------------


def throttle(rank: Rank) -> None:
    """Fault `slow-link`, from when it struck."""
    slowness = rank.injector.slowness[Kind.SLOW_LINK]
    if slowness > 1.0:
        link.throttle(link.FAIR_BYTES_PER_S / slowness)


def tokens(opt: options.Options) -> int:
    """What this rank reads in a step."""
    return opt.batch * opt.context * opt.accumulate


def quieten(line: logging.LogRecord) -> bool:
    """TorchFT warns at every quorum that it cannot reset NCCL's flight recorder: there is none."""
    return "Unable to reset NCCL flight recorder" not in line.getMessage()


@record  # torchrun finds the traceback of the rank that failed first in its error file
def main() -> None:
    """Entry point of `python -m trainer.train`."""
    opt = options.parse()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # end at once, even from inside a C call
    logging.getLogger("torchft.manager").addFilter(quieten)
    warnings.filterwarnings("ignore", message="The given buffer is not writable")  # its transport
    reporter = worker_server.attach()
    try:
        train(opt, reporter)
    except faults.FaultError as error:
        sys.exit(f"trainer: {error}")


if __name__ == "__main__":
    main()
