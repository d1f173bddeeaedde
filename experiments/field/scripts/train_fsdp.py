"""FSDP2 inside a replica group and TorchFT across, in the style of torchtitan's trainer."""

import os
import signal
from datetime import timedelta

import tools
import torch
import torch.distributed as dist
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader
from torchft import Manager, ProcessGroupGloo

import lightkeeper

lightkeeper.attach()


class Trainer:
    def __init__(self):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.group = os.environ["REPLICA_GROUP_ID"]
        timeout = timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT_S", "1800")))
        dist.init_process_group("gloo", timeout=timeout)
        mesh = init_device_mesh(
            "cpu", (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp_shard",)
        )
        self.model = NextByte()
        for block in self.model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.shards = {name: p.to_local() for name, p in self.model.named_parameters()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.manager = Manager(
            pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
            load_state_dict=self.load, state_dict=lambda: self.shards,
            replica_id=f"fsdp_{self.group}",
        )  # fmt: skip
        self.metrics = tools.Metrics(os.environ["OUTPUT"])
        self.loader = DataLoader(
            Corpus(start=dist.get_rank() * 7919), batch_size=4,
            num_workers=int(os.environ.get("WORKERS", "0")),
        )  # fmt: skip

    def load(self, shards):
        for name, shard in shards.items():
            self.shards[name].data.copy_(shard)

    def batch_generator(self):
        while True:
            yield from self.loader

    def train_step(self, batch):
        self.manager.start_quorum()
        self.optimizer.zero_grad()
        tools.compute()
        if trouble.now("stops_itself"):  # as by `kill -STOP`, before its peers gather its shards
            os.kill(os.getpid(), signal.SIGSTOP)
        loss = loss_of(self.model(batch[:, :-1]), batch)
        if not trouble.now("skips_backward"):
            loss.backward()
        tools.after_backward(self.manager.current_step())
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                self.manager.allreduce(parameter.grad.to_local()).wait()
        if self.manager.should_commit():
            self.optimizer.step()
        return loss.item()

    def train(self):
        for batch in self.batch_generator():
            loss = self.train_step(batch)
            manager = self.manager
            self.metrics.log_step(manager.current_step(), loss, manager.num_participants())


if __name__ == "__main__":
    Trainer().train()
