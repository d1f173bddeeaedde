"""torch's DDP, and what people do around its step; SHAPE says which loop."""

import os

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

SHAPE = os.environ.get("SHAPE", "metrics")
EVERY = 10


class Normed(NextByte):
    """With running statistics of its logits, as batch norm keeps them."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(256))
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("spread", torch.zeros(16, 16))

    def forward(self, text):
        logits = super().forward(text)
        with torch.no_grad():
            self.mean.lerp_(logits.mean((0, 1)), 0.1)
            self.seen += 1
        return logits


def batches(rank, count=None):
    loader = DataLoader(Corpus(start=1000 * rank), batch_size=4)
    for number, batch in enumerate(loader):
        if number == count:
            return
        yield batch


def forever(rank):
    while True:
        yield from batches(rank)


def train_step(model, optimizer, batch):
    tools.compute()
    loss = loss_of(model(batch[:, :-1]), batch)
    loss.backward()  # @ddp_backward
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def metrics(rank, model, optimizer):
    """The loss of all ranks, now and then."""
    for step, batch in enumerate(forever(rank)):
        loss = train_step(model, optimizer, batch)
        if step % EVERY == 0:
            if trouble.now("reduces"):  # "only the first rank needs it", in one host's checkout
                dist.reduce(loss, 0)  # @reduces
            else:
                dist.all_reduce(loss)  # @all_reduces_loss
        tools.log_step(rank, step, loss)


def epochs(rank, model, optimizer):
    """At the end of an epoch the first rank writes what all of them lost."""
    step = 0
    while True:
        total = torch.zeros(1)
        for batch in batches(rank, EVERY):
            total += train_step(model, optimizer, batch)
            step += 1
            tools.log_step(rank, step)
        dist.all_reduce(total)  # @epoch_loss
        if trouble.now("logs_alone"):  # if rank == 0: log(best(total))
            dist.all_reduce(total, dist.ReduceOp.MIN)  # @logs_alone


def accumulate(rank, model, optimizer):
    """Four batches make one step; the first three stay local."""
    step, source = 0, forever(rank)
    while True:
        last = 3
        if trouble.now("no_sync"):
            last = 4  # counts from one, in the job's newest file
        for micro in range(4):
            tools.compute(tools.STEP_S / 4)
            batch = next(source)
            if micro < last:
                with model.no_sync():
                    loss_of(model(batch[:, :-1]), batch).backward()
            else:
                loss_of(model(batch[:, :-1]), batch).backward()  # @synced_backward
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % EVERY == 0:
            dist.barrier()  # @saves_together
        tools.log_step(rank, step)


def uneven(rank, model, optimizer):
    """Shards of different lengths: who has no more joins in with zeros."""
    step = 0
    while True:
        count = EVERY + (0 if os.environ.get("EVEN") else rank)
        if trouble.now("short_shard"):
            count = EVERY - 3
        with Join([model], enable="EVEN" not in os.environ):
            for batch in batches(rank, count):
                train_step(model, optimizer, batch)
                step += 1
                tools.log_step(rank, step)
        dist.barrier()  # @epoch_barrier


def buffers(rank, model, optimizer):
    """The first rank's statistics are everybody's, now and then."""
    statistics = dict(model.module.named_buffers())
    for step, batch in enumerate(forever(rank)):
        train_step(model, optimizer, batch)
        if step % EVERY == 0:
            names = sorted(statistics)
            if trouble.now("other_order"):  # a set's order is another one in every process
                names = ["spread", "seen", "mean"]  # by chance of the same sizes
            elif trouble.now("other_sizes"):
                names = ["seen", "spread", "mean"]
            for name in names:
                dist.broadcast(statistics[name], 0)  # @broadcasts_buffer
        tools.log_step(rank, step)


def clock(rank, model, optimizer):
    """Until the allocation ends, by each rank's own clock; one of them runs fast."""
    for step, batch in enumerate(forever(rank)):
        if trouble.now("time_is_up"):
            break
        train_step(model, optimizer, batch)
        tools.log_step(rank, step)
    dist.barrier()  # @after_the_loop
    tools.save_checkpoint(model.module, os.environ["OUTPUT"], 0)


def agreed_clock(rank, model, optimizer):
    """Until the allocation ends, by the first rank's clock."""
    for step, batch in enumerate(forever(rank)):
        time_is_up = torch.tensor([trouble.now("time_is_up")])
        dist.broadcast(time_is_up, 0)
        if time_is_up:
            break
        train_step(model, optimizer, batch)
        tools.log_step(rank, step)
    dist.barrier()
    tools.save_checkpoint(model.module, os.environ["OUTPUT"], 0)


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Normed(), forward_sync_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    globals()[SHAPE](dist.get_rank(), model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
