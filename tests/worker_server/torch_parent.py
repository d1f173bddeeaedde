"""Imports torch once and forks the processes of a case; prints how each of them ended.

`python torch_parent.py exits` and `python torch_parent.py gloo ENDING`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import worker_server

ENDINGS = ("normal", "exception", "sys_exit", "os_exit", "sigterm", "sigkill", "sigabrt", "forks")


def run_child(ending, attached, hammered):
    """One rank's whole life after the fork; returns or raises as a training script would."""
    os.environ["LIGHTKEEPER"] = "1" if attached else "0"
    os.environ["REPLICA_GROUP"] = f"{ending}-{attached}-{hammered}"
    os.environ.update(RANK="0", WORLD_SIZE="1")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    reporter = worker_server.attach()
    assert type(reporter).__name__ == ("Reporter" if attached else "NullReporter")
    if ending == "forks":
        fork_and_wait()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    reporter.begin_step(0)
    with reporter.phase("communication"):
        dist.all_reduce(torch.ones(4))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()
    reporter.end_step(0, committed=True)
    if hammered:
        time.sleep(0.3)  # requests are in flight when the end comes
    end(ending)


def fork_and_wait():
    """As launchers and data loaders do. (With gloo up, sys.exit in a child hangs by itself.)"""
    for leave in (os._exit, sys.exit):
        child = os.fork()
        if not child:
            leave(5)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 5:
            os._exit(99)


def end(ending):
    match ending:
        case "normal":
            dist.destroy_process_group()
        case "exception":
            raise RuntimeError("as training does")
        case "sys_exit":
            sys.exit(3)
        case "os_exit":
            os._exit(7)
        case "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        case "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sigabrt":
            os.abort()


def hammer(name, done, answers):
    """Ask the control plane of that rank again and again, until it is gone."""
    from worker_server.sidecar.control_plane import ControlPlane, ControlPlaneError

    folder = Path(os.environ["LIGHTKEEPER_RUN_DIR"])
    while not done.is_set():
        for path in folder.glob(f"{name}.0-*.sock"):
            try:
                ControlPlane(path).flight_record(0.5)
                answers.append(1)
            except ControlPlaneError:
                time.sleep(0.002)
        time.sleep(0.001)


def exits():
    answer = {}
    cases = [(e, a, h) for e in ENDINGS for a, h in ((False, False), (True, False), (True, True))]
    for ending, attached, hammered in cases:
        pid = os.fork()
        if not pid:
            return lambda: run_child(ending, attached, hammered)
        done, answers = threading.Event(), []
        name = f"{ending}-{attached}-{hammered}"
        asking = threading.Thread(target=hammer, args=(name, done, answers))
        if hammered:
            asking.start()
        deadline = time.monotonic() + 30
        status = None
        while status is None and time.monotonic() < deadline:
            ended, raw = os.waitpid(pid, os.WNOHANG)
            status = raw if ended else None
            time.sleep(0.01)
        if status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        done.set()
        if hammered:
            asking.join()
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if hammered:
            answer[f"{ending}/answers"] = len(answers)
        answer[f"{ending}/{'hammered' if hammered else 'attached' if attached else 'plain'}"] = code
    print(json.dumps(answer))
    return lambda: None


def gloo(ending):
    """Two ranks of one group; rank 1 misbehaves. Prints their pids, then waits for them."""
    port = os.environ["MASTER_PORT"]
    pids = []
    for rank in (0, 1):
        pid = os.fork()
        if not pid:
            return lambda: gloo_rank(rank, int(port), ending)
        pids.append(pid)
    print(json.dumps(pids), flush=True)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    print(json.dumps(codes), flush=True)
    return lambda: None


def gloo_rank(rank, port, ending):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    reporter = worker_server.attach()
    dist.init_process_group("gloo")
    tp = dist.new_group([0, 1], group_desc="tp")
    for step in range(3):
        reporter.begin_step(step)
        with reporter.phase("communication"):
            dist.all_reduce(torch.ones(8))
            dist.broadcast(torch.ones(2, 3), src=1, group=tp)
        reporter.end_step(step, committed=True)
    reporter.begin_step(3)
    if rank == 1 and ending == "gil":
        with reporter.phase("backward"):
            ctypes.PyDLL(None).sleep(1000)
    if ending == "size":
        time.sleep(0.5)
        with reporter.phase("communication"):
            dist.all_reduce(torch.ones(1000 if rank == 0 else 500))
    else:
        with reporter.phase("communication"):
            dist.all_reduce(torch.ones(8))
    time.sleep(1000)


if __name__ == "__main__":
    life = exits() if sys.argv[1] == "exits" else gloo(sys.argv[2])
    life()
