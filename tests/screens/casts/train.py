import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(600):
    x = torch.randn(32, 64)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.1)
    if step % 50 == 0 and dist.get_rank() == 0:
        print(f"step {step}  loss {loss.item():.3f}", flush=True)
dist.destroy_process_group()
