"""Slow and many clients against the real server on loopback, with a small application."""

from __future__ import annotations

import contextlib
import http.client
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lightkeeper.worker_server.http_server import Channel, HttpServer, ServerLimits
from lightkeeper.worker_server.sidecar.serve import connections_that_fit, listening_socket
from tests.waiting import wait_for

BIG = b"x" * (24 << 20)


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/slow":
        environ["wsgi.input"].read()
        time.sleep(0.4)
    big = {"/big": BIG, "/record": BIG[: 3 << 20]}
    body = big[path] if path in big else f"{environ['REMOTE_ADDR']} {path}\n".encode()
    start_response("200 OK", [("Content-Length", str(len(body))), ("Content-Type", "text/plain")])
    return [body]


class Served:
    def __init__(self, channel=Channel, **limits):
        self.server = HttpServer(
            application, listening_socket("127.0.0.1", 0), threads=2, channel=channel,
            limits=ServerLimits(**{"tend_s": 0.05, **limits}),
        )  # fmt: skip
        self.server.start()
        self.open = contextlib.ExitStack()

    @property
    def channels(self):
        return list(self.server._server.connections.channels)

    def connect(self, data=b""):
        sock = self.open.enter_context(
            socket.create_connection(("127.0.0.1", self.server.port), timeout=10)
        )
        if data:
            sock.sendall(data)
        return sock

    def get(self, path="/", context=None):
        kind, more = http.client.HTTPConnection, {}
        if context is not None:
            kind, more = http.client.HTTPSConnection, {"context": context}
        connection = kind("127.0.0.1", self.server.port, timeout=20, **more)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, len(answer.read())
        finally:
            connection.close()

    def close(self):
        self.open.close()
        self.server.close()


@pytest.fixture
def served():
    with contextlib.ExitStack() as stack:
        yield lambda *args, **limits: stack.enter_context(
            contextlib.closing(Served(*args, **limits))
        )


def closes(sock, within_s=10.0):
    """Whether the other side closes; how long it took."""
    sock.settimeout(within_s)
    began = time.monotonic()
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - began


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n\r\n",
     b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nab"],
    ids=["nothing", "half a line", "half a header", "blank lines", "half a body"],
)  # fmt: skip
def test_a_request_that_stays_incomplete_is_dropped(served, sent):
    server = served(request_s=0.3, idle_s=60)
    assert closes(server.connect(sent)) < 5
    assert server.get()[0] == 200


def test_a_kept_connection_is_dropped_when_idle_and_not_before(served):
    server = served(request_s=0.3, idle_s=0.8)
    sock = server.connect(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    assert closes(sock) > 0.4


def test_a_client_that_does_not_read_is_dropped_and_holds_no_thread(served):
    server = served(unread_s=0.6, request_s=0.3)
    stuck = [server.connect(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(4)]
    assert server.get() == (200, len(b"127.0.0.1 /\n"))
    wait_for(lambda: not server.channels, within_s=10, what="all four are dropped")
    assert sum(len(sock.recv(1 << 20)) for sock in stuck) < len(BIG)


def test_a_big_answer_arrives_whole(served):
    assert served().get("/big") == (200, len(BIG))


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_ends_keeps_no_file_of_an_answer_that_nobody_read(served):
    server = served(unread_s=60)
    stuck = server.connect(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n")
    assert stuck.recv(1)
    wait_for(
        lambda: any(b.overflowed for channel in server.channels for b in channel.outbufs),
        within_s=10, what="the rest is in a file",
    )  # fmt: skip
    files = [b.getfile() for channel in server.channels for b in channel.outbufs]
    server.server.close()
    assert all(file.closed for file in files)


def test_an_answer_that_takes_longer_than_any_deadline_is_given(served):
    assert served(request_s=0.3, idle_s=0.1, unread_s=0.1, young_s=0.0).get("/slow")[0] == 200


def test_more_silent_clients_than_the_limit_do_not_shut_a_reader_out(served):
    server = served(connections=50, request_s=60, young_s=0.1)
    crowd = [server.connect(b"GET / HTTP/1.1\r\nX-a: ") for _ in range(300)]
    stop = threading.Event()

    def drip():
        while not stop.wait(0.05):
            for sock in crowd:
                with contextlib.suppress(OSError):
                    sock.send(b"b")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        for _ in range(3):
            began = time.monotonic()
            assert server.get()[0] == 200
            assert time.monotonic() - began < 5
    finally:
        stop.set()
        dripping.join()
    assert len(server.channels) <= 50


def test_the_oldest_makes_room_and_the_one_being_answered_does_not(served):
    server = served(connections=2, request_s=60, young_s=0.05)
    answered = server.connect(b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    silent = server.connect()
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(server.get)
        assert closes(silent) < 5
        assert third.result(10)[0] == 200
    assert answered.recv(65536).startswith(b"HTTP/1.1 200")


def test_far_more_readers_than_threads_and_connections_are_all_answered(served):
    server = served(connections=40, young_s=60)  # on a busy machine all of them wait for long
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: server.get()[0], range(300)))
    assert answers == [200] * 300


def test_a_header_that_is_too_large_is_refused(served):
    server = served(header_bytes=2048)
    sock = server.connect(b"GET / HTTP/1.1\r\nX-a: " + b"b" * 4096 + b"\r\n\r\n")
    assert b" 431 " in sock.recv(65536)


def test_a_second_listener_shares_loop_threads_and_limits(served):
    server = served()
    second = listening_socket("127.0.0.1", 0)
    port = second.getsockname()[1]
    server.server.also(second)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b"GET /2 HTTP/1.0\r\n\r\n")
        assert sock.makefile("rb").read().endswith(b"127.0.0.1 /2\n")
    assert server.get()[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "0.0.0.0", "::"])
def test_any_bind_listens(host):
    try:
        listener = listening_socket(host, 0)
    except OSError as exc:
        pytest.skip(f"no {host} here: {exc}")
    with listener:
        assert listener.getsockname()[1] > 0


def test_as_many_connections_as_files_allow():
    assert connections_that_fit(100) == 100
    assert 8 <= connections_that_fit(10**9) < 10**9


def test_a_full_flight_record_needs_no_room_on_a_disk(served, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")  # as full, or read-only
    connection = http.client.HTTPConnection("127.0.0.1", served().server.port, timeout=10)
    connection.connect()
    connection.auto_open = False  # an answer that went wrong inside closes the connection
    with contextlib.closing(connection):
        for _ in range(2):
            connection.request("GET", "/record")
            assert len(connection.getresponse().read()) == 3 << 20


def test_who_pipelines_and_reads_nothing_is_answered_once_and_others_meanwhile(served):
    asked = []

    def counting(environ, start_response):
        asked.append(environ["PATH_INFO"])
        return application(environ, start_response)

    server = served()
    server.server._dispatcher.set_thread_count(1)
    server.server._server.application = counting
    server.connect(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    wait_for(lambda: asked, within_s=10, what="its first request is answered")
    for _ in range(5):
        assert server.get("/healthz")[0] == 200
    assert asked.count("/big") == 1


@pytest.mark.parametrize("count", [1, 2, 50])
def test_all_requests_that_are_pipelined_are_answered_in_their_order(served, count):
    server = served()
    paths = [f"/{number}" if number % 3 else "/record" for number in range(count)]
    sock = server.connect("".join(f"GET {p} HTTP/1.1\r\nHost: x\r\n\r\n" for p in paths).encode())
    stream = sock.makefile("rb")
    for path in paths:
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        length = 0
        while (line := stream.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length"):
                length = int(line.split(b":")[1])
        body = stream.read(length)
        assert body == (BIG[:length] if path == "/record" else f"127.0.0.1 {path}\n".encode())


@pytest.mark.parametrize("after", ["", "Connection: close\r\n"])
def test_a_slow_answer_is_not_overtaken_on_its_connection(served, after):
    sock = served().connect(
        b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\nGET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
        + f"GET /2 HTTP/1.1\r\nHost: x\r\n{after}\r\nGET /3 HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    )
    stream, wanted = sock.makefile("rb"), ["/slow", "/1", "/2", *([] if after else ["/3"])]
    bodies = [line for line in stream_lines(stream, len(wanted)) if line.startswith(b"127.0.0.1")]
    assert bodies == [f"127.0.0.1 {path}\n".encode() for path in wanted]
    assert not after or stream.read() == b""


def stream_lines(stream, answers):
    """Up to the last line of so many answers."""
    while answers:
        line = stream.readline()
        assert line
        answers -= line.startswith(b"127.0.0.1")
        yield line


def test_all_unread_answers_together_are_bounded_and_the_longest_unread_go(served):
    server = served(unread_bytes=40 << 20, unread_s=60)
    clients = []
    for number in range(4):  # one after the other, so that it is known who is the last
        clients.append(server.connect(b"GET /big HTTP/1.1\r\nHost: x\r\n\r\n"))
        wait_for(lambda: any(c.total_outbufs_len > 20 << 20 for c in server.channels),
                 within_s=10, what=f"answer {number} is there")  # fmt: skip
        wait_for(lambda: sum(c.total_outbufs_len for c in server.channels) <= 40 << 20,
                 within_s=10, what="they are bounded")  # fmt: skip
    assert server.get("/healthz")[0] == 200
    received = 0
    while data := clients[-1].recv(1 << 20):
        received += len(data)
        if received >= len(BIG):
            break
    assert received >= len(BIG)


def test_many_who_pipeline_and_never_read_do_not_delay_others(served):
    server = served(unread_s=60)
    for _ in range(100):
        server.connect(b"GET /record HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
    for _ in range(5):
        began_s = time.monotonic()
        assert server.get("/healthz")[0] == 200
        assert time.monotonic() - began_s < 5
    wait_for(lambda: sum(c.total_outbufs_len for c in server.channels) <= 64 << 20,
             within_s=10, what="what they do not read is bounded")  # fmt: skip


def test_what_is_pipelined_is_not_even_parsed_before_its_turn(served):
    """Else 60,000 requests hold the loop for 8 s."""
    server = served()
    slow = b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n"
    server.connect(slow * 50)
    wait_for(lambda: any(c.requests for c in server.channels), within_s=10, what="the first")
    [channel] = server.channels
    assert len(channel.requests) == 1
    assert channel.request is None
    assert len(channel._unread) >= 48 * len(slow)


def test_a_body_that_waits_for_leave_gets_it_in_its_turn(served):
    sock = served().connect(
        b"GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"
        b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
    )
    stream = sock.makefile("rb")
    assert list(stream_lines(stream, 1))[-1] == b"127.0.0.1 /1\n"
    assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert stream.readline() == b"\r\n"
    sock.sendall(b"abc" + b"GET /2 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [line for line in stream_lines(stream, 2) if line.startswith(b"127")] == [
        b"127.0.0.1 /slow\n", b"127.0.0.1 /2\n",
    ]  # fmt: skip
