"""A thousand clients at once, and clients that never finish: what the rank and others feel.

The rank runs the demo trainer. A crowd takes CPU wherever it goes, so each window with
a crowd at this rank's WorkerServer is paired with one in which the same crowd is at that of an
idle rank of the same host: the difference is what the WorkerServer passes on to its rank.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import threading
import time
from urllib.parse import urlsplit

import aiohttp
import pytest

from lightkeeper.worker_server import wire
from tests.bench.blocks import block_folder
from tests.worker_server.ranks import eventually

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
    ),
    pytest.mark.timeout(600),
]

CROWD = 1000
WINDOW_S = 4.0
ROUNDS = 3


async def crowd(url: str, until_s: float) -> tuple[list[float], int]:
    """Rounds of 1,000 requests at once; seconds of each answer, and failures."""
    took, failed = [], 0

    async def one(session: aiohttp.ClientSession) -> None:
        nonlocal failed
        begin_s = time.perf_counter()
        try:
            async with session.get(url) as answer:
                await answer.read()
                ok = answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            ok = False
        if ok:
            took.append(time.perf_counter() - begin_s)
        else:
            failed += 1

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        while time.time() < until_s:
            await asyncio.gather(*(one(session) for _ in range(CROWD)))
    return took, failed


class Slowloris(threading.Thread):
    """Holds connections with requests that never end, a byte a second each."""

    def __init__(self, url: str, connections: int) -> None:
        super().__init__(daemon=True)
        address = urlsplit(url)
        self._address = address.hostname, address.port
        self._count = connections
        self._over = threading.Event()
        self.opened = 0

    def run(self) -> None:
        sockets: list[socket.socket] = []
        while not self._over.wait(1.0 if len(sockets) >= self._count else 0.0):
            if len(sockets) < self._count:
                try:
                    fresh = socket.create_connection(self._address, timeout=2)
                    fresh.sendall(b"GET /v1/state HTTP/1.1\r\nHost: 127.0.0.1\r\n")
                    sockets.append(fresh)
                    self.opened += 1
                except OSError:
                    self._over.wait(0.05)
                continue
            alive = []
            for sock in sockets:
                try:
                    sock.send(b"X")
                    alive.append(sock)
                except OSError:
                    sock.close()
            sockets = alive
        for sock in sockets:
            sock.close()

    def stop(self) -> None:
        self._over.set()
        self.join(10)


@pytest.fixture
def ranks():
    with block_folder() as blocks:
        lighthouse = blocks.start("lighthouse")
        address = eventually(lambda: lighthouse.log.exists() and lighthouse.log.read_text(),
                             "a Lighthouse")  # fmt: skip
        busy = blocks.start("trainer", steps=10**9, lighthouse=address)
        idle = blocks.start("loop", steps=10**9)
        for rank in (*busy.ranks, *idle.ranks):
            assert rank.endpoint
        eventually(lambda: len(busy.samples()) > 100, "the trainer trains")
        idle.ranks[0].kill(19)  # SIGSTOP: only its WorkerServer works
        yield busy, busy.ranks[0], idle.ranks[0]


def mean_ms(samples, begin_s, end_s):
    window = [seconds for at_s, seconds in samples if begin_s <= at_s <= end_s]
    assert len(window) > 50
    return statistics.mean(window) * 1e3, statistics.median(window) * 1e3


def p(samples, share):
    return sorted(samples)[min(len(samples) - 1, int(share * len(samples)))] * 1e3


def test_a_thousand_clients_at_once(ranks):
    busy, own, other = ranks
    windows: dict[str, list[tuple[float, float]]] = {"quiet": [], "other": [], "own": []}
    for _ in range(ROUNDS):
        for where, rank in (("quiet", None), ("other", other), ("own", own)):
            begin_s = time.time()
            if rank is None:
                time.sleep(WINDOW_S)
            else:
                url = rank.endpoint["url"] + wire.PATH_STATE
                took, failed = asyncio.run(crowd(url, begin_s + WINDOW_S))
                print(f"\ncrowd at {where}: {len(took)} answers, {failed} failed, p50 "
                      f"{p(took, 0.5):.0f} ms, p99 {p(took, 0.99):.0f} ms")  # fmt: skip
                assert not failed
            windows[where].append((begin_s, time.time()))
            time.sleep(1.0)
    report(busy, windows)


def test_clients_that_never_finish(ranks):
    busy, own, other = ranks
    windows: dict[str, list[tuple[float, float]]] = {"quiet": [], "other": [], "own": []}
    for _ in range(ROUNDS):
        for where, rank in (("quiet", None), ("other", other), ("own", own)):
            loris = None if rank is None else Slowloris(rank.endpoint["url"], 2 * CROWD)
            if loris is not None:
                loris.start()
                time.sleep(2.0)
            begin_s = time.time()
            took = []
            while time.time() < begin_s + WINDOW_S:
                asked_s = time.perf_counter()
                (rank or own).state()
                took.append(time.perf_counter() - asked_s)
                time.sleep(0.05)
            opened = loris.opened if loris else 0
            print(f"\nslowloris at {where} ({opened} connections opened): another reader's "
                  f"p50 {p(took, 0.5):.1f} ms, worst {max(took) * 1e3:.0f} ms")  # fmt: skip
            windows[where].append((begin_s, time.time()))
            if loris is not None:
                loris.stop()
    report(busy, windows)


def report(busy, windows):
    samples = busy.samples()
    table = {where: [mean_ms(samples, *w) for w in spans] for where, spans in windows.items()}
    for where, rows in table.items():
        print(f"  step while the crowd is {where:6}: mean "
              + " ".join(f"{mean:8.2f}" for mean, _ in rows) + " ms, median "
              + " ".join(f"{median:8.2f}" for _, median in rows) + " ms")  # fmt: skip
    mean = {where: statistics.mean(row[0] for row in rows) for where, rows in table.items()}
    print(f"  own / other: {mean['own'] / mean['other']:.3f}; "
          f"own / quiet: {mean['own'] / mean['quiet']:.3f}")  # fmt: skip
