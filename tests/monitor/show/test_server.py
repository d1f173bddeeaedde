"""The monitor's server under a crowd: descriptors beyond 1,024, silent and dripping clients."""

from __future__ import annotations

import contextlib
import http.client
import os
import resource
import socket
from pathlib import Path

import pytest
from flask import Flask

from lightkeeper.monitor.show.web.server import ServeError, Server

CROWD = 1300


@pytest.fixture
def descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CROWD + 512
    if hard < wanted:
        pytest.skip(f"no {wanted} descriptors here: the limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def server():
    app = Flask(__name__)
    app.add_url_rule("/", view_func=lambda: "here")
    served = Server("127.0.0.1", 0)
    served.start(app)
    yield served
    served.close()


def get(server: Server) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/")
        return connection.getresponse().read()


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: a\r\nX: "], ids=["silent", "slow"])
def test_a_crowd_that_says_nothing_keeps_nobody_from_an_answer(server, descriptors, said):
    with contextlib.ExitStack() as crowd:
        for _ in range(CROWD):
            address = ("127.0.0.1", server.port)
            client = crowd.enter_context(socket.create_connection(address, timeout=10))
            client.sendall(said)
        assert client.fileno() > 1024
        assert get(server) == b"here"
    assert get(server) == b"here"


def test_clients_leave_files_to_the_monitor_where_the_system_allows_few():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 240, hard))
    try:
        served = Server("127.0.0.1", 0)
        served.start(Flask(__name__))
        with contextlib.ExitStack() as crowd:
            for _ in range(150):
                crowd.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            crowd.enter_context(Path("/dev/null").open())
            assert b"Not Found" in get(served)
        served.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_it_is_bound_before_it_answers_and_a_busy_port_is_known_at_once(server):
    with pytest.raises(ServeError, match=r"cannot listen on 127\.0\.0\.1"):
        Server("127.0.0.1", server.port)


def test_what_is_closed_answers_no_more(server):
    assert get(server) == b"here"
    server.close()
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        get(server)
