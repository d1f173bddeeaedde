"""What the kernel's word of connections costs. Run with LIGHTKEEPER_BENCH=1 and `pytest -s`."""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack

import pytest

from lightkeeper.worker_server.http_server import file_limit
from lightkeeper.worker_server.sidecar.network import Network, interfaces, own_addresses
from tests.bench.test_worker_server import show

pytestmark = pytest.mark.skipif(
    os.environ.get("LIGHTKEEPER_BENCH") != "1", reason="a benchmark: set LIGHTKEEPER_BENCH=1"
)
RANKS = 8
EVERY_S = 5.0
"""Of a healthy rank."""


@pytest.fixture
def many():
    """Opens loopback connections until there are so many sockets."""
    with ExitStack() as sockets:
        server = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))

        def until(count: int) -> None:
            if file_limit(count + 256) < count + 256:
                pytest.skip("too few files may be open")
            for _ in range(count // 2):
                sockets.enter_context(socket.create_connection(server.getsockname()))
                sockets.enter_context(server.accept()[0])

        yield until


def cpu_ms(call, count):
    samples = []
    for _ in range(count):
        begin_s = time.thread_time()
        call()
        samples.append((time.thread_time() - begin_s) * 1e3)
    return samples


@pytest.mark.parametrize("count", [20, 200, 2000])
def test_a_look_of_eight_ranks(many, count):
    """Each sidecar asks for itself, every 5 s; every second while its rank stands."""
    many(count)
    ranks = [Network(os.getpid(), dict) for _ in range(RANKS)]
    at_s = time.monotonic()

    def all_look():
        nonlocal at_s
        at_s += EVERY_S
        for rank in ranks:
            rank.look(at_s, stands=False)

    took_ms = show(f"{RANKS} looks, {count} sockets", cpu_ms(all_look, 30), "ms of CPU")
    assert not any(rank.error for rank in ranks)
    print(f"  of a core, while all are well: {took_ms / 1e3 / EVERY_S:.2%}, a rank "
          f"{took_ms / 1e3 / EVERY_S / RANKS:.2%}")  # fmt: skip
    show("all connections of one rank", cpu_ms(ranks[0].connections, 30), "ms of CPU")


def test_addresses_and_interfaces():
    show("addresses", cpu_ms(own_addresses, 100), "ms of CPU")
    show("interfaces", cpu_ms(interfaces, 100), "ms of CPU")
