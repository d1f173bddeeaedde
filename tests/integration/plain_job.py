"""A plain torch.distributed job, which reports no steps; a rank is slow once a file says so."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

fault = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
gradient = torch.ones(1000)
while True:
    order = fault.read_text() if fault.exists() else ""
    time.sleep(0.25 if order == f"slow {rank}" else 0.05)
    dist.all_reduce(gradient)
