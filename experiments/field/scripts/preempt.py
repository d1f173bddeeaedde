"""Groups of several ranks that leave when they are asked to: torch's DDP inside, TorchFT across."""

import os
import signal

import tools
import torch
import torch.distributed as dist
from corpus import Corpus
from model import NextByte, loss_of
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torchft import Manager, ProcessGroupGloo

GROUP = os.environ["REPLICA_GROUP_ID"]
ASKED = []


def main():
    signal.signal(signal.SIGTERM, lambda number, frame: ASKED.append(number))
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    network = NextByte()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = tools.Metrics(os.environ["OUTPUT"])
    loader = DataLoader(Corpus(start=int(GROUP) * 7919, length=100_000), batch_size=4)
    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
        load_state_dict=network.load_state_dict, state_dict=network.state_dict,
        replica_id=f"train_{GROUP}",
    )  # fmt: skip
    for batch in loader:
        manager.start_quorum()
        optimizer.zero_grad()
        tools.compute()
        loss = loss_of(model(batch[:, :-1]), batch)
        loss.backward()
        for parameter in model.parameters():
            manager.allreduce(parameter.grad).wait()
        if manager.should_commit():
            optimizer.step()
        metrics.log_step(manager.current_step(), loss.item(), manager.num_participants())
        if ASKED:  # a save is enough, says the author, and forgets the other ranks
            tools.save_checkpoint(network, os.environ["OUTPUT"], manager.current_step())
            manager.shutdown()
            return


if __name__ == "__main__":
    main()
