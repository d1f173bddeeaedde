"""How short may the Lighthouse's --heartbeat_timeout_ms be? python -m tests.bench.heartbeats

Three groups, each a process with a thread that computes, ask one real Lighthouse for each timeout
for a quorum every 0.2 s, with TorchFT's own managers and their default heartbeat (100 ms). Nobody
is ever faulty, so every quorum without somebody is a false loss. All timeouts see the same hour,
beside `--busy` processes that only compute. Prints a table; --out adds one JSON line.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path

import torch
from torchft._torchft import LighthouseServer, ManagerClient, ManagerServer

GROUPS = 3
STEP_S = 0.2
CALL = timedelta(seconds=60)


def lighthouse(timeout_ms: int, addresses: Queue[tuple[int, str]]) -> None:
    """A process for each timeout, as in a job."""
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60_000, quorum_tick_ms=100,
        heartbeat_timeout_ms=timeout_ms,
    )  # fmt: skip
    addresses.put((timeout_ms, server.address()))
    signal.pause()


def group(
    name: str, addresses: dict[int, str], until: float, duty: float, results: Queue[object]
) -> None:
    """One replica group: a manager for each Lighthouse, and a thread that computes."""
    torch.set_num_threads(1)
    counts: Counter[tuple[int, str]] = Counter()
    loops = [
        threading.Thread(target=_steps, args=(name, timeout_ms, address, until, counts))
        for timeout_ms, address in addresses.items()
    ]
    for loop in loops:
        loop.start()
    weights = torch.randn(256, 256)
    while time.time() < until:
        begun = time.perf_counter()
        while time.perf_counter() - begun < STEP_S * duty:
            weights = torch.tanh(weights @ weights)
        time.sleep(STEP_S * (1 - duty))
    for loop in loops:
        loop.join()
    results.put([(timeout_ms, what, count) for (timeout_ms, what), count in counts.items()])
    results.close()
    results.join_thread()
    os._exit(0)  # the other managers' servers end with their processes


def _steps(
    name: str, timeout_ms: int, address: str, until: float, counts: Counter[tuple[int, str]]
) -> None:
    server = ManagerServer(
        replica_id=name, lighthouse_addr=address, hostname="127.0.0.1", bind="127.0.0.1:0",
        store_addr="127.0.0.1:1", world_size=1, heartbeat_interval=timedelta(milliseconds=100),
        connect_timeout=CALL, quorum_retries=0,
    )  # fmt: skip
    client = ManagerClient(server.address(), connect_timeout=CALL)
    step, before, whole = 0, 0, False
    while time.time() < until:
        step += 1
        quorum = client._quorum(
            group_rank=0, step=step, checkpoint_metadata="", shrink_only=False, timeout=CALL,
            commit_failures=0, init_sync=False,
        )  # fmt: skip
        whole |= quorum.replica_world_size == GROUPS
        if whole:
            counts[timeout_ms, "quorums"] += 1
            counts[timeout_ms, "without somebody"] += quorum.replica_world_size < GROUPS
            counts[timeout_ms, "changes"] += bool(before) and quorum.quorum_id != before
            before = quorum.quorum_id
        time.sleep(STEP_S)


def busy(until: float) -> None:
    """A neighbour that computes."""
    while time.time() < until:
        sum(range(100_000))


def main() -> None:
    """Run, and print one row for each timeout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--busy", type=int, default=8, metavar="N", help="computing processes (8)")
    parser.add_argument("--duty", type=float, default=0.5, help="of a core, for each group (0.5)")
    parser.add_argument("--timeouts", type=int, nargs="+", default=[1000, 1500, 2000, 3000, 5000])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    addressed, queue = spawn.Queue(), spawn.Queue()
    until = time.time() + args.minutes * 60
    beside = [spawn.Process(target=lighthouse, args=(ms, addressed)) for ms in args.timeouts]
    beside += [spawn.Process(target=busy, args=(until,)) for _ in range(args.busy)]
    for process in beside:
        process.start()
    addresses = dict(addressed.get(timeout=120) for _ in args.timeouts)
    groups = [
        spawn.Process(target=group, args=(f"rg_{n}", addresses, until, args.duty, queue))
        for n in range(GROUPS)
    ]  # fmt: skip
    for process in groups:
        process.start()
    loads = []
    while time.time() < until:
        time.sleep(min(15, max(0.1, until - time.time())))
        loads.append(os.getloadavg()[0])
    totals: Counter[tuple[int, str]] = Counter()
    for _ in groups:
        for timeout_ms, what, count in queue.get(timeout=120):
            totals[timeout_ms, what] = max(totals[timeout_ms, what], count)
    for process in (*groups, *beside):
        process.kill()
    load = sorted(loads)[len(loads) // 2]
    print(
        f"{args.minutes:g} minutes, {os.cpu_count()} cores, load {load:.1f} (most {max(loads):.1f})"
    )
    for ms in args.timeouts:
        alone, changes = totals[ms, "without somebody"], totals[ms, "changes"]
        print(
            f"{ms} ms: {totals[ms, 'quorums']} quorums, {alone} without somebody, {changes} changes"
        )
        if args.out:
            row = {"timeout_ms": ms, "minutes": args.minutes, "load": load, "load_most": max(loads)}
            row |= {what: totals[ms, what] for what in ("quorums", "without somebody", "changes")}
            with args.out.open("a") as out:
                out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
