"""Three ranks of a TorchFT group across replica groups, the last of which stops inside a quorum.

`python exchange_parent.py FOLDER`: forks them after one import and prints their pids. Each looks
for orders in FOLDER ten times a second. The two that wait write what they saw into FOLDER/0 and
FOLDER/1 once they are free, and form the next quorum without the third.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllreduceOptions

from lightkeeper.worker_server import wire
from lightkeeper.worker_server.rank import collectives, exchange, process_groups, torchft
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from lightkeeper.worker_server.run_dir import RankFiles
from lightkeeper.worker_server.sidecar.network import inodes_of, tcp_sockets
from tests.forks import child
from tests.torchft_groups import silence
from tests.worker_server.pages import identity

QUORUM = 7
WORLD = 3


def files_of(folder, rank):
    return RankFiles.of(Path(folder), f"rg_{rank}.0", "abc")


def census(port):
    """Sockets of this process that listen, and connections to the store."""
    listening = 0
    for file in exchange.sockets().values():
        with socket.socket(fileno=os.dup(file)) as copy:
            listening += copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    own = inodes_of(os.getpid())
    rows = [row for row in tcp_sockets(own) if row.inode in own and row.state == 1]
    return listening, sum(row.peer.endswith(f":{port}") for row in rows)


def obey():
    while True:
        exchange.obey()
        time.sleep(0.1)


def life(folder, rank, port):
    torch.set_num_threads(1)
    files = files_of(folder, rank)
    who = identity(world_size=1, group=wire.GroupName(f"rg_{rank}"))
    reporter = Reporter(PageWriter.create(files.page, who, 1))
    collectives.install(reporter)
    process_groups.install()
    torchft.install(reporter)
    exchange.install(files)
    threading.Thread(target=obey, daemon=True).start()
    from torchft.process_group import ProcessGroupGloo

    group = ProcessGroupGloo(timeout=timedelta(seconds=150))
    group.configure(f"127.0.0.1:{port}/{QUORUM}", f"rg_{rank}", rank, WORLD, QUORUM)
    tensor = torch.ones(4)
    group.allreduce([tensor], AllreduceOptions()).wait()
    if rank == WORLD - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    before = census(port)
    (Path(folder) / f"{rank}.inside").touch()
    error = ""
    try:
        group.allreduce([tensor], AllreduceOptions()).wait()
    except RuntimeError as exc:
        error = str(exc)
    freed_s = time.monotonic()
    after = census(port)
    group.configure(f"127.0.0.1:{port}/8", f"rg_{rank}", rank, WORLD - 1, 8)
    ones = torch.ones(1)
    group.allreduce([ones], AllreduceOptions()).wait()
    seen = {"error": error, "freed_s": freed_s, "before": before, "after": after,
            "next": ones.item()}  # fmt: skip
    draft = Path(folder) / f"{rank}.draft"
    draft.write_text(json.dumps(seen))
    draft.rename(Path(folder) / str(rank))
    signal.pause()  # the other one may still need its connection


def main(folder):
    silence()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pids = [child(life, folder, rank, store.port) for rank in range(WORLD)]
    print(json.dumps(pids), flush=True)
    sys.stdin.read()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
