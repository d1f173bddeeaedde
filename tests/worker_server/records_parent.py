"""Two ranks on gloo, forked after one import, call everything; both records are then merged.

`python -m tests.worker_server.records_parent FOLDER`: rank 0 prints what was matched with what.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lightkeeper.worker_server.rank import collectives
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.sidecar import merge
from lightkeeper.worker_server.sidecar.merge import ClockPairs
from tests.worker_server.pages import identity

t = torch.ones
ROUNDS = 5


def calls(rank, tp):
    mine = [t(4), t(4)]
    return {
        "all_reduce": lambda: dist.all_reduce(t(4)),
        "async": lambda: [dist.all_reduce(t(4), async_op=True) for _ in range(8)],
        "all_reduce_coalesced": lambda: c10d.all_reduce_coalesced([t(4), t(3)]),
        "broadcast": lambda: dist.broadcast(t(4), 0, group=tp),
        "reduce": lambda: dist.reduce(t(4), 0),
        "all_gather": lambda: dist.all_gather([t(4), t(4)], t(4)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(t(8), t(4)),
        "all_gather_coalesced": lambda: c10d.all_gather_coalesced([mine, [t(4), t(4)]], mine),
        "reduce_scatter": lambda: dist.reduce_scatter(t(4), [t(4), t(4)]),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(t(4), t(8)),
        "all_to_all": lambda: dist.all_to_all([t(4), t(4)], [t(4), t(4)]),
        "all_to_all_single": lambda: dist.all_to_all_single(t(8), t(8)),
        "gather": lambda: dist.gather(t(4), [t(4), t(4)] if rank == 0 else None, dst=0),
        "scatter": lambda: dist.scatter(t(4), [t(4), t(4)] if rank == 1 else None, src=1),
        "barrier": lambda: dist.barrier(),  # noqa: PLW0108
        "all_gather_object": lambda: dist.all_gather_object([None, None], {"a": 1}),
        "broadcast_object_list": lambda: dist.broadcast_object_list([1, 2], 0),
        "gather_object": lambda: dist.gather_object(1, [None, None] if rank == 0 else None, 0),
        "scatter_object_list": lambda: dist.scatter_object_list([None], [1, 2], 0),
        "send": lambda: dist.send(t(4), 1) if rank == 0 else dist.recv(t(4), 0),
        "fsdp": lambda: sharded(t(2, 4)),
        "ddp": lambda: replicated(t(2, 4)),
    }


def sharded(x):
    module = fully_shard(torch.nn.Linear(4, 4))
    module(x).sum().backward()


def replicated(x):
    module = DistributedDataParallel(torch.nn.Linear(4, 4))
    module(x).sum().backward()


def torch_record():
    return json.loads(torch._C._distributed_c10d._dump_fr_trace_json(True, False))


def run(rank, folder):
    torch.set_num_threads(1)
    path = Path(folder) / f"{rank}.page"
    clock = ClockPairs()
    collectives.install(Reporter(PageWriter.create(path, identity(), 1)))
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    tp = dist.new_group([0, 1], group_desc="tp")
    made = {}
    for name, call in calls(rank, tp).items():
        clock = clock.read()
        before = len(torch_record().get("entries", ()))
        for _ in range(ROUNDS):
            for work in call() or ():
                work.wait()
        made[name] = before, len(torch_record().get("entries", ()))
    now_ns = time.monotonic_ns()
    clock = clock.read()
    ring, _ = PageReader(path).ring(now_ns)
    merged = merge.merge(ring, torch_record(), now_ns, clock)
    matched = {n: entry.op for entry in merged.ring for n in entry.torch_ids}
    answer = {
        name: [last - first, sorted({matched[n] for n in range(first, last) if n in matched}),
               sum(n in matched for n in range(first, last)),
               sum(n in merged.torch_only for n in range(first, last))]
        for name, (first, last) in made.items()
    }  # fmt: skip
    if rank == 0:
        print(json.dumps(answer), flush=True)
    dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    pids = []
    for each in (0, 1):
        pid = os.fork()
        if not pid:
            run(each, sys.argv[1])
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(codes))
