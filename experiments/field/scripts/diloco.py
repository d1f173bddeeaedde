"""DiLoCo: sixty steps alone, then the groups meet. One rank a group."""

import os

import tools
import torch
import trouble
from corpus import Corpus
from model import NextByte, loss_of
from torch.utils.data import DataLoader
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo

GROUP = os.environ["REPLICA_GROUP_ID"]
SYNC_EVERY = int(os.environ.get("SYNC_EVERY", "60"))


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = NextByte()
    inner = torch.optim.AdamW(model.parameters(), lr=4e-4)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    loader = DataLoader(Corpus(start=int(GROUP) * 7919, length=100_000), batch_size=4)
    metrics = tools.Metrics(os.environ["OUTPUT"])
    manager = Manager(
        pg=ProcessGroupGloo(), min_replica_size=int(os.environ.get("MIN_REPLICAS", "1")),
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]), inner.load_state_dict(state["inner"])
        ),
        state_dict=lambda: {"model": model.state_dict(), "inner": inner.state_dict()},
        use_async_quorum=False, replica_id=f"diloco_{GROUP}",
    )  # fmt: skip
    with DiLoCo(manager, [model], inner, outer, sync_every=SYNC_EVERY):
        for step, batch in enumerate(loader, 1):
            inner.zero_grad()
            tools.compute()
            loss = loss_of(model(batch[:, :-1]), batch)
            loss.backward()
            inner.step()  # DiLoCo syncs in a hook of it
            metrics.log_step(step, loss.item(), manager.num_participants() or 0)


if __name__ == "__main__":
    main()
