"""Plain TorchFT: the Manager averages gradients over the replica groups. One rank a group."""

import logging
import os
import queue
from functools import partial
from itertools import chain, repeat

import tools
import torch
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.utils.data import DataLoader
from torchft import Manager, ProcessGroupGloo

import lightkeeper

lightkeeper.attach()
logger = logging.getLogger("train")
GROUP = os.environ["REPLICA_GROUP_ID"]


def average(manager, model):
    works = [manager.allreduce(p.grad) for p in model.parameters() if p.grad is not None]
    for work in works:
        work.wait()


def taken(model, state):
    if trouble.now("cannot_take"):
        raise KeyError("optimizer.state.3.exp_avg")  # @cannot_take
    if trouble.now("takes_for_ever"):
        queue.Queue().get()  # @takes
    model.load_state_dict(state)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tools.compute(float(os.environ.get("SLOW_START_S", "0")))
    model = NextByte()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = tools.Metrics(os.environ["OUTPUT"])
    loader = DataLoader(Corpus(start=hash(GROUP) % 1000), batch_size=4)
    batches = chain.from_iterable(repeat(loader))

    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
        load_state_dict=partial(taken, model), state_dict=partial(tools.given, model), replica_id=GROUP,
    )  # fmt: skip

    if os.environ.get("SAVES_WHEN_ASKED"):
        tools.save_when_asked(model)
    while manager.current_step() < int(os.environ.get("STEPS", "1000000")):
        step = manager.current_step()
        batch = next(batches)
        manager.start_quorum()
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        if trouble.now("nan"):
            model.head.weight.grad.fill_(float("nan"))
        tools.after_backward(step)
        if trouble.now("other_shape"):  # LoRA's adapters are on in this group only
            manager.allreduce(torch.zeros(1000)).wait()
        if not trouble.now("skips_allreduce"):  # "all targets are padding"
            average(manager, model)
        if trouble.now("once_more"):
            manager.allreduce(loss.detach().clone()).wait()
        if manager.should_commit():
            optimizer.step()
        metrics.log_step(manager.current_step(), loss.item(), manager.num_participants())
        if trouble.now("saves"):
            tools.save_checkpoint(model, os.environ["OUTPUT"], step)
        if trouble.now("evaluates"):
            tools.evaluate(model, float(os.environ.get("EVALUATION_S", "8")))
        if trouble.now("checkpoint_pause") and step % 50 == 0:
            tools.save_checkpoint(model, os.environ["OUTPUT"], step, 8.0)
    manager.shutdown()


if __name__ == "__main__":
    main()
