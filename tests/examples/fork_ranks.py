"""Runs a training script as ranks that are forked after torch was imported once.

`python fork_ranks.py WORLD_SIZE`, then on stdin one job a line, as JSON: the script, its arguments,
the environment, and the file for what rank 0 prints. Answers with each rank's pid and exit status.
With a job as its second argument it runs that one, and ends as its ranks do.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import sys

import torch
import torch._dynamo  # an optimizer imports it at its first step
import torch.nn.parallel
import torch.utils.data

from tests import forks


def never_freed(make):
    """A Reducer that is freed joins gloo's thread and holds the GIL, for which that may wait.

    Work that is done releases the Python context of the backward pass. So any DDP job on gloo can
    hang at its end (torch 2.13, pytorch issue 56297; seen twice here).
    """

    def made(*args, **options):
        reducer = make(*args, **options)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(reducer))
        return reducer

    return made


torch.distributed.Reducer = never_freed(torch.distributed.Reducer)


def rank(job, number, world_size):
    """What the child does instead of going on: the script, as a process of its own would."""
    os.environ.update(job["environ"], RANK=str(number), WORLD_SIZE=str(world_size))
    os.environ["LOCAL_RANK"] = str(number)
    where = f"{job['out']}.{number}"
    into = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(into, 1)
    os.dup2(into, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    torch.set_num_threads(1)
    sys.argv = [job["script"], *job["arguments"]]
    runpy.run_path(job["script"], run_name="__main__")


def main(world_size, *jobs):
    forks.light()
    for line in jobs or sys.stdin:
        job, pids = json.loads(line), []
        for number in range(world_size):
            pid = os.fork()
            if not pid:
                return rank(job, number, world_size)
            pids.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(list(zip(pids, ended, strict=True))), flush=True)
        if jobs:
            sys.exit(any(ended))
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
