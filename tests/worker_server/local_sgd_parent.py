"""Groups of one rank that train with TorchFT's LocalSGD and DiLoCo, forked after one import.

`python local_sgd_parent.py FOLDER`: writes FOLDER/NAME.page for each of `RUNS`, prints how each
ended.
"""

from __future__ import annotations

import json
import os
import sys

import torch

from lightkeeper.worker_server.rank.torch_hooks import count_steps
from tests.forks import child
from tests.torchft_groups import lighthouse, manager_of, silence
from tests.worker_server.torchft_parent import reporter_of

RUNS = ("local_sgd", "diloco", "streaming")
EVERY = 6
"""Steps of the inner optimizer from vote to vote; `streaming` votes for each half of the model."""
STEPS = 3 * EVERY + 2


def meets(name, manager, model, inner):
    from torchft.local_sgd import DiLoCo, LocalSGD

    if name == "local_sgd":
        return LocalSGD(manager, model, inner, EVERY)
    halves = [*model] if name == "streaming" else [model]
    outer = [torch.optim.SGD(half.parameters(), lr=0.7, momentum=0.9) for half in halves]
    delay = 2 if name == "streaming" else 0
    return DiLoCo(manager, halves, inner, outer, len(halves) * EVERY, fragment_sync_delay=delay)


def rank(folder, name, address):
    torch.set_num_threads(1)
    count_steps(reporter_of(folder, name).from_source("optimizer"))
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    manager, _store = manager_of(name, address, torch.zeros(1), 20, use_async_quorum=False)
    with meets(name, manager, model, inner):
        for _ in range(STEPS):
            inner.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            inner.step()
    os._exit(0)


def main(folder):
    import torch._dynamo  # noqa: F401  AdamW imports it at its first step
    import torchft.local_sgd  # noqa: F401

    silence()
    codes = []
    for name in RUNS:
        pid, address = lighthouse()
        codes.append(
            os.waitstatus_to_exitcode(os.waitpid(child(rank, folder, name, address), 0)[1])
        )
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
