"""Real sidecars: a thousand readers, silent clients, the host's port, TLS, a token everywhere."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import ssl
import time
from urllib.parse import urlsplit

import pytest
import trustme

from lightkeeper.worker_server import wire
from tests.ports import free_port
from tests.worker_server.ranks import TOKEN, eventually

pytestmark = pytest.mark.integration
GET = b"GET /v1/state HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def port_of(rank):
    return urlsplit(rank.endpoint["url"]).port


def ask(port, path, token=None, context=None):
    kind = http.client.HTTPConnection
    more = {}
    if context is not None:
        kind, more = http.client.HTTPSConnection, {"context": context}
    connection = kind("127.0.0.1", port, timeout=10, **more)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def all_at_once(port, count, within_s=60.0):
    """So many requests on as many connections, all open at once; seconds until each answer."""
    poll, began = select.poll(), time.monotonic()
    waiting, took = {}, []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(("127.0.0.1", port))
        poll.register(sock, select.POLLOUT)
        waiting[sock.fileno()] = (sock, bytearray())
    while waiting and time.monotonic() - began < within_s:
        for fd, event in poll.poll(1000):
            sock, said = waiting[fd]
            if event & select.POLLOUT:
                sock.sendall(GET)
                poll.modify(fd, select.POLLIN)
                continue
            data = sock.recv(65536)
            said += data
            if not data:
                poll.unregister(fd)
                del waiting[fd]
                sock.close()
                assert said.startswith(b"HTTP/1.1 200"), bytes(said[:200])
                took.append(time.monotonic() - began)
    for sock, _ in waiting.values():
        sock.close()
    return took


def test_neither_a_thousand_readers_nor_more_silent_clients_than_fit_shut_anybody_out(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    took = all_at_once(port_of(rank), 1000)
    print(f"\n1000 concurrent: {len(took)} answered, last after {max(took):.2f} s")
    assert len(took) == 1000
    before = rank.state().step.progress
    eventually(lambda: rank.state().step.progress > before, "the rank moves on")
    with contextlib.ExitStack() as stack:
        crowd = []
        for _ in range(1500):  # the limit is 1,024
            sock = stack.enter_context(socket.socket())
            sock.settimeout(10)
            sock.connect(("127.0.0.1", port_of(rank)))
            with contextlib.suppress(OSError):
                sock.send(b"GET /v1/state HTTP/1.1\r\nX-a: ")
            crowd.append(sock)
        took = []
        for _ in range(5):
            for sock in crowd:
                with contextlib.suppress(OSError):
                    sock.send(b"b")
            began = time.monotonic()
            assert ask(port_of(rank), wire.PATH_STATE)[0] == 200
            took.append(time.monotonic() - began)
    print(f"\nslowloris of 1500: answers in {', '.join(f'{t:.3f}' for t in took)} s")
    assert min(took) < 2


def test_the_hosts_port_outlives_the_sidecar_that_has_it_and_the_rank(start_rank):
    port = free_port()
    own = {"LIGHTKEEPER_HOST_PORT": str(port), "LIGHTKEEPER_LINGER_S": "0.5", "WORLD_SIZE": "3"}
    ranks = [start_rank("hang", RANK=str(n), **own) for n in range(3)]
    for rank in ranks:
        rank.says("ready")
        assert rank.endpoint

    def look(path, parse):
        # one that ends may do so in the middle of its answer
        with contextlib.suppress(OSError, http.client.HTTPException):
            return parse(ask(port, path)[1])
        return None

    def entries(count):
        report = look(wire.PATH_HOST, wire.parse_host)
        return report and len(report.entries) == count and report.entries

    def holder(other_than=None):
        state = look(wire.PATH_STATE, wire.parse_state)
        return state and state.identity.rank != other_than and state.identity

    urls = {rank.endpoint["url"] for rank in ranks}
    assert {entry.url for entry in eventually(lambda: entries(3), "all three")} == urls
    first = eventually(holder, "one has it")
    os.kill(ranks[first.group_rank].endpoint["sidecar_pid"], signal.SIGKILL)
    second = eventually(lambda: holder(first.rank), "another takes over", within_s=10)
    ranks[second.group_rank].kill(signal.SIGKILL)
    ranks[second.group_rank].process.wait(10)
    began = time.monotonic()
    survivors = eventually(lambda: entries(2), "another has the port")
    print(f"\nthe port was taken over {time.monotonic() - began:.2f} s after the rank's death")
    assert second.rank not in {entry.rank for entry in survivors}
    assert all(entry.report.process.alive for entry in survivors)


def test_with_tls_and_another_bind_everything_needs_the_token(start_rank, tmp_path):
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made.private_key_and_cert_chain_pem.write_to_path(str(cert))
    made.private_key_pem.write_to_path(str(key))
    rank = start_rank(
        "hang", LIGHTKEEPER_BIND="0.0.0.0", LIGHTKEEPER_TLS_CERT=str(cert),
        LIGHTKEEPER_TLS_KEY=str(key), LIGHTKEEPER_MONITOR="http://127.0.0.1:9",
    )  # fmt: skip
    rank.says("ready")
    url = rank.endpoint["url"]
    assert url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    for path in (wire.PATH_STATE, wire.PATH_HOST, "/nope"):
        assert ask(port_of(rank), path, context=context)[0] == 401
    status, state = ask(port_of(rank), wire.PATH_STATE, TOKEN, context)
    assert (status, wire.parse_state(state).identity.pid) == (200, rank.pid)


def test_a_certificate_that_cannot_be_used_is_told_in_the_log(start_rank, tmp_path):
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    rank = start_rank("steps", LIGHTKEEPER_TLS_CERT=str(bad), LIGHTKEEPER_TLS_KEY=str(bad))
    rank.says("ready")

    def said():
        return [p for p in rank.run_dir.glob("*.log") if "not a certificate" in p.read_text()]

    assert eventually(said, "the sidecar says so")
    assert rank.process.poll() is None
