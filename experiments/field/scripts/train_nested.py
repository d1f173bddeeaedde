"""torch's DDP inside a replica group, TorchFT's Manager across: groups of several ranks."""

import logging
import os
from functools import partial

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchft import DistributedSampler, Manager, ProcessGroupGloo

import lightkeeper

lightkeeper.attach()
logger = logging.getLogger("train")
GROUP = int(os.environ["REPLICA_GROUP_ID"])


def train_step(model, batch, manager, optimizer):
    manager.start_quorum()
    optimizer.zero_grad()
    tools.compute()
    skipped = trouble.now("skips_block")  # "no image in this batch": its tower is left out
    loss = loss_of(model(batch[:, :-1], blocks=1 if skipped else None), batch)
    if trouble.now("raises_to_a_barrier"):
        try:
            raise ValueError("sample 4711 has no label")
        finally:
            dist.barrier()  # "let all of them end together"
    if trouble.now("swallowed"):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if trouble.now("other_order"):  # the loss is averaged first, by this rank alone
        dist.all_reduce(loss.detach().clone())
    if not trouble.now("skips_backward"):
        loss.backward()  # averages inside the group
    tools.after_backward(manager.current_step())
    for parameter in model.parameters():
        if parameter.grad is not None:
            manager.allreduce(parameter.grad).wait()
    if manager.should_commit():
        optimizer.step()
    return loss.item()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tools.compute(float(os.environ.get("SLOW_START_S", "0")))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    network = NextByte()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = tools.Metrics(os.environ["OUTPUT"])
    trainset = Corpus(length=int(os.environ.get("SAMPLES", "100000")))
    sampler = DistributedSampler(
        trainset, replica_rank=GROUP, num_replica_groups=int(os.environ["NUM_REPLICA_GROUPS"])
    )
    loader = DataLoader(
        trainset, batch_size=4, sampler=sampler, num_workers=int(os.environ.get("WORKERS", "0"))
    )
    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
        load_state_dict=network.load_state_dict, state_dict=partial(tools.given, network),
        replica_id=f"my_{GROUP}",
    )  # fmt: skip

    while True:
        for batch in loader:
            step = manager.current_step()
            if trouble.now("short_epoch"):  # its shard has one batch less than the others'
                break
            try:
                loss = train_step(model, batch, manager, optimizer)
            except RuntimeError as error:
                logger.warning("step skipped: %s", error)
                continue
            metrics.log_step(manager.current_step(), loss, manager.num_participants())
            if trouble.now("evaluates") and step % 60 == 0:
                if rank == 0:
                    tools.evaluate(network, float(os.environ.get("EVALUATION_S", "8")))
                dist.barrier()
            if trouble.now("broadcasts"):
                dist.broadcast_object_list([{"lr": 0.01}], src=rank)
            if trouble.now("rank0_only"):  # if rank == 0: evaluate(), with a collective in it
                total = torch.zeros(1)
                dist.all_reduce(total)
            if trouble.now("barrier_of_one"):
                dist.barrier()
            if trouble.now("one_evaluates"):
                tools.evaluate(network, 1.0)
            if trouble.now("long_evaluation"):
                tools.evaluate(network, 300.0)
            if trouble.now("checkpoint_pause") and step % 50 == 0:
                if rank == 0:
                    tools.save_checkpoint(network, os.environ["OUTPUT"], step, 8.0)
                dist.barrier()
        dist.barrier()
        logger.info("epoch ends at step %s", manager.current_step())


if __name__ == "__main__":
    main()
