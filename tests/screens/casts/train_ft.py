import os
import time

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

group = os.environ["REPLICA_GROUP_ID"]
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
inner = torch.optim.AdamW(model.parameters(), lr=1e-3)


def state_dict():
    return {"model": model.state_dict(), "optim": inner.state_dict()}


def load_state_dict(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optim"])


manager = Manager(
    pg=ProcessGroupGloo(),
    load_state_dict=load_state_dict,
    state_dict=state_dict,
    min_replica_size=1,
    replica_id=f"train_{group}",
)
ddp = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
while manager.current_step() < 2000:
    optimizer.zero_grad()
    x = torch.randn(32, 64)
    loss = (ddp(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if manager.current_step() % 50 == 0:
        print(f"group {group}  step {manager.current_step()}  loss {loss.item():.3f}", flush=True)
