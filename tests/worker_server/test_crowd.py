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

import jsonschema
import pytest
import trustme

from tests.ports import free_port
from tests.worker_server.ranks import TOKEN, eventually
from worker_server import wire

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


def test_a_thousand_readers_at_once_are_all_answered(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    took = all_at_once(port_of(rank), 1000)
    print(f"\n1000 concurrent: {len(took)} answered, last after {max(took):.2f} s")
    assert len(took) == 1000
    before = rank.state().step.progress
    eventually(lambda: rank.state().step.progress > before, "the rank moves on")


def test_a_slowloris_with_more_connections_than_the_limit_shuts_nobody_out(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
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


def test_the_hosts_port_outlives_the_rank_and_the_sidecar_that_has_it(start_rank):
    port = free_port()
    own = {"LIGHTKEEPER_HOST_PORT": str(port), "LIGHTKEEPER_LINGER_S": "0.5", "WORLD_SIZE": "3"}
    ranks = [start_rank("hang", RANK=str(n), **own) for n in range(3)]
    for rank in ranks:
        rank.says("ready")
        assert rank.endpoint

    def look():
        # one that ends may do so in the middle of its answer
        with contextlib.suppress(OSError, http.client.HTTPException):
            return wire.parse_host(ask(port, wire.PATH_HOST)[1])
        return None

    report = eventually(lambda: (now := look()) and len(now.entries) == 3 and now, "all three")
    urls = {rank.endpoint["url"] for rank in ranks}
    assert {entry.url for entry in report.entries} == urls
    holder = wire.parse_state(ask(port, wire.PATH_STATE)[1]).identity
    ranks[holder.group_rank].kill(signal.SIGKILL)
    ranks[holder.group_rank].process.wait(10)
    began = time.monotonic()
    survivors = eventually(
        lambda: (now := look()) and len(now.entries) == 2 and now, "another has the port"
    )
    print(f"\nthe port was taken over {time.monotonic() - began:.2f} s after the rank's death")
    assert holder.rank not in {entry.rank for entry in survivors.entries}
    assert all(entry.report.process.alive for entry in survivors.entries)


def test_a_sidecar_that_is_killed_leaves_the_port_to_another(start_rank):
    port = free_port()
    ranks = [
        start_rank("hang", RANK=str(n), WORLD_SIZE="2", LIGHTKEEPER_HOST_PORT=str(port))
        for n in range(2)
    ]
    for rank in ranks:
        rank.says("ready")
        assert rank.endpoint

    def holder():
        with contextlib.suppress(OSError):
            return ask(port, wire.PATH_STATE)[1]["identity"]["group_rank"]
        return None

    first = eventually(lambda: (now := holder()) is not None and (now,), "one has it")[0]
    os.kill(ranks[first].endpoint["sidecar_pid"], signal.SIGKILL)
    eventually(lambda: holder() == 1 - first, "the other takes over", within_s=10)


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


def test_what_a_real_rank_answers_follows_the_document(start_rank):
    rank = start_rank("steps")
    rank.says("ready")
    document = json.loads(rank.ask(wire.PATH_OPENAPI)[1])
    for path, item in document["paths"].items():
        if "get" not in item or path == wire.PATH_PROFILE:
            continue
        status, text = rank.ask(path)
        described = item["get"]["responses"][str(status)]["content"]
        if "application/json" in described:
            schema = {**described["application/json"]["schema"],
                      "components": document["components"]}  # fmt: skip
            jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        else:
            assert text
