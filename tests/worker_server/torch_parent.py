"""Imports torch once and forks the processes of a case, a line an order.

`exits FOLDER` prints how each of many ranks ended; `gloo FOLDER ENDING PORT` forks two ranks of one
group, of which rank 1 misbehaves. Both are answered with pids first (`forks.serve`).
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

import lightkeeper
from lightkeeper.worker_server.rank import attach  # noqa: F401  once for all
from lightkeeper.worker_server.sidecar import SilentError
from lightkeeper.worker_server.sidecar.recorders import ControlPlane
from tests import forks
from tests.worker_server.fates import ways_of

ENDINGS = (
    "normal", "exception", "exception_beside_torch_threads", "exception_in_atexit",
    "exception_in_thread", "failing_excepthook", "sys_exit", "sys_exit_text", "os_exit", "sigterm",
    "sigterm_handled", "sigint", "sigkill", "sigabrt", "segfault", "daemon_threads", "forks",
)  # fmt: skip


def run_child(ending, way):
    """One rank's whole life after the fork; returns or raises as a training script would."""
    name = f"{ending}-{way}"
    os.environ["LIGHTKEEPER"] = "0" if way == "plain" else "1"
    os.environ.update(REPLICA_GROUP=name, RANK="0", WORLD_SIZE="1")
    for stream in (1, 2):
        os.dup2(os.open(said_by(name, stream), os.O_WRONLY | os.O_CREAT), stream)
    atexit.register(tell_if_found, name, os.getpid())  # runs after the rank's own
    reporter = lightkeeper.attach()
    assert type(reporter).__name__ == ("NullReporter" if way == "plain" else "Reporter")
    if ending == "forks":
        fork_and_wait()
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    reporter.begin_step(0)
    with reporter.phase("communication"):
        dist.all_reduce(torch.ones(4))
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.wait()
    reporter.end_step(0, committed=True)
    print("trained", flush=True)
    while way == "hammered" and not asked_often(name).exists():
        time.sleep(0.005)  # requests are in flight when the end comes
    end(ending)


def tell_if_found(name, rank):
    """A request that comes while C++ globals are destroyed ends the rank by SIGSEGV."""
    folder = Path(os.environ["LIGHTKEEPER_RUN_DIR"])
    if os.getpid() == rank and any(folder.glob(f"{name}.0-*.sock")):
        print("its control plane can still be asked", flush=True)


def said_by(name, stream):
    return Path(os.environ["LIGHTKEEPER_RUN_DIR"]) / f"{name}.said-{stream}"


def asked_often(name):
    return Path(os.environ["LIGHTKEEPER_RUN_DIR"]) / f"{name}.asked"


def fork_and_wait():
    """As launchers and data loaders do. (With gloo up, sys.exit in a child hangs by itself.)"""
    for leave in (os._exit, sys.exit):
        child = os.fork()
        if not child:
            leave(5)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 5:
            os._exit(99)


def end(ending):  # noqa: C901  one branch an ending
    match ending:
        case "normal":
            dist.destroy_process_group()
        case "exception":
            raise RuntimeError("as training does")
        case "exception_beside_torch_threads":
            torch.set_num_threads(4)
            torch.ones(300, 300, requires_grad=True).matmul(torch.ones(300, 300)).sum().backward()
            raise ValueError("with threads of C++ around")
        case "exception_in_atexit":
            atexit.register(lambda: 1 / 0)
        case "exception_in_thread":
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        case "failing_excepthook":
            sys.excepthook = lambda *_: 1 / 0
            raise RuntimeError("whose hook fails")
        case "sys_exit":
            sys.exit(3)
        case "sys_exit_text":
            sys.exit("no more data")
        case "os_exit":
            os._exit(7)
        case "sigterm_handled":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        case "sigint":
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        case "sigterm" | "sigkill":
            os.kill(os.getpid(), signal.Signals[ending.upper()])
        case "sigabrt":
            os.abort()
        case "segfault":
            ctypes.string_at(0)
        case "daemon_threads":
            for _ in range(4):
                threading.Thread(target=count_for_ever, daemon=True).start()
            time.sleep(0.1)


def count_for_ever():
    """(With torch inside, such a thread aborts the interpreter's end by itself.)"""
    while True:
        sum(range(1000))


def hammer(name, done, answers):
    """Ask the control plane of that rank again and again, until it is gone."""
    folder = Path(os.environ["LIGHTKEEPER_RUN_DIR"])
    while not done.is_set():
        for path in folder.glob(f"{name}.0-*.sock"):
            try:
                ControlPlane(path).ask("fr_trace_json", 0.5)
                answers.append(1)
                if len(answers) == 20:
                    asked_often(name).touch()
            except SilentError:
                time.sleep(0.002)
        time.sleep(0.001)


def exits():
    answer = {}
    cases = [(ending, way) for ending in ENDINGS for way in ways_of(ending)]
    for ending, way in cases:
        pid = os.fork()
        if not pid:
            return run_child(ending, way)
        done, answers, name = threading.Event(), [], f"{ending}-{way}"
        asking = threading.Thread(target=hammer, args=(name, done, answers))
        if way == "hammered":
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
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if way == "hammered":
            asking.join()
            answer[f"{ending}/answers"] = len(answers)
        said = [said_by(name, stream).read_text() for stream in (1, 2)]
        answer[f"{ending}/{way}"] = code, *(normal(text) for text in said)
    print(json.dumps(answer), flush=True)
    return None


def normal(text):
    """Without pids, addresses and times."""
    return [re.sub(r"0x[0-9a-f]+|\d+", "N", line) for line in text.splitlines()]


def gloo_rank(rank, ending, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    reporter = lightkeeper.attach()
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


def births(line):
    kind, folder, *words = line.split()
    os.environ.pop("LIGHTKEEPER_DEEP", None)  # no rank's
    os.environ["LIGHTKEEPER_RUN_DIR"] = folder
    os.environ["LIGHTKEEPER_LINGER_S"] = "0" if kind == "exits" else "10"
    if kind == "exits":
        return [exits]
    return [functools.partial(gloo_rank, rank, *words) for rank in (0, 1)]


if __name__ == "__main__":
    life = forks.serve(births)
    life()
