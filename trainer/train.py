"""One rank of a fault-tolerant training job, from top to bottom.

Run it under torchrun, one torchrun per replica group (`--help` has a session to copy):

    REPLICA_GROUP=rg_1 torchrun --standalone --nproc-per-node 2 -m lightkeeper.trainer.train

Two levels of data parallelism. Inside a replica group the ranks depend on each other: FSDP2
splits the model over them; when one fails, the group fails and its launcher restarts it. Groups do
not depend on each other: at every step TorchFT agrees on which take part (the quorum), averages
their gradients, and votes on whether the step counts (the commit). A group that comes back fetches
the weights of one that stayed, over HTTP, while the others continue.

Waiting for other groups happens only in phase "communication". Waiting inside the group happens
there and in FSDP2's collectives, whose ranks the flight recorder knows. So an observer can
distinguish the rank that holds the job back from those that wait for it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import shutil
import signal
import sys
import time
import warnings
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# TorchFT's Rust part reads this when it is imported; at its default it logs every quorum.
os.environ.setdefault("RUST_LOG", "error")

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.elastic.multiprocessing.errors import record
from torchft import Manager
from torchft.process_group import ProcessGroupGloo, ProcessGroupNCCL

import lightkeeper
from lightkeeper.trainer import group, model, options, status
from lightkeeper.trainer.injector import Injector, WorkStretcher, act
from lightkeeper.trainer.model import Piece, tensors_of

if TYPE_CHECKING:
    from lightkeeper.trainer.options import TrainOptions
    from lightkeeper.worker_server.rank.reporter import Reporter


def train(opt: TrainOptions, reporter: Reporter) -> None:
    """Train until `--steps` steps are committed.

    Raises:
        Exception: what the communication libraries raise when they give up; the process
            ends and the group's launcher restarts the group.
    """
    with reporter.phase("init"):
        rank = Rank(opt, reporter)
        manager = rank.manager
        if opt.resume and opt.fingerprint_every:
            write_fingerprint(rank, manager.current_step())  # of the resumed state
    while not opt.steps or manager.current_step() < opt.steps:
        began_s = time.perf_counter()
        step = manager.current_step()
        reporter.begin_step(step)
        committed, loss = try_step(rank, step)
        tokens = 0 if loss is None else opt.batch * opt.context
        reporter.end_step(step, committed=committed, loss=loss, tokens=tokens)
        step = manager.current_step()  # of the job; healing jumps ahead
        report_try(rank, step, committed, loss, time.perf_counter() - began_s)
        if committed:
            now_and_then(rank, step)
    rank.record.write("finished", step=manager.current_step())
    reporter.close()  # from now on, silence is no failure
    manager.shutdown(wait=False)
    dist.destroy_process_group()


# -- what a rank consists of -----------------------------------------------------------------


class Rank:
    """One rank, ready to train."""

    def __init__(self, opt: TrainOptions, reporter: Reporter) -> None:
        """Join the group, build the model, connect to TorchFT; any failure ends the process."""
        torch.set_num_threads(1)  # ranks share the cores of a host
        self.opt, self.reporter = opt, reporter
        self.place = group.read_place(opt.device)
        self.injector = Injector(
            self.place.name, self.place.host, opt.fault_file, partial(act, self)
        )
        self.pace = WorkStretcher(opt.step_time_s)
        self.intra = group.join_group(self.place, opt.group_timeout_s)
        """None: this rank is its whole group."""

        self.network = model.build_model(opt).to(self.place.device)
        model.split(self.network, self.intra)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=opt.learning_rate)
        self.piece = Piece(self.network, self.optimizer)
        resumed = load_checkpoint(self)
        self.manager = connect(self.place, opt, self.piece.state)
        if resumed is not None:
            self.manager.load_state_dict(resumed)
        reporter.observe_manager(self.manager)
        text = model.standard_library()
        index = model.group_index(self.place.group)
        self.batches = model.Batches(text, opt, index, self.place.group_rank)
        self.record = status.StatusFile(opt.status_file, rank=self.place.name, pid=os.getpid())
        self.record.write(
            "started",
            host=self.place.host,
            parameters=sum(p.numel() for p in self.network.parameters()),
            held=self.piece.gradient.numel(),
            step=self.manager.current_step(),
            corpus_sha256=hashlib.sha256(text).hexdigest(),
        )
        self.injector.inherit()


def connect(place: group.RankPlace, opt: TrainOptions, state: dict[str, Tensor]) -> Manager:
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
        # The seed makes all weights equal. TorchFT would copy them at step 0, for each group rank
        # from another group, and a receiving group contributes no gradient to that step: the ranks
        # of one group would take different first steps.
        init_sync=False,
        timeout=timeout,
        rank=place.group_rank,
        world_size=place.world_size,
        replica_id=place.group,
        hostname=place.address,
    )


# -- a step -----------------------------------------------------------------------------------


def try_step(rank: Rank, step: int) -> tuple[bool, float | None]:
    """Try the step; returns if it counts, and its loss: the mean over this group.

    None while the group heals: it computed with weights that it is about to replace, and
    contributed nothing to the step.
    """
    reporter, injector, piece, manager = rank.reporter, rank.injector, rank.piece, rank.manager
    with reporter.phase("communication"):
        manager.start_quorum()  # returns at once; `allreduce` waits for the quorum
        drawn = agree_on(rank, step)

    piece.gradient.zero_()
    mean_loss, finite = forward_backward(rank, drawn)

    with reporter.phase("communication"):
        injector.strike("communication")
        if rank.intra is not None:
            squares = piece.squares()
            sum_in_group(rank, squares, mean_loss)
            finite &= reporter.finite(
                loss=float(mean_loss), grad_norm=float(squares.sum()), where="group"
            )

        # TorchFT would commit a NaN, and a vote against it after the exchange protects only this
        # group. So this group abstains from such a step: it contributes zeros, so that the other
        # groups can commit, and votes no for itself. One step behind, it then heals from them.
        if not finite:
            piece.gradient.zero_()

        # Across groups: waits for the quorum, then averages over its participants.
        manager.allreduce(piece.gradient).wait()
        # The average may hold another group's NaN: nobody applies that.
        finite &= reporter.finite(grad_norm=float(piece.gradient.norm()), where="exchanged")
        if not finite:
            manager.report_error(FloatingPointError(f"not finite at step {step}"))
        took_part = manager.is_participating()
        committed = bool(manager.should_commit())  # a healing group loads its new weights here

    with reporter.phase("optimizer"):
        injector.strike("optimizer")
        if committed:
            rank.optimizer.step()
            # Lets the keeper compare this rank's piece with the same piece elsewhere.
            reporter.fingerprint(piece.weights, manager.current_step())
    return committed, float(mean_loss) if took_part else None


def agree_on(rank: Rank, step: int) -> int:
    """The step of the group's first rank: all ranks of the group read that step's data."""
    if rank.intra is None:
        return step
    clock = torch.tensor([step])
    dist.broadcast(clock, group_src=0, group=rank.intra.norms)
    return int(clock)


def forward_backward(rank: Rank, step: int) -> tuple[Tensor, bool]:
    """Forward and backward over the step's batch: the loss, and whether all is finite.

    Here FSDP2 gathers weights and scatters gradients within the group.
    """
    reporter, injector, pace, device = rank.reporter, rank.injector, rank.pace, rank.place.device
    with reporter.phase("data"):
        injector.poll(step)
        inputs, targets = rank.batches.draw(step)
    with reporter.phase("forward"):
        injector.strike("forward")
        pace.begin_work()
        loss = rank.network(inputs.to(device), targets.to(device))

    with reporter.phase("backward"):
        injector.strike("backward")
        loss.backward()
        loss = loss.detach()
        # Checked before other ranks' numbers are in it, to show which rank was first. With
        # FSDP2 the gradient is already the whole group's.
        own = float(rank.piece.gradient.norm()) if rank.intra is None else None
        finite = reporter.finite(loss=float(loss), grad_norm=own)
    pace.end_work()
    return loss, finite


def sum_in_group(rank: Rank, squares: Tensor, loss: Tensor) -> None:
    """Sum `squares` and average `loss` over the group, in place."""
    if rank.intra is None:
        return
    dist.all_reduce(squares, group=rank.intra.norms)
    dist.all_reduce(loss, group=rank.intra.metrics)
    loss /= rank.place.world_size  # gloo sums; it has no average


# -- beside the steps: logs, evaluation, and periodic work ------------------------------------


def report_try(rank: Rank, step: int, committed: bool, loss: float | None, seconds: float) -> None:
    """Report a try that led to `step`: each rank to its file, the first also to stdout.

    Tries that did not commit are always reported.
    """
    every = rank.opt.log_every
    if committed and not (every and step % every == 0):
        return
    groups = rank.manager.num_participants()
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


def now_and_then(rank: Rank, step: int) -> None:
    """Work due after a committed step; its phase keeps it from looking like a hang."""
    opt = rank.opt
    if opt.fingerprint_every and step % opt.fingerprint_every == 0:
        write_fingerprint(rank, step)
    # Saved first: after a forward pass alone FSDP2 holds whole tensors, of which the optimizer
    # knows nothing, until the next backward pass.
    if opt.checkpoint_dir and opt.checkpoint_every and step % opt.checkpoint_every == 0:
        with rank.reporter.phase("checkpoint"):
            save(rank, opt.checkpoint_dir / rank.place.group)
    if opt.evaluate_every and step % opt.evaluate_every == 0:
        with rank.reporter.phase("evaluation"):
            unseen = evaluate(rank)
        rank.record.write("evaluation", step=step, loss=unseen)


def write_fingerprint(rank: Rank, step: int) -> None:
    """Hash this rank's piece of the state."""
    sha256 = status.fingerprint(rank.piece.state)
    rank.record.write("fingerprint", step=step, piece=rank.place.group_rank, sha256=sha256)


def evaluate(rank: Rank) -> float:
    """Mean loss over text drawn with another seed, the same on all ranks."""
    total, device = 0.0, rank.place.device
    with torch.no_grad():
        for number in range(rank.opt.evaluate_batches):
            inputs, targets = rank.batches.draw_unseen(number)
            total += float(rank.network(inputs.to(device), targets.to(device)))
    return total / rank.opt.evaluate_batches


# -- the state on disk ------------------------------------------------------------------------
# By torch's distributed checkpoint (DCP). TorchFT heals a group from its peers, so checkpoints are
# for when none is left. Every group writes its own, `DIR/GROUP/step-N`, each rank its part; a start
# with `--resume` takes the newest whole one of any group, however many ranks wrote it. Two are
# kept.

_KEPT: Final = 2
_LAST: Final = ".metadata"
"""DCP writes this file of a checkpoint when all ranks have written; without it none is read."""
_CLOCK: Final = "clock"
"""Two numbers: committed steps, and batches committed by all groups, as TorchFT counts them."""


def save(rank: Rank, folder: Path) -> None:
    """Write the state into `folder`; every rank of the group calls this."""
    from torch.distributed.checkpoint import state_dict_saver as dcp  # noqa: PLC0415 - a second

    step, batches = rank.manager.current_step(), rank.manager.batches_committed()
    first, path = rank.place.group_rank == 0, folder / f"step-{step}"
    if first:
        (path / _LAST).unlink(missing_ok=True)
    dcp.save(
        {**tensors_of(rank.network, rank.optimizer), _CLOCK: torch.tensor([step, batches])},
        checkpoint_id=str(path),
        no_dist=rank.intra is None,
    )
    if first:
        for old in whole_checkpoints(folder.parent, rank.place.group)[:-_KEPT]:
            (old / _LAST).unlink()
            shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(rank: Rank) -> dict[str, int] | None:
    """With `--resume`, load the newest checkpoint; returns its state of TorchFT's Manager.

    A checkpoint that does not fit this model ends the process with one line.
    """
    opt, intra = rank.opt, rank.intra
    if not opt.resume or opt.checkpoint_dir is None:
        return None
    chosen = [next(reversed(whole_checkpoints(opt.checkpoint_dir, "*")), None)]
    if intra is not None:  # one rank chooses: another group may be writing at this moment
        cpu = torch.device("cpu")
        dist.broadcast_object_list(chosen, group_src=0, group=intra.norms, device=cpu)
    path = chosen[0]
    if path is None:
        return None
    from torch.distributed.checkpoint import state_dict_loader as dcp  # noqa: PLC0415

    clock = torch.zeros(2, dtype=torch.int64)
    wanted: dict[str, Any] = {**tensors_of(rank.network, rank.optimizer), _CLOCK: clock}
    try:
        dcp.load(wanted, checkpoint_id=str(path), no_dist=intra is None)
    except Exception as error:  # noqa: BLE001 - DCP wraps whatever a rank met, by rank
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        why = lines[-1] if lines else type(error).__name__
        sys.exit(f"trainer: cannot resume from {path}: {why}")
    step, batches = (int(number) for number in clock)
    return {"step": step, "batches_committed": batches}


def whole_checkpoints(directory: Path, group: str) -> list[Path]:
    """The whole checkpoints of a group, or of `*`, by step."""
    steps = {
        int(number): file.parent
        for file in sorted(directory.glob(f"{group}/step-*/{_LAST}"))
        if (number := file.parent.name.removeprefix("step-")).isdecimal()
    }
    return [steps[step] for step in sorted(steps)]


# -- the process ------------------------------------------------------------------------------


@record  # torchrun finds the traceback of the rank that failed first in its error file
def main() -> None:
    opt = options.rank_options()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # end at once, even from inside a C call
    # TorchFT warns at every quorum that it cannot reset NCCL's flight recorder: there is none.
    noise = "Unable to reset NCCL flight recorder"
    logging.getLogger("torchft.manager").addFilter(lambda line: noise not in line.getMessage())
    warnings.filterwarnings("ignore", message="The given buffer is not writable")  # its transport
    train(opt, lightkeeper.attach())


if __name__ == "__main__":
    main()
