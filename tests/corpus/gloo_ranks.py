"""What four real gloo ranks do until one of them does something else. Imports torch.

`live` runs in a forked process. A fault is one function of this file, so that the call sites in
the records are lines that can be read here.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import lightkeeper
from tests.corpus.gloo_cases import Case

WORLD = 4
FAULT_STEP = 3
STEPS = 6
FOREVER_S = 10**6
_gate: list[Path] = []


def live(case: Case, rank: int, folder: Path, port: int) -> None:
    """One rank's life; ends only by the fault, or when the capture kills it."""
    os.environ.update(
        REPLICA_GROUP="rg_0", RANK=str(rank), WORLD_SIZE=str(WORLD), MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", LIGHTKEEPER_RUN_DIR=str(folder / "run"),
    )  # fmt: skip
    torch.set_num_threads(1)
    lightkeeper.attach()
    dist.init_process_group("gloo", timeout=timedelta(seconds=case.timeout_s))
    threading.Thread(target=dump_when_told, args=(rank, folder), daemon=True).start()
    _gate.append(folder / "go")
    try:
        PROGRAMS[case.program](case.fault, rank)
    except RuntimeError as exc:  # as a job with fault tolerance: it stays and can be asked
        print(f"rank {rank}: {exc}", file=sys.stderr)
    (folder / f"ended_{rank}").touch()
    time.sleep(FOREVER_S)


def due_at(step: int, fault: str) -> str:
    """The fault in its step, once the WorkerServers have a first record of torch's; else none."""
    if step != FAULT_STEP:
        return ""
    while not _gate[0].exists():
        time.sleep(0.02)
    return fault


def dump_when_told(rank: int, folder: Path) -> None:
    """Torch's own dumps, made in the rank as its own watchdog would make them with NCCL."""
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    while not (folder / "dump").exists():
        time.sleep(0.05)
    for name, data in (
        ("pickle", _dump_fr_trace(True, True, False)),
        ("json", _dump_fr_trace_json(True, False)),
    ):
        path = folder / name / f"rank_{rank}"
        path.with_suffix(".part").write_bytes(data)
        path.with_suffix(".part").rename(path)


# -- programs ------------------------------------------------------------------------------


def data_parallel(fault: str, rank: int) -> None:
    """Three different collectives a step; the fault takes the place of one of them."""
    for step in range(STEPS):
        due = due_at(step, fault)
        forward(due, rank)
        if due == "skip_distinct" and rank == 1:
            pass
        else:
            gradients(due, rank)
        gather_metrics(due, rank)
        broadcast_state(due, rank)


def equal_calls(fault: str, rank: int) -> None:
    """The same all_reduce over and over: a call too many or too few shifts and hangs at the end."""
    for step in range(STEPS):
        due = due_at(step, fault)
        dist.all_reduce(torch.ones(100))
        if due == "extra" and rank == 1:
            dist.all_reduce(torch.ones(100))  # the culprit's own line
        if not (due == "skip" and rank == 1):
            dist.all_reduce(torch.ones(100))


def two_groups(fault: str, rank: int) -> None:
    """Two groups of all ranks, used in one order."""
    first, second = dist.new_group(), dist.new_group()
    for step in range(STEPS):
        odd = rank in {"swap": (2, 3), "swap_one": (3,)}.get(due_at(step, fault), ())
        for group in (second, first) if odd else (first, second):
            dist.all_reduce(torch.ones(100), group=group)


def grid(fault: str, rank: int) -> None:
    """Tensor parallel pairs (0, 1), (2, 3) and data parallel pairs (0, 2), (1, 3)."""
    tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    data = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    for step in range(STEPS):
        forward(due_at(step, fault), rank)
        dist.all_reduce(torch.ones(50), group=tensor)
        dist.all_reduce(torch.ones(1000), group=data)


def pipeline(fault: str, rank: int) -> None:
    """Ranks 0 and 1 exchange activations, then all reduce."""
    for step in range(STEPS):
        due = due_at(step, fault)
        if due == "both_receive" and rank < 2:
            dist.recv(torch.ones(10), 1 - rank)
        elif rank == 0 and due != "no_send":
            dist.send(torch.ones(10), 1)
        elif rank == 1:
            dist.recv(torch.ones(10), 0)
        dist.all_reduce(torch.ones(100))


def pile_up(fault: str, rank: int) -> None:
    """Eight reduces in flight at once; the culprit never issues them."""
    for step in range(STEPS):
        if due_at(step, "hung") and rank == 2:
            time.sleep(FOREVER_S)
        works = [dist.all_reduce(torch.ones(100 + n), async_op=True) for n in range(8)]
        for work in works:
            work.wait()


def every_op(fault: str, rank: int) -> None:
    """Whatever gloo has, once, in health."""
    tensor, whole = torch.ones(5), torch.ones(5 * WORLD)
    parts = [torch.ones(5) for _ in range(WORLD)]
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 2)
    dist.reduce(tensor, 1)
    dist.all_gather(parts, tensor)
    dist.all_gather_into_tensor(whole, tensor)
    dist.reduce_scatter(tensor, parts)
    dist.reduce_scatter_tensor(tensor, whole)
    dist.gather(tensor, parts if rank == 3 else None, 3)
    dist.scatter(tensor, parts if rank == 0 else None, 0)
    dist.all_to_all_single(torch.empty_like(whole), whole)
    given = [rank + 1] * WORLD
    got = [other + 1 for other in range(WORLD)]
    dist.all_to_all_single(torch.ones(sum(got)), torch.ones(sum(given)), got, given)
    dist.all_to_all([torch.ones(5) for _ in range(WORLD)], parts)
    objects = [None] * WORLD
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast_object_list([rank], 0)
    dist.monitored_barrier()
    if rank < 2:
        (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
    requests = [dist.P2POp(dist.isend, tensor, (rank + 1) % WORLD),
                dist.P2POp(dist.irecv, torch.empty(5), (rank - 1) % WORLD)]  # fmt: skip
    for work in dist.batch_isend_irecv(requests):
        work.wait()
    dist.barrier()


def running(fault: str, rank: int) -> None:
    """In full run when it is looked at."""
    for _ in range(10**6):
        time.sleep(0.4 if fault == "straggler" and rank == 2 else 0.05)
        gradients("", rank)
        gather_metrics("", rank)


PROGRAMS: dict[str, Callable[[str, int], None]] = {
    program.__name__: program
    for program in (data_parallel, equal_calls, two_groups, grid, pipeline, pile_up, every_op,
                    running)
}  # fmt: skip


# -- steps and their faults ----------------------------------------------------------------


def forward(fault: str, rank: int) -> None:
    if rank == 1 and fault == "gil":
        ctypes.PyDLL(None).sleep(FOREVER_S)  # PyDLL keeps the GIL during the call
    if rank == 1 and fault == "hung":
        time.sleep(FOREVER_S)
    if rank == 3 and fault == "hung_in_grid":
        time.sleep(FOREVER_S)
    if rank == 2 and fault in ("sigkill", "sigstop"):
        os.kill(os.getpid(), getattr(signal, fault.upper()))
    if rank == 3 and fault == "early_exit":
        os._exit(0)
    if rank == 1 and fault == "exception":
        raise ValueError("as training does")


def gradients(fault: str, rank: int) -> None:
    odd = rank == 1
    if odd and fault == "op":
        dist.all_gather_into_tensor(torch.ones(4000), torch.ones(1000))
    elif odd and fault == "size":
        dist.all_reduce(torch.ones(2000))
    elif odd and fault == "size_less":
        dist.all_reduce(torch.ones(500))
    elif odd and fault == "dtype":
        dist.all_reduce(torch.ones(1000, dtype=torch.float64))
    elif odd and fault == "dtype_silent":
        dist.all_reduce(torch.ones(1000, dtype=torch.int32))
    elif odd and fault == "reduce_op":
        dist.all_reduce(torch.ones(1000), op=dist.ReduceOp.MAX)
    else:
        dist.all_reduce(torch.ones(1000))


def gather_metrics(fault: str, rank: int) -> None:
    dist.all_gather([torch.ones(2) for _ in range(WORLD)], torch.ones(2))


def broadcast_state(fault: str, rank: int) -> None:
    wrong = {"root": (3,), "root_tie": (2, 3)}.get(fault, ())
    dist.broadcast(torch.ones(10), 1 if rank in wrong else 0)
