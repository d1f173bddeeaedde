"""`lightkeeper gate` as a process, with real sockets, under fire."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from lightkeeper.gate import http2
from tests.bench.test_gate import cpu_s, run
from tests.gate.groups import Gate, Lighthouse, running
from tests.gate.test_fire import OVER
from tests.ports import free_port

pytestmark = pytest.mark.integration

DEADLINE_MS = 5000.0
SECONDS = 2.0


@pytest.fixture(scope="module")
def lighthouse() -> Iterator[Lighthouse]:
    made = Lighthouse(free_port(), heartbeat_timeout_ms=5000)
    with running(made):
        yield made


@pytest.fixture(scope="module")
def gate(lighthouse: Lighthouse) -> Iterator[Gate]:
    made = Gate(lighthouse.url, free_port(), free_port())
    with running(made):
        yield made


def connect(gate: Gate) -> socket.socket:
    address = urlsplit(gate.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


@contextmanager
def flood(gate: Gate, clients: int, bytes_a_s: int) -> Iterator[None]:
    """Headers of 1,500 indexed fields on a stream that is over, from clients that come again."""
    over = threading.Event()
    block = http2.headers(1, b"\x82" * 1500, end=False) * 20

    def attack() -> None:
        while not over.is_set():
            with suppress(OSError), connect(gate) as made:
                made.sendall(http2.PREFACE + http2.settings({}) + OVER)
                while not over.wait(len(block) * clients / bytes_a_s):
                    made.sendall(block)

    threads = [threading.Thread(target=attack, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_heartbeats_keep_their_deadline_beside_a_flood(gate: Gate) -> None:
    with flood(gate, clients=3, bytes_a_s=4_000_000):
        took = run(gate.url, 3, gate.process.pid, SECONDS)
        assert took["beats"] > 3 * SECONDS
        print(took)
        assert took["p99_ms"] < DEADLINE_MS


def test_more_connections_than_files_shut_out_nobody(lighthouse: Lighthouse) -> None:
    gate = Gate(lighthouse.url, free_port(), free_port(), files=200)
    with running(gate), ExitStack() as silent:
        for _ in range(400):
            silent.enter_context(connect(gate))
        took = run(gate.url, 3, gate.process.pid, SECONDS)
        assert took["beats"] > 3 * SECONDS
        print(took)
        assert took["p99_ms"] < DEADLINE_MS
        worker, before_s = gate.process.pid, cpu_s(gate.process.pid)
        time.sleep(1.0)  # the time in which a loop that spins would be seen to
        assert cpu_s(worker) - before_s < 0.5
        assert gate.view()["lighthouse_up"] is True


def put(gate: Gate, body: bytes, *authorization: bytes) -> int:
    connection = http.client.HTTPConnection(urlsplit(gate.admin).netloc, timeout=10)
    connection.putrequest("PUT", "/v1/gate/denied")
    for each in authorization:
        connection.putheader("Authorization", each)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_strange_token_is_refused_and_a_strange_body_too(gate: Gate) -> None:
    right = b"Bearer secret"
    for said in (
        [],
        [b""],
        [b"Bearer"],
        [b"secret"],
        [b"bearer secret "],
        [b"Bearer secret\xff"],
        [b"\xff\xfe\x80"],
        ["Bearer sécret".encode()],
        ["Bearer sécret".encode("latin-1")],
        [b"Bearer " + b"x" * 7000],
        [right, right],
        [right, b"Bearer x"],
        [b"Basic c2VjcmV0"],
    ):
        assert put(gate, b'{"denied": []}', *said) == 401, said
    host = '{"denied": [{"scope": "host", "name": "a", "reason": "x", "until_s": %s}]}'
    for body in (
        b"",
        b"[" * 100_000,
        b"\xff",
        b"null",
        b'{"denied": {}}',
        (host % ("1" * 400)).encode(),
        (host % ("1" * 5000)).encode(),
        (host % "NaN").encode(),
        (host % "1e400").encode(),
        (host % "[]").encode(),
        b'{"denied": [{"scope": ' + b"9" * 400 + b"}]}",
    ):
        assert put(gate, body, right) == 400, body[:80]
    assert put(gate, b'{"denied": []}', right) == 200
