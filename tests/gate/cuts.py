"""Connections between managers and Lighthouse that are cut at random moments, under real managers.

    make cuts ARGS="--cuts 200 --seed 1 --way gate"

Jobs of 2 to 5 groups with 1 to 4 ranks train on numbers: each step averages what all groups give.
A proxy for each group closes its connections, or swallows what is sent for a while and closes then.
With `--way behind` one proxy stands between gate and Lighthouse, and closes all or some of them.
TorchFT asks again each second. What must hold: no group ends, no quorum lacks a group, and each
step has the loss that it has in a job that nobody cuts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

from tests.gate.groups import Gate, Lighthouse, running, torchft
from tests.ports import free_port
from tests.waiting import wait_for

QUORUM_S: Final = 30.0
"""And 29 retries: each second."""
MEET_S: Final = 10.0
"""As a collective's timeout: after it the attempt is voted down."""
RATE: Final = 0.1
WAYS: Final = ("gate", "lighthouse", "behind")


class Proxy:
    """Passes bytes on until it is told to cut; lives in a thread of its own."""

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._swallows = False
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        wait_for(lambda: self.url, within_s=5, what="it listens")

    def lead_to(self, target: str) -> None:
        """Whom the next connections reach."""
        parts = urlsplit(target)
        self._target = parts.hostname, parts.port

    async def _run(self) -> None:
        async with await asyncio.start_server(self._joined, "127.0.0.1", 0) as server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await self._over.wait()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0)  # a task that is cancelled before it begins closes nothing
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        for writer in self._writers:  # one that is closed waits for a peer that reads nothing more
            writer.transport.abort()
        await asyncio.sleep(0)  # they close their sockets in the loop's next turn

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        self._writers.append(writer)
        try:
            back, there = await asyncio.open_connection(*self._target)
            writers.append(there)
            self._writers.append(there)
            await asyncio.gather(self._copy(reader, there), self._copy(back, writer))
        except OSError:
            pass
        finally:
            for each in writers:
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                if not self._swallows:
                    writer.write(data)
        writer.close()

    def cut(self, swallow_s: float, *, only: int | None = None) -> None:
        """End all connections, after a while in which nothing passes; or the oldest `only`."""
        self._loop.call_soon_threadsafe(setattr, self, "_swallows", swallow_s > 0)
        self._loop.call_soon_threadsafe(self._loop.call_later, swallow_s, self._end, only)

    def _end(self, only: int | None = None) -> None:
        self._swallows = False
        for writer in [each for each in self._writers if not each.transport.is_closing()][:only]:
            writer.transport.abort()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self._loop.close()


class Exchange:
    """Where the same rank of all groups meets, once in a quorum and step."""

    def __init__(self) -> None:
        self._here = threading.Condition()
        self._given: dict[tuple[int, int, int], dict[int, float]] = {}
        self._ended: set[tuple[int, int, int]] = set()

    def meet(self, key: tuple[int, int, int], group: int, value: float, size: int) -> float | None:
        """The mean of what all give; None: one did not come, and who comes later is alone too."""
        with self._here:
            given = self._given.setdefault(key, {})
            given[group] = value
            self._here.notify_all()
            until_s = time.monotonic() + MEET_S
            while len(given) < size and key not in self._ended:
                late = not self._here.wait(until_s - time.monotonic())
                if late and len(given) < size:  # who was there in time may have gone on
                    self._ended.add(key)
                    self._here.notify_all()
            return None if key in self._ended else mean([given[g] for g in sorted(given)])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def gradient(group: int, rank: int, step: int, weight: float) -> float:
    """Another one in each group, rank and step."""
    return weight - (group + 1) * (rank + 2) / (step % 7 + 1)


def losses_alone(groups: int, rank: int, steps: int) -> list[float]:
    """Of a rank, in a job that nobody cuts."""
    weight, losses = 1.0, []
    for step in range(steps):
        weight -= RATE * mean([gradient(g, rank, step, weight) for g in range(groups)])
        losses.append(weight * weight)
    return losses


@dataclass
class Replica:
    """One replica group: a manager, and a thread for each rank."""

    number: int
    ranks: int
    of: int
    """Groups in all."""
    lighthouse: str
    exchange: Exchange
    step_s: float
    steps: list[int] = field(default_factory=list)
    losses: list[list[float]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    quorums: dict[int, int] = field(default_factory=dict)
    """Step -> number of the quorum in which it was committed."""
    retried: int = 0
    """Attempts that were voted down."""
    _over: threading.Event = field(default_factory=threading.Event)

    def start(self) -> Replica:
        self.steps, self.losses = [0] * self.ranks, [[] for _ in range(self.ranks)]
        self.server = torchft().ManagerServer(
            replica_id=f"rg_{self.number}:a", lighthouse_addr=self.lighthouse,
            hostname="127.0.0.1", bind="127.0.0.1:0", store_addr="127.0.0.1:1",
            world_size=self.ranks, heartbeat_interval=timedelta(milliseconds=100),
            connect_timeout=timedelta(seconds=10), quorum_retries=int(QUORUM_S) - 1,
        )  # fmt: skip
        for rank in range(self.ranks):
            threading.Thread(target=self._train, args=(rank,), daemon=True).start()
        return self

    def _train(self, rank: int) -> None:
        seconds = timedelta(seconds=QUORUM_S)
        port = self.server.address().rpartition(":")[2]
        client = torchft().ManagerClient(f"http://127.0.0.1:{port}", seconds)
        newer = "reconfigure_handle" in str(client._quorum.__text_signature__)
        more = {"reconfigure_handle": ""} if newer else {}  # of nightlies
        weight, failures = 1.0, 0
        while not self._over.is_set():
            step = self.steps[rank]
            try:
                quorum = client._quorum(
                    group_rank=rank, step=step, checkpoint_metadata="", shrink_only=False,
                    timeout=seconds, commit_failures=failures, init_sync=False, **more,
                )  # fmt: skip
                time.sleep(self.step_s)
                if quorum.heal or quorum.replica_world_size != self.of:
                    self._fault(f"step {step}: {quorum.replica_world_size} groups, {quorum.heal=}")
                given = gradient(self.number, rank, step, weight)
                key = quorum.quorum_id, step, rank
                average = self.exchange.meet(key, self.number, given, self.of)
                good = client.should_commit(rank, step, average is not None, seconds)
            except (RuntimeError, TimeoutError) as exc:
                self._fault(f"step {step}: {type(exc).__name__}: {exc}")
                return
            failures = 0 if good else failures + 1
            self.retried += not good
            if good and average is not None:
                weight -= RATE * average
                self.losses[rank].append(weight * weight)
                self.quorums[step] = quorum.quorum_id
                self.steps[rank] = step + 1

    def _fault(self, what: str) -> None:
        if not self._over.is_set():
            self.faults.append(f"group {self.number}: {what}")

    def stop(self) -> None:
        self._over.set()
        self.server.shutdown()


@contextmanager
def job(
    way: str, groups: int, ranks: int, step_s: float
) -> Iterator[tuple[list[Replica], list[Proxy]]]:
    """All groups train together already."""
    with ExitStack() as stack:
        lighthouse = Lighthouse(free_port(), min_replicas=groups, heartbeat_timeout_ms=5000)
        stack.enter_context(running(lighthouse))
        url = lighthouse.url
        exchange, proxies, replicas = Exchange(), [], []

        def proxy(target: str) -> str:
            proxies.append(Proxy(target))
            stack.enter_context(running(proxies[-1]))
            return proxies[-1].url

        if way == "behind":
            url = proxy(url)
        if way != "lighthouse":
            gate = Gate(url, free_port(), free_port())
            stack.callback(gate.kill)
            url = gate.url
        for number in range(groups):
            joins = url if way == "behind" else proxy(url)
            replica = Replica(number, ranks, groups, joins, exchange, step_s).start()
            replicas.append(replica)
        for replica in replicas:
            stack.callback(replica.stop)
        commit_more(replicas, 3)
        yield replicas, proxies


def commit_more(replicas: list[Replica], steps: int) -> float:
    """Wait until every rank has; how long it took, in seconds."""
    began_s, until = time.monotonic(), [max(replica.steps) + steps for replica in replicas]

    def there() -> bool:
        faults = [fault for replica in replicas for fault in replica.faults]
        assert not faults, faults
        pairs = zip(replicas, until, strict=True)
        return all(min(replica.steps) >= wanted for replica, wanted in pairs)

    wait_for(there, within_s=QUORUM_S + 30, what=f"all commit {steps} steps more")
    return time.monotonic() - began_s


def same_as_alone(replicas: list[Replica]) -> None:
    """Each step has the loss of a job that nobody cut, in the same quorum everywhere."""
    for replica in replicas:
        for rank, losses in enumerate(list(map(list, replica.losses))):
            assert losses == losses_alone(len(replicas), rank, len(losses)), replica.number
    steps = min(min(replica.steps) for replica in replicas)
    for step in range(steps):
        numbers = {replica.quorums[step] for replica in replicas}
        assert len(numbers) == 1, f"step {step} in quorums {numbers}"


def cuts(
    way: str, count: int, chance: random.Random, longest_s: float = 0.3
) -> list[dict[str, Any]]:
    """One job with steps of up to `longest_s`, and so many cuts; a row for each.

    Raises:
        AssertionError: a group ended, met a wrong quorum, or has another loss.
    """
    groups, ranks, step_s = (
        chance.randint(2, 5),
        chance.randint(1, 4),
        chance.uniform(0.0, longest_s),
    )
    rows = []
    with job(way, groups, ranks, step_s) as (replicas, proxies):
        for _ in range(count):
            time.sleep(chance.uniform(0.0, 0.5))  # the random moment
            hit = chance.sample(range(groups), chance.choice([1, groups]))
            swallow_s = chance.choice([0.0, 0.0, chance.uniform(0.0, 2.0)])
            if way == "behind":  # a connection that goes on loses nothing
                some = 2 * len(hit) if not swallow_s and len(hit) < groups else None
                proxies[0].cut(swallow_s, only=some)
            else:
                for number in hit:
                    proxies[number].cut(swallow_s)
            took_s = commit_more(replicas, 2)
            rows.append({
                "way": way, "groups": groups, "ranks": ranks, "step_s": round(step_s, 3),
                "hit": len(hit), "swallow_s": round(swallow_s, 2), "took_s": round(took_s, 2),
            })  # fmt: skip
        same_as_alone(replicas)
        rows[-1]["retried"] = sum(replica.retried for replica in replicas)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--a-job", type=int, default=10, help="cuts in one job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--longest-step-s", type=float, default=0.3)
    parser.add_argument("--way", choices=WAYS, default="gate")
    args = parser.parse_args()
    os.environ.setdefault("RUST_LOG", "error")  # TorchFT reads it when it is loaded
    took: list[float] = []
    for number in range(-(-args.cuts // args.a_job)):
        chance = random.Random(f"{args.seed}/{number}")
        rows = cuts(args.way, args.a_job, chance, args.longest_step_s)
        took += [row["took_s"] for row in rows]
        for row in rows:
            print(json.dumps(row), flush=True)
    spans = f"{median(took):.2f} s (median), {max(took):.2f} s at most"
    print(f"{len(took)} cuts, {args.way}: two more steps after {spans}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
