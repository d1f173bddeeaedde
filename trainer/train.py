"""One rank of a fault-tolerant training job, from top to bottom.

Run it under torchrun, one torchrun per replica group (see `--help` for a session to copy):

    REPLICA_GROUP=rg_1 torchrun --standalone --nproc-per-node 2 -m trainer.train --steps 100

Two levels of data parallelism. Inside a replica group the ranks depend on each other: when
one fails, the group fails, and its launcher starts it again. Across groups nobody depends on
anybody: TorchFT agrees at every step on who takes part (the quorum), averages the gradients
of those, and votes on whether the step counts (the commit). A group that comes back fetches
the weights of one that stayed, over HTTP, while the others work on.

Everything that waits for other ranks happens in phase "communication" and nowhere else. That
one rule lets an observer tell who holds the job back from who is waiting for him.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

# TorchFT's Rust part reads this when it is imported; at its default it logs every quorum.
os.environ.setdefault("RUST_LOG", "error")

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchft import Manager, ProcessGroupGloo

import worker_server
from trainer import aside, broken, data, faults, link, model, options, status
from trainer.faults import Kind, Variant
from trainer.injector import Injector
from trainer.pace import Pace
from worker_server.wire import rank_name

if TYPE_CHECKING:
    from worker_server.reporter import StepReporter


@dataclass(frozen=True, slots=True)
class Place:
    """Where this rank stands: what torchrun and the group's launcher put into the environment."""

    group: str
    group_rank: int
    world_size: int
    """Ranks in this replica group."""
    host: str | None
    address: str
    """Where other groups reach this group's manager: where torchrun lets its ranks meet."""

    @property
    def name(self) -> str:
        """Name of the rank in the job, such as `rg_1.0`."""
        return rank_name(self.group, self.group_rank)


def read_place() -> Place:
    """Where this rank stands; what is missing ends the process with one line."""
    missing = [
        name for name in ("RANK", "WORLD_SIZE", "TORCHFT_LIGHTHOUSE") if name not in os.environ
    ]
    if missing:
        sys.exit(
            f"trainer: {' and '.join(missing)} not set: start me under torchrun, with "
            "TORCHFT_LIGHTHOUSE=http://host:port (python -m trainer.train --help shows how)"
        )
    meeting = os.environ.get("MASTER_ADDR", "")
    return Place(
        group=os.environ.get("REPLICA_GROUP") or os.environ.get("REPLICA_GROUP_ID") or "job",
        group_rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        host=os.environ.get("LIGHTKEEPER_HOST"),
        # torchrun on one machine says `localhost`, for which the manager may take ::1 alone.
        address="127.0.0.1" if meeting in ("", "localhost") else meeting,
    )


@dataclass(frozen=True, slots=True)
class Intra:
    """The ranks of one replica group, twice: jobs have several process groups over them."""

    gradients: dist.ProcessGroup
    metrics: dist.ProcessGroup


def join_group(place: Place, timeout_s: float) -> Intra | None:
    """Meet the other ranks of this replica group; None when this rank is the whole group.

    `init_process_group` also brings up the store in which TorchFT's Manager leaves its address.
    """
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group("gloo", timeout=timeout)
    if place.world_size == 1:
        return None
    return Intra(
        gradients=dist.new_group(timeout=timeout, group_desc="intra"),
        metrics=dist.new_group(timeout=timeout, group_desc="metrics"),
    )


def flatten_gradients(network: nn.Module) -> Tensor:
    """One flat tensor that every parameter's gradient is a view of: one collective moves it."""
    parameters = list(network.parameters())
    flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
    begin = 0
    for parameter in parameters:
        end = begin + parameter.numel()
        parameter.grad = flat[begin:end].view_as(parameter)
        begin = end
    return flat


def collect_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """All tensors that make two groups equal: the weights and what AdamW keeps of each.

    Taken once. TorchFT asks for the state on its quorum thread while this thread is in the
    forward pass; a state_dict() made at that moment runs hooks under the model's feet (it
    broke torchtitan 0.3.0). Handing out the same tensors every time is safe: they change
    only in the optimizer step, and TorchFT lets no checkpoint be read during that.

    AdamW makes its tensors in its first step, so there is one here that changes nothing.
    """
    rates = [group["lr"] for group in optimizer.param_groups]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()  # gradients are zero and so is the rate: only the moments come into being
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    tensors = {}
    for name, parameter in network.named_parameters():
        tensors[name] = parameter.data
        for kind, tensor in optimizer.state[parameter].items():
            tensors[f"{name}/{kind}"] = tensor.zero_()
    return tensors


def start_manager(place: Place, opt: options.Options, state: dict[str, Tensor]) -> Manager:
    """TorchFT's side of this rank; group rank 0 also hosts the group's manager server."""

    def load(fetched: dict[str, Tensor]) -> None:
        for name, tensor in state.items():
            tensor.copy_(fetched[name])  # in place: optimizer and flat gradient keep their views

    # What ProcessGroupGloo is to TorchFT it is to gloo: a new mesh of sockets at every quorum.
    process_group = ProcessGroupGloo(timeout=timedelta(seconds=opt.timeout_s))
    return Manager(
        pg=process_group,
        load_state_dict=load,
        state_dict=lambda: state,
        min_replica_size=opt.min_replicas,
        use_async_quorum=True,  # the quorum forms while this rank computes
        # The seed makes all weights equal. TorchFT would copy them at step 0, for each group rank
        # from another group, and a group that is copied to brings no gradient to that step: the
        # ranks of one group, who hold the same weights, would take different first steps.
        init_sync=False,
        timeout=timedelta(seconds=opt.timeout_s),
        quorum_timeout=timedelta(seconds=opt.quorum_timeout_s),
        connect_timeout=timedelta(seconds=opt.connect_timeout_s),
        replica_id=place.group,
        hostname=place.address,
    )


def average_in_group(
    gradients: Tensor, loss: Tensor, intra: Intra, variant: Variant | None
) -> None:
    """Average both over the ranks of this replica group, in place; `variant` injects a fault."""
    if variant is not None:
        broken.all_reduces(gradients, loss, intra.gradients, intra.metrics, variant)
    else:
        dist.all_reduce(gradients, group=intra.gradients)
        dist.all_reduce(loss, group=intra.metrics)
    size = dist.get_world_size(intra.gradients)
    gradients /= size  # gloo sums; it has no average
    loss /= size


def train(opt: options.Options, reporter: StepReporter) -> None:  # noqa: C901, PLR0915 - reads top to bottom
    """Train until `--steps` steps are committed.

    Raises:
        Exception: whatever the communication libraries raise when they give up; the process
            ends and the group's launcher starts it again.
    """
    # -- start: everything until the first step -------------------------------------------
    with reporter.phase("init"):
        place = read_place()
        torch.set_num_threads(1)  # ranks share the cores of a host
        intra = join_group(place, opt.group_timeout_s)

        corpus = data.standard_library()
        index = data.group_index(place.group)
        network = model.build(
            model.ModelConfig(opt.layers, opt.width, opt.heads, opt.context), opt.seed
        )
        gradients = flatten_gradients(network)
        optimizer = torch.optim.AdamW(network.parameters(), lr=opt.learning_rate)
        state = collect_state(network, optimizer)

        injector = Injector(
            place.name,
            world_size=place.world_size,
            host=place.host,
            file=opt.fault_file,
            planned=faults.parse_specs(os.environ.get(faults.ENVIRONMENT, "")),
            declare=reporter.phase,
        )
        pace = Pace(opt.step_time_s)
        record = status.open_for(opt.status_file, place.name)
        record.write(
            "started",
            host=place.host,
            parameters=gradients.numel(),
            corpus_sha256=corpus.sha256,
        )
        manager = start_manager(place, opt, state)
        reporter.observe_manager(manager)

    # -- steps: each is tried until TorchFT says that it counts ------------------------------
    while not opt.steps or manager.current_step() < opt.steps:
        began_s = time.perf_counter()
        step = manager.current_step()
        reporter.begin_step(step)

        with reporter.phase("communication"):
            manager.start_quorum()  # returns at once; whoever needs the quorum waits for it below
            clock = torch.tensor([step])
            if intra is not None:
                # All ranks of the group read for the step of group rank 0.
                root = 1 if injector.take_mismatch(Variant.ROOT) else 0
                dist.broadcast(clock, group_src=root, group=intra.gradients)

        with reporter.phase("data"):
            injector.poll(step)
            pace.load_data(injector.slowness[Kind.SLOW_DATA])
            inputs, targets = corpus.batch(
                seed=opt.seed,
                step=int(clock),
                group_index=index,
                group_rank=place.group_rank,
                size=opt.batch,
                length=opt.context,
            )

        with reporter.phase("forward"):
            injector.strike("forward")
            pace.begin_work(injector.slow_factor)
            loss = network(inputs, targets)

        with reporter.phase("backward"):
            injector.strike("backward")
            gradients.zero_()
            loss.backward()
            if injector.nan:
                gradients[0] = math.nan
            # Asked before anybody else's numbers are in it: that tells who was first.
            finite = reporter.finite(loss=loss.detach(), grad_norm=gradients.norm())
            pace.end_work()

        with reporter.phase("communication"):
            injector.strike("communication")
            if injector.slowness[Kind.SLOW_LINK] > 1.0:
                link.throttle(link.FAIR_BYTES_PER_S / injector.slowness[Kind.SLOW_LINK])
            mean_loss = loss.detach()
            if intra is not None:
                variant = injector.take_mismatch(*broken.VARIANTS)
                average_in_group(gradients, mean_loss, intra, variant)
                norm = gradients.norm()
                finite = reporter.finite(loss=mean_loss, grad_norm=norm, where="group") and finite

            # TorchFT would commit a NaN, and a vote against it after the exchange keeps it from
            # this group alone. This group abstains from such a step instead: it brings zeros, so
            # that the other groups can commit, and votes no for itself. One step behind, it then
            # heals from them.
            if not finite:
                gradients.zero_()

            # Across groups: waits for the quorum, then averages over its participants.
            manager.allreduce(gradients).wait()
            # What came back may hold somebody else's NaN: nobody takes that in.
            finite = reporter.finite(grad_norm=gradients.norm(), where="exchanged") and finite
            if not finite:
                manager.report_error(FloatingPointError(f"not finite at step {step}"))
            committed = manager.should_commit()  # a healing group loads its new weights in here

        with reporter.phase("optimizer"):
            injector.strike("optimizer")
            if committed:
                optimizer.step()
                if injector.take_corruption():
                    broken.flip_bit(network)
                # Every rank of every group holds all weights: one shard, equal everywhere.
                reporter.fingerprint(network, manager.current_step(), shard=0)

        loss_value = float(mean_loss) * injector.take_spike()

        reporter.end_step(
            step, committed=committed, loss=loss_value, tokens=opt.batch * opt.context
        )

        done = manager.current_step()  # steps of the job that count; a heal jumps ahead
        if not committed or (opt.log_every and done % opt.log_every == 0):
            say(
                record,
                place,
                step=done,
                committed=committed,
                loss=loss_value,
                participants=manager.num_participants(),
                seconds=time.perf_counter() - began_s,
            )
        if committed and opt.fingerprint_every and done % opt.fingerprint_every == 0:
            record.write("fingerprint", step=done, sha256=status.fingerprint(state))

        if committed:
            aside.now_and_then(
                opt,
                step=done,
                rank=place.name,
                network=network,
                corpus=corpus,
                state=state,
                reporter=reporter,
                record=record,
            )

    record.write("finished", step=manager.current_step())
    record.close()
    reporter.close()  # from here on, silence is no failure
    manager.shutdown(wait=False)
    dist.destroy_process_group()


def say(
    record: status.StatusFile,
    place: Place,
    *,
    step: int,
    committed: bool,
    loss: float,
    participants: int,
    seconds: float,
) -> None:
    """One line about a step: for programs from every rank, for people from group rank 0."""
    record.write(
        "step",
        step=step,
        committed=committed,
        loss=loss if math.isfinite(loss) else None,
        participants=participants,
        seconds=round(seconds, 6),
    )
    if place.group_rank == 0:
        print(
            f"{place.name}  step {step}  loss {loss:.3f}  groups {participants}  "
            f"{seconds * 1e3:.0f} ms{'' if committed else '  NOT COMMITTED'}",
            flush=True,
        )


def quieten(record: logging.LogRecord) -> bool:
    """TorchFT warns at every quorum that it cannot reset NCCL's flight recorder: there is none."""
    return "Unable to reset NCCL flight recorder" not in record.getMessage()


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
