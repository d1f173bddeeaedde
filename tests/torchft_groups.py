"""What jobs of real TorchFT groups share: a Lighthouse and ranks that own Managers, all of them
forks of one process that has imported torch.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from datetime import timedelta

import torch.distributed as dist

from tests.forks import child


def silence():
    """What torchft and the Lighthouse log is not the answer."""
    logging.disable(logging.CRITICAL)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def lighthouse(join_timeout_ms=200, heartbeat_timeout_ms=1000):
    """Its pid and its address."""
    out, into = os.pipe()
    pid = child(_shine, into, join_timeout_ms, heartbeat_timeout_ms)
    os.close(into)  # or a Lighthouse that ends at once would be waited for for ever
    address = os.read(out, 200).decode()
    if not address:
        sys.exit("no Lighthouse")
    return pid, address


def _shine(pipe, join_timeout_ms, heartbeat_timeout_ms):
    from torchft.coordination import LighthouseServer

    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=join_timeout_ms, quorum_tick_ms=20,
        heartbeat_timeout_ms=heartbeat_timeout_ms,
    )  # fmt: skip
    os.write(pipe, server.address().encode())
    threading.Event().wait()


def manager_of(replica_id, address, weights, timeout_s, *, process_group=None, **more):
    """The Manager of a group of one rank whose state is one tensor, and the store that it needs."""
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=timeout_s)
    made = Manager(
        pg=process_group or ProcessGroupGloo(timeout=more.pop("gloo_timeout", timeout)),
        load_state_dict=lambda state: weights.copy_(state["w"]),
        state_dict=lambda: {"w": weights.clone()},
        min_replica_size=1,
        timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=replica_id,
        hostname="127.0.0.1",
        **more,
    )
    return made, store
