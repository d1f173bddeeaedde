"""Requests on kept connections: what is reused, what is asked anew, what is no answer."""

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from lightkeeper.monitor.act.http import Fetcher, FetchError, Question
from lightkeeper.monitor.model.observation import NO_ANSWER

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of `answers`; None: hangs up instead."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.connections, self.requests = 0, []
        self._serving = []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}/v1/host?a=b"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._serving.append(asyncio.current_task())
        try:
            while True:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                said = self.answers.pop(0)
                if said is None:
                    break
                writer.write(said)
                await writer.drain()
                if b"close" in said:
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def asked(*answers, times=1, within_s=5.0, max_bytes=1000, few_files=False):
    """Answers (or errors) to so many questions, and the server that answered."""

    async def run():
        said, fetcher = [], Fetcher()
        if few_files:
            fetcher._kept_until_s = float("inf")
        async with Server(*answers) as server:
            for _ in range(times):
                question = Question(server.url, within_s, max_bytes, headers={"X-A": "b"})
                try:
                    said.append(await asyncio.to_thread(fetcher.ask, question))
                except FetchError as exc:
                    said.append(exc)
            await asyncio.to_thread(fetcher.close)
        return said, server

    return asyncio.run(run())


def test_a_connection_is_kept_and_the_request_is_plain():
    replies, server = asked(OK, OK, OK, times=3)
    assert [(reply.status, reply.body) for reply in replies] == [(200, b"ok")] * 3
    assert server.connections == 1
    first = server.requests[0].split(b"\r\n")
    assert first[0] == b"GET /v1/host?a=b HTTP/1.1"
    assert b"X-A: b" in first
    assert b"Host: " + server.url.split("/")[2].encode() in first


def test_with_few_files_connections_are_closed():
    _, server = asked(OK, OK, times=2, few_files=True)
    assert server.connections == 2


@pytest.mark.parametrize(
    ("said", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", b"ok"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall there is", b"all there is"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)
def test_bodies_of_every_kind(said, body):
    (reply,), _ = asked(said)
    assert reply.body == body


@pytest.mark.parametrize(
    ("answers", "old"),
    [((OK, None, OK), False), ((OK + OK.replace(b"ok", b"no"), OK), False), ((OK, OK), True)],
    ids=["hung up while idle", "two answers to one question", "nobody used it for long"],
)
def test_a_connection_of_no_use_is_not_asked_again(answers, old, monkeypatch):
    if old:
        monkeypatch.setattr("lightkeeper.monitor.act.http.KEPT_S", 0.0)
    replies, server = asked(*answers, times=2)
    assert [reply.body for reply in replies] == [b"ok", b"ok"]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([None, None], "hung up without an answer"),  # asked once more: it may have been idle
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "no HTTP"),
        (
            [b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 9\r\n\r\nok"],
            "received 2 of 9 bytes",
        ),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000], "over 1000 bytes"),
        ([b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20_000], "Too many headers"),
    ],
)
def test_what_is_no_answer_ends_its_own_request(said, why):
    (first, second), _ = asked(*said, OK, times=2)
    assert isinstance(first, FetchError)
    assert why in str(first)
    assert second.body == b"ok"


def test_a_server_that_says_nothing_costs_no_more_than_its_deadline():
    began_s = time.monotonic()
    (reply,), _ = asked(b"HTTP/1.1 200 OK\r\nContent-", within_s=0.1)
    assert "no full answer within 0.1 s" in str(reply)
    assert time.monotonic() - began_s < 4


def test_a_change_goes_on_a_connection_of_its_own():
    """It is sent once: the other side may just be closing one that was kept."""

    async def run():
        fetcher = Fetcher()
        async with Server(OK, OK) as server:
            for method in ("GET", "POST"):
                question = Question(server.url, 5.0, 1000, method=method)
                await asyncio.to_thread(fetcher.ask, question)
            await asyncio.to_thread(fetcher.close)
        return server.connections

    assert asyncio.run(run()) == 2


# -- what a timeout was -------------------------------------------------------------------------


def timed_out(url: str) -> str:
    fetcher = Fetcher()
    try:
        with pytest.raises(FetchError) as caught:
            fetcher.ask(Question(url, 0.3, 1000))
        return str(caught.value)
    finally:
        fetcher.close()


def test_a_name_that_does_not_resolve_in_time_is_named(monkeypatch):
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(20.0) and [])
    try:
        said = timed_out("http://lighthouse.nowhere:29510/status")
    finally:
        over.set()
    assert said == "timeout: its name lighthouse.nowhere is not resolved within 0.3 s"


def test_a_port_that_takes_no_connection_is_told_from_one_that_takes_it_and_says_nothing():
    with socket.socket() as full, contextlib.ExitStack() as stack:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        url = f"http://127.0.0.1:{full.getsockname()[1]}/"
        assert timed_out(url) == f"timeout: {NO_ANSWER}0.3 s"
        for _ in range(3):  # until the kernel's queue is full
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        assert timed_out(url) == "timeout: no connection in time"
