"""Three ranks on gloo, forked after one import, send to each other and create groups.

`python -m tests.worker_server.transfers_parent FOLDER PORT`: each rank leaves FOLDER/RANK.page, and
FOLDER/RANK.forming has what it saw of the others while they waited for it.
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
from lightkeeper.worker_server.rank import collectives, process_groups
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.forks import child
from tests.waiting import wait_for
from tests.worker_server.pages import identity

RANKS = 3
t = torch.ones


class Others:
    """What this rank sees of the others, in their pages."""

    def __init__(self, folder):
        self._folder = folder
        self._seen = []

    def wait_for_them(self, *ranks, nth=0):
        """Until they all create their nth group, and so wait for this one."""

        def creates(reader):
            forming = reader.forming(time.monotonic_ns())
            return forming if forming and forming.nth == nth else None

        for rank in ranks:
            page = self._folder / f"{rank}.page"
            reader = PageReader(wait_for(lambda: page.exists() and page, within_s=30, what="page"))  # noqa: B023
            what = f"rank {rank} creates a group"
            forming = wait_for(lambda: creates(reader), within_s=30, what=what)  # noqa: B023
            report = wire.StateReport(identity(), wire.Process(True), forming=forming)
            self._seen.append(wire.to_json(report)["forming"])

    def tell(self, rank):
        (self._folder / f"{rank}.forming").write_text(json.dumps(self._seen))


def run(rank, folder, port):
    torch.set_num_threads(1)
    page = PageWriter.create(folder / f"{rank}.page", identity(world_size=RANKS), 1)
    collectives.install(Reporter(page))
    process_groups.install()
    others = Others(folder)
    if rank == 0:
        others.wait_for_them(1, 2)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS,
        timeout=timedelta(seconds=99),
    )  # fmt: skip
    dist.new_group([0, 2])
    if rank == 2:
        others.wait_for_them(1, nth=2)
    pair = dist.new_group([2, 1], timeout=timedelta(seconds=77), group_desc="pair")
    send_and_receive(rank, pair)
    dist.barrier()
    others.tell(rank)
    os._exit(0)


def send_and_receive(rank, pair):
    dist.all_reduce(t(4))
    if rank == 0:
        for _ in range(2):
            dist.send(t(4), 1)
        dist.send(t(5), group_dst=1, tag=7)
        dist.send_object_list(["x"], 2)
    if rank == 1:
        for _ in range(2):
            dist.recv(t(4), 0)
        dist.irecv(t(5), src=0, tag=7).wait()
        dist.send(t(3), 2)
        dist.send(t(6), group=pair, group_dst=1)
    if rank == 2:
        dist.recv_object_list([None], 0)
        assert dist.recv(t(3)) == 1
        dist.recv(t(6), 1, group=pair)
    around = [
        dist.P2POp(dist.isend, t(2), (rank + 1) % RANKS),
        dist.P2POp(dist.irecv, t(2), (rank - 1) % RANKS),
    ]
    for work in dist.batch_isend_irecv(around):
        work.wait()
    dist.all_reduce(t(4))


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    where = Path(sys.argv[1])
    pids = [child(run, rank, where, sys.argv[2]) for rank in range(RANKS)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    sys.exit(max(codes))
