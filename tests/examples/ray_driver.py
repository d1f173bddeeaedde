"""Runs a script of Ray on a cluster of this process, which waits for it on a busy machine too.

`python ray_driver.py SCRIPT [ARGUMENTS ...]`
"""

import runpy
import sys
import time

import ray
from ray._private import services

PATIENCE_S = 300.0
get_node = services.get_node


def get_node_at_last(address, node_id):
    """Ray itself gives a new node 30 s."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return get_node(address, node_id)
        except RuntimeError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    services.get_node = get_node_at_last
    ray.init(include_dashboard=False, num_cpus=4, object_store_memory=100_000_000)
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
