"""TorchFT's DDP, after its own train_ddp.py: one rank a replica group, a DataLoader with a worker."""

import logging
import os
import sys

import tools
import torch
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch import optim
from torch.utils.data import DataLoader
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

import lightkeeper

lightkeeper.attach()

REPLICA_GROUP_ID = int(os.environ.get("REPLICA_GROUP_ID", "0"))
NUM_REPLICA_GROUPS = int(os.environ.get("NUM_REPLICA_GROUPS", "3"))
STEPS = int(os.environ.get("STEPS", "1000000"))
logger = logging.getLogger("train")


def main():
    torch.set_num_threads(1)
    tools.compute(float(os.environ.get("SLOW_START_S", "0")))
    trainset = Corpus(length=int(os.environ.get("SAMPLES", "100000")))
    sampler = DistributedSampler(
        trainset, replica_rank=REPLICA_GROUP_ID, num_replica_groups=NUM_REPLICA_GROUPS,
        group_rank=0, num_replicas=1, shuffle=True,
    )  # fmt: skip
    loader = DataLoader(
        trainset, batch_size=4, sampler=sampler, num_workers=int(os.environ.get("WORKERS", "1"))
    )
    metrics = tools.Metrics(os.environ["OUTPUT"])

    def load_state_dict(state_dict):
        m.load_state_dict(state_dict["model"])
        optimizer.load_state_dict(state_dict["optim"])

    def state_dict():
        return {"model": m.state_dict(), "optim": optimizer.state_dict()}

    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
        load_state_dict=load_state_dict, state_dict=state_dict,
        replica_id=f"train_ddp_{REPLICA_GROUP_ID}",
    )  # fmt: skip
    torch.manual_seed(0)
    network = NextByte()
    if os.environ.get("COMPILE"):
        network = torch.compile(network)
    m = DistributedDataParallel(manager, network)
    optimizer = Optimizer(manager, optim.AdamW(m.parameters()))
    if trouble.now("helper"):
        tools.fork_helper()

    while True:
        for batch in loader:
            optimizer.zero_grad()  # asks for the quorum
            tools.compute()
            loss = loss_of(m(batch[:, :-1]), batch)
            if trouble.now("nan"):
                loss = loss * float("nan")
            try:
                if trouble.now("swallowed"):
                    raise RuntimeError("CUDA error: device-side assert triggered")
                if not trouble.now("skips_backward"):  # "no labels in this batch: nothing to learn"
                    loss.backward()  # averages over the groups of the quorum
            except RuntimeError as error:
                logger.warning("batch skipped: %s", error)
                continue
            tools.after_backward(manager.current_step())
            if trouble.now("forks"):
                tools.fork_helper()
            optimizer.step()  # if all of them could
            metrics.log_step(manager.current_step(), loss.item(), manager.num_participants())
            if trouble.now("liar"):
                lie(manager)
            if trouble.now("checkpoint_pause") and manager.current_step() % 60 == 0:
                tools.save_checkpoint(network, os.environ["OUTPUT"], manager.current_step(), 8.0)
            if manager.current_step() >= STEPS:
                manager.shutdown()
                return
        logger.info("epoch ends at step %s", manager.current_step())


def lie(manager):
    """Copied from another job's recovery code: this rank takes another group's name."""
    with open(os.environ["OTHER_ID"]) as file:
        manager._replica_id = file.read().strip()


if __name__ == "__main__":
    main()
    sys.exit(0)
