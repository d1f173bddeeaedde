"""Replica groups of one rank each, with a Lighthouse, all forked after one import.

`python torchft_parent.py FOLDER`: writes FOLDER/a.page and FOLDER/b.page, prints what both saw.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import collectives, process_groups, torchft
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.forks import child
from tests.torchft_groups import lighthouse, manager_of, silence
from tests.worker_server.pages import identity

WEIGHTS = 2**20
"""Floats of the state that heals."""
NATIVE = False
TIMEOUT_S, QUORUM_TIMEOUT_S = 5, 61
TOGETHER = 3
"""Steps with both, before `b` dies."""


def reporter_of(folder, name):
    who = identity(world_size=1, group=wire.GroupName(name))
    made = Reporter(PageWriter.create(Path(folder) / f"{name}.page", who, 1))
    collectives.install(made)
    process_groups.install()
    torchft.install(made)
    return made


def native(folder):
    """A group of torch's own that can be formed anew (torch >= 2.14, TorchFT's nightlies)."""
    store = dist.FileStore(str(Path(folder) / "native.store"), -1)
    made = dist.ProcessGroup(store, 0, 1)
    backend = dist.ProcessGroupGloo(store, 0, 1, enable_reconfigure=True)
    kind = dist.ProcessGroup.BackendType.GLOO
    made._set_default_backend(kind)
    made._register_backend(torch.device("cpu"), kind, backend)
    return made


def rank(folder, name, address, joins):
    """`a` begins alone; `b` joins and heals; some steps later `b` is gone in mid-step."""
    torch.set_num_threads(1)
    reporter_of(folder, name)  # the attach comes first, then the import, as in a training script
    from torchft.process_group import ManagedProcessGroup

    joined = Path(folder) / "b.joins"
    while name == "b" and not joined.exists():  # a Manager sends heartbeats: half of two is too few
        time.sleep(0.01)
    weights = torch.zeros(WEIGHTS)
    own = native(folder) if NATIVE else None
    manager, _store = manager_of(
        name, address, weights, TIMEOUT_S, process_group=own,
        quorum_timeout=timedelta(seconds=QUORUM_TIMEOUT_S),
    )  # fmt: skip
    across = ManagedProcessGroup(manager)
    seen = []
    together = 0
    while seen[-1:] != [[1, True]] or not together:
        manager.start_quorum()
        grad = torch.ones(3)
        if together == TOGETHER and name == "b":
            manager.wait_quorum()
            os._exit(9)
        work = manager.allreduce(grad)
        assert isinstance(work, dist._Work)
        assert type(work).__name__ == "_ManagedWork"
        work.wait()
        dist.all_reduce(torch.ones(4), group=across, op=dist.ReduceOp.SUM)
        committed = manager.should_commit()
        if committed:
            weights[:3] += grad
        together += committed and manager.num_participants() == 2
        seen.append([manager.num_participants(), committed])
        if name == "a" and manager.current_step() == 2:
            joined.touch()
        time.sleep(0.02)
    print(json.dumps({name: seen, "lighthouse": address}), flush=True)
    os._exit(0)


def main(folder):
    silence()
    pid, address = lighthouse()
    pids = [child(rank, folder, name, address, name == "b") for name in ("a", "b")]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child_pid, 0)[1]) for child_pid in pids]
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    print(json.dumps(codes), flush=True)


if __name__ == "__main__":
    NATIVE = sys.argv[2:] == ["native"]
    main(sys.argv[1])
