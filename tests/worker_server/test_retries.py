"""Behind a gate `lightkeeper run` has TorchFT ask again for a quorum whose answer was lost."""

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from lightkeeper.gate.listener import NewClient
from lightkeeper.worker_server import __main__ as run
from lightkeeper.worker_server.rank import retries
from lightkeeper.worker_server.rank.admission import options
from lightkeeper.worker_server.rank.retries import quorum_retries
from lightkeeper.worker_server.wire import GATE_ANSWER


@contextmanager
def answering(answer: Callable[[socket.socket, bytes], None], times: int = 1) -> Iterator[str]:
    """A server that answers so many requests."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(times):
                with listener.accept()[0] as client:
                    answer(client, client.recv(4096))

        thread = Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


class Transport:
    def __init__(self, client: socket.socket) -> None:
        self.client, self.write = client, client.sendall

    def get_extra_info(self, name: str) -> None:
        del name

    def close(self) -> None:
        self.client.shutdown(socket.SHUT_WR)


class Timer:
    def cancel(self) -> None:
        pass


class NoProxy:
    def left(self, transport: object) -> None:
        del transport


def gate(client: socket.socket, request: bytes) -> None:
    """The gate's own code for a client that has just come."""
    new = NewClient(NoProxy())  # type: ignore[arg-type]
    new._transport = Transport(client)  # type: ignore[assignment]
    new._timer = Timer()  # type: ignore[assignment]
    new.data_received(request)


@pytest.mark.parametrize(
    ("environ", "times"),
    [
        ({}, "59"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "300"}, "299"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "0.5"}, "1"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "soon"}, "59"),
        ({"TORCHFT_QUORUM_TIMEOUT_SEC": "inf"}, "59"),
    ],
    ids=["defaults", "long", "short", "no-number", "endless"],
)
def test_behind_a_gate_it_asks_about_every_second(environ, times):
    with answering(gate) as url:
        assert quorum_retries({**environ, "TORCHFT_LIGHTHOUSE": url}) == {
            "TORCHFT_QUORUM_RETRIES": times
        }


def test_a_gate_that_is_just_being_started_is_waited_for():
    refusals = [b"", b""]  # hangs up, as a port that is being taken

    def later(client: socket.socket, request: bytes) -> None:
        if refusals:
            refusals.pop()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            gate(client, request)

    with answering(later, times=3) as url:
        assert quorum_retries({"TORCHFT_LIGHTHOUSE": url}) != {}
    assert refusals == []


def test_where_nobody_is_there_it_does_not_wait_long(monkeypatch):
    monkeypatch.setattr(retries, "_STARTS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    assert quorum_retries({"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}) == {}


def test_what_the_user_chose_stays():
    assert quorum_retries({"TORCHFT_QUORUM_RETRIES": "0", "TORCHFT_LIGHTHOUSE": "http://x"}) == {}


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\n\r\n"
LONGER = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + GATE_ANSWER + b"!"


@pytest.mark.parametrize("words", [NOT_FOUND, LONGER, b"", b"\0\0\0 nonsense \xff\r\n" * 9])
def test_a_lighthouse_counts_from_one_and_is_not_asked_again(words):
    with answering(lambda client, _: client.sendall(words)) as url:
        assert quorum_retries({"TORCHFT_LIGHTHOUSE": url}) == {}


@pytest.mark.parametrize("url", ["", "http://", "head:29510", "file:///etc/passwd", "http://[::"])
def test_no_address_is_no_gate(url):
    assert quorum_retries({"TORCHFT_LIGHTHOUSE": url}) == {}


@pytest.mark.parametrize("words", [["train.py"], ["-m", "torch.distributed.run", "train.py"]])
def test_what_is_started_has_it(words, monkeypatch):
    started = []
    with answering(gate) as url:
        monkeypatch.setattr(os, "environ", {"TORCHFT_LIGHTHOUSE": url})
        monkeypatch.setattr(os, "execv", lambda *_: started.append(dict(os.environ)))
        run._become(words, [])
    assert [environ["TORCHFT_QUORUM_RETRIES"] for environ in started] == ["59"]


def test_the_command_of_lightkeeper_run_has_it():
    with answering(gate) as url:
        changes = options(["--", "true"], {"TORCHFT_LIGHTHOUSE": url}).changes
    assert changes["TORCHFT_QUORUM_RETRIES"] == "59"
