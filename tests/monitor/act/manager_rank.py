"""One rank with a WorkerServer beside it and, in group rank 0, a real TorchFT manager; no torch.

    python manager_rank.py ACTION [LIBRARY LIGHTHOUSE REPLICA_ID HOSTNAME]

The manager's heartbeats come from its Rust threads, as in training.
"""

import ctypes
import importlib.util
import sys
import time
from datetime import timedelta

import lightkeeper


def manager(library, lighthouse, replica_id, hostname):
    spec = importlib.util.spec_from_file_location("_torchft", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    patience = timedelta(seconds=10)
    return module.ManagerServer(
        replica_id=replica_id, lighthouse_addr=lighthouse, hostname=hostname, bind="[::]:0",
        store_addr="store:1", world_size=2, heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=patience, quorum_retries=0,
    )  # fmt: skip


reporter = lightkeeper.attach()
reporter.begin_step(0)
hosted = manager(*sys.argv[2:]) if len(sys.argv) > 2 else None
print("none" if hosted is None else hosted.address(), flush=True)
with reporter.phase("forward"):
    if sys.argv[1] == "gil":
        ctypes.PyDLL(None).sleep(1000)
    time.sleep(1000)
