"""torchtitan 0.3.0's own trainer, on a GPU or without one, watched by lightkeeper.

    torchrun --nproc-per-node 2 run.py --module debugmodel --config plain
    torchrun --nproc-per-node 2 run.py --module debugmodel --config fault_tolerant

All arguments are torchtitan's. What is done here has to come before torchtitan is imported; the
rest is in `debugmodel.py`, which is a config module as torchtitan wants it.
"""

import os
import runpy

import torch

os.environ.setdefault(
    "TITAN_STRUCT_LOGGER_HANDLERS", "lightkeeper.worker_server.integrations.torchtitan.handler"
)
if not torch.cuda.is_available():
    import without_gpu

    without_gpu.patch()
if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13 has it under its former name
    torch.distributed.set_timeout = torch.distributed.distributed_c10d._set_pg_timeout

runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
