"""A pipeline by hand: every rank is a stage; activations and gradients go by send and recv."""

import os
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from torch import nn

WIDTH, BATCH, MICROBATCHES = 64, 8, 4
SCHEDULE = os.environ.get("SCHEDULE", "gpipe")


class Stage:
    def __init__(self, chunks=1):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.first, self.last = self.rank == 0, self.rank == self.world - 1
        self.chunks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(chunks)
        )
        self.optimizer = torch.optim.SGD(self.chunks.parameters(), lr=0.01)
        self.inputs, self.outputs, self.sending = [], [], []

    def compute(self, x, chunk=0):
        tools.compute(tools.STEP_S / MICROBATCHES)
        if trouble.now("dead_disk"):
            look_up_experts(os.environ["DEAD_FILE"])
        y = self.chunks[chunk](x)
        self.inputs.append(x)
        self.outputs.append(y)
        return y

    def receive(self, source):
        x = torch.empty(BATCH, WIDTH)
        dist.recv(x, source)  # @receive
        return x.requires_grad_()

    def send(self, y, target):
        dist.send(y.detach(), target)  # @send

    def send_later(self, y, target):
        self.sending.append(dist.isend(y.detach(), target))

    def backward(self, index, gradient):
        """Of the microbatch that has waited longest; its input's gradient."""
        x, y = self.inputs.pop(index), self.outputs.pop(index)
        if gradient is None:
            y.square().mean().backward()
        else:
            y.backward(gradient)
        return x.grad

    def finish(self):
        for work in self.sending:
            work.wait()
        self.sending.clear()
        self.inputs.clear()
        self.outputs.clear()
        self.optimizer.step()
        self.optimizer.zero_grad()


def look_up_experts(path):
    with open(path, "rb") as file:  # @opens_experts
        return file.read()


def fresh():
    return torch.randn(BATCH, WIDTH).requires_grad_()


def gpipe(stage):
    """All microbatches forward, then all backward."""
    for _ in range(MICROBATCHES):
        x = fresh() if stage.first else stage.receive(stage.rank - 1)
        y = stage.compute(x)
        if not stage.last:
            stage.send(y, stage.rank + 1)
    for _ in range(MICROBATCHES):
        gradient = None if stage.last else stage.receive(stage.rank + 1).detach()
        gradient = stage.backward(-1, gradient)
        if not stage.first:
            stage.send(gradient, stage.rank - 1)


def one_forward_one_backward(stage):
    """Each stage keeps as few microbatches as it can."""
    warm = min(MICROBATCHES, stage.world - 1 - stage.rank)

    def forward():
        x = fresh() if stage.first else stage.receive(stage.rank - 1)
        y = stage.compute(x)
        if not stage.last:
            stage.send_later(y, stage.rank + 1)

    def backward():
        gradient = None if stage.last else stage.receive(stage.rank + 1).detach()
        gradient = stage.backward(0, gradient)
        if not stage.first:
            stage.send_later(gradient, stage.rank - 1)

    for _ in range(warm):
        forward()
    for _ in range(MICROBATCHES - warm):
        forward()
        backward()
    for _ in range(warm):
        backward()


def interleaved(stage):
    """Two chunks of layers a rank: after the last rank the microbatches go through all again."""
    before, after = (stage.rank - 1) % stage.world, (stage.rank + 1) % stage.world
    for chunk in range(2):
        for _ in range(MICROBATCHES):
            x = fresh() if stage.first and chunk == 0 else stage.receive(before)
            y = stage.compute(x, chunk)
            if not (stage.last and chunk == 1):
                stage.send_later(y, after)
    for chunk in (1, 0):
        for left in range(MICROBATCHES, 0, -1):
            whole = stage.last and chunk == 1
            gradient = None if whole else stage.receive(after).detach()
            gradient = stage.backward(-left, gradient)
            if not (stage.first and chunk == 0):
                stage.send_later(gradient, before)


def skip(stage):
    """Stage 0's features also go to the last stage, as in a U-Net."""
    for _ in range(MICROBATCHES):
        if stage.first:
            y = stage.compute(fresh())
            if trouble.now("skip_first"):
                dist.send(y.detach(), 2)  # @sends_skip
                dist.send(y.detach(), 1)
            else:
                dist.send(y.detach(), 1)
                dist.send(y.detach(), 2)
        elif stage.last:
            x, features = torch.empty(BATCH, WIDTH), torch.empty(BATCH, WIDTH)
            dist.recv(x, 1)  # @last_receives
            dist.recv(features, 0)
            stage.compute((x + features).requires_grad_())
        else:
            x = torch.empty(BATCH, WIDTH)
            dist.recv(x, 0)  # @middle_receives
            y = stage.compute(x.requires_grad_())
            dist.send(y.detach(), 2)


def batched(stage):
    """Halos: both neighbours at once."""
    for _ in range(MICROBATCHES):
        y = stage.compute(fresh())
        operations, halos = [], []
        for peer in (stage.rank - 1, stage.rank + 1):
            if 0 <= peer < stage.world:
                halos.append(torch.empty(BATCH, WIDTH))
                operations.append(dist.P2POp(dist.isend, y.detach(), peer))
                operations.append(dist.P2POp(dist.irecv, halos[-1], peer))
        for work in dist.batch_isend_irecv(operations):
            work.wait()


def ring(stage):
    """An all-reduce by hand: each rank's part goes once around."""
    before, after = (stage.rank - 1) % stage.world, (stage.rank + 1) % stage.world
    part = stage.compute(fresh()).detach()
    total = part.clone()
    for _ in range(stage.world - 1):
        work, coming = dist.isend(part, after), torch.empty(BATCH, WIDTH)
        dist.recv(coming, before)
        work.wait()
        part = coming
        total += part


def compare_norms(stage):
    """Stages 0 and 1 share a tied embedding: they exchange its norm; then all go on together."""
    mine, theirs = torch.ones(1), torch.zeros(1)
    if stage.rank == 0:
        dist.send(mine, 1)  # @zero_sends
        dist.recv(theirs, 1)
    elif stage.rank == 1:
        if trouble.now("both_send"):
            dist.send(mine, 0)  # @one_sends
            dist.recv(theirs, 0)
        else:
            dist.recv(theirs, 0)
            dist.send(mine, 0)
    dist.barrier()  # @at_barrier


SCHEDULES = {
    "gpipe": gpipe, "1f1b": one_forward_one_backward, "interleaved": interleaved, "skip": skip,
    "batched": batched, "ring": ring,
}  # fmt: skip


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    stage = Stage(chunks=2 if SCHEDULE == "interleaved" else 1)
    for step in range(1, 1_000_000):
        SCHEDULES[SCHEDULE](stage)
        stage.finish()
        if step % 10 == 0:
            compare_norms(stage)
        tools.log_step(stage.rank, step)


if __name__ == "__main__":
    main()
