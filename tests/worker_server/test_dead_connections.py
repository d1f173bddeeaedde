"""Dead connections to the Lighthouse are shut, and no others."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace

import pytest

from lightkeeper.worker_server.rank import exchange
from lightkeeper.worker_server.sidecar import ask_again
from lightkeeper.worker_server.sidecar.ask_again import AskAgain, answers, asks_again
from lightkeeper.worker_server.sidecar.network import TcpSocket
from lightkeeper.worker_server.wire import Trouble
from tests.waiting import wait_for

SERVER = "localhost:29511"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
NO_TRY_SOON = {"retries": 5, "again_s": 3.2}


def row(inode: int = 7, peer: str = "127.0.0.1:29511", **values: float) -> TcpSocket:
    """A socket from which nothing is acknowledged."""
    fields = dict.fromkeys(TcpSocket._fields, 0) | NO_TRY_SOON | values
    return TcpSocket(**{**fields, "inode": inode, "local": "127.0.0.1:9", "peer": peer})  # type: ignore[arg-type]


class Rank:
    """Looks at its sockets as the sidecar does; time is what the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, on: bool = True) -> None:
        self.up = True
        self.asked = 0
        self.shut: list[list[int]] = []
        monkeypatch.setattr(ask_again, "answers", self._answers)
        self.watch = AskAgain(lambda: SERVER, self._shut, on=on)
        self.hears = True
        self.look(0.0)

    def _shut(self, inodes: Collection[int]) -> int:
        self.shut.append([*inodes])
        return len(inodes) if self.hears else 0

    def _answers(self, server: str) -> bool:
        assert server == SERVER
        self.asked += 1
        return self.up

    def look(self, now_s: float, *rows: TcpSocket, for_s: float = 4.0) -> list[list[int]]:
        """All that was shut by now."""
        self.watch.look([(each, for_s) for each in rows], now_s)
        wait_for(lambda: not self.watch._busy.locked(), within_s=5, what="it has looked")
        for thread in threading.enumerate():
            if "_act" in thread.name:
                thread.join(5)
        return self.shut


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    return Rank(monkeypatch)


def test_one_that_nobody_acknowledges_is_shut_once_a_new_connection_is_answered(rank: Rank) -> None:
    rank.up = False
    assert rank.look(10.0, row()) == []
    assert rank.asked == 1
    rank.up = True
    assert rank.look(11.0, row()) == [[7]]
    assert rank.look(20.0, row()) == [[7]], "each once"
    [shut] = rank.watch.ended(13.0)
    assert (shut.trouble, shut.for_s, shut.use) == (Trouble.SHUT, 2.0, "lighthouse")
    assert not [*rank.watch.ended(80.0)]


def test_the_next_try_of_its_own_kernel_comes_first_if_it_is_near(rank: Rank) -> None:
    """The network was away and is back."""
    assert rank.look(10.0, row(again_s=1.5)) == []
    assert rank.look(11.0, row(again_s=0.5)) == []
    assert rank.look(12.0) == []  # acknowledged
    assert rank.look(30.0, row(again_s=1.5)) == [], "what was answered before is forgotten"
    assert rank.look(31.0, row(again_s=2.0, retries=6)) == [[7]]


@pytest.mark.parametrize(
    "other",
    [row(peer="127.0.0.1:443"), row(peer="10.9.9.9:29511")],
    ids=["another port", "another host"],
)
def test_no_other_connection_is_shut(rank: Rank, other: TcpSocket) -> None:
    assert rank.look(10.0, other) == []
    assert rank.asked == 0


def test_none_is_shut_before_three_seconds(rank: Rank) -> None:
    assert rank.look(10.0, row(), for_s=2.9) == []


def test_one_act_in_five_seconds(rank: Rank) -> None:
    assert rank.look(10.0, row(1), row(2)) == [[1, 2]]
    assert rank.look(14.0, row(3)) == [[1, 2]]
    assert rank.look(15.0, row(3)) == [[1, 2], [3]]


def test_the_monitor_can_forbid_it(rank: Rank) -> None:
    rank.watch.allowed = False
    assert rank.look(10.0, row()) == []
    rank.watch.allowed = True
    assert rank.look(11.0, row()) == [[7]]


def test_what_a_rank_did_not_do_is_not_told(rank: Rank) -> None:
    rank.hears = False
    assert rank.look(10.0, row()) == [[7]]
    assert not [*rank.watch.ended(10.0)]
    assert rank.look(20.0, row()) == [[7]]


def test_it_can_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Rank(monkeypatch, on=False).look(10.0, row()) == []


@pytest.mark.parametrize(
    ("environ", "version", "on"),
    [
        ({"TORCHFT_QUORUM_RETRIES": "59"}, "0.2.0", True),
        ({"TORCHFT_QUORUM_RETRIES": "59", "LIGHTKEEPER_ASK_AGAIN": "0"}, "0.2.0", False),
        ({"TORCHFT_QUORUM_RETRIES": "59"}, "torchft-nightly 2026.10.26", True),
        ({"TORCHFT_QUORUM_RETRIES": "59"}, "0.3.0", False),
        ({"TORCHFT_QUORUM_RETRIES": "59"}, "others 0.2.0", False),
        ({"TORCHFT_QUORUM_RETRIES": "0"}, "0.2.0", False),
        ({"TORCHFT_QUORUM_RETRIES": "many"}, "0.2.0", False),
        ({}, "0.2.0", False),
    ],
    ids=[
        "usual",
        "switched-off",
        "nightly",
        "not-tried",
        "no-torchft",
        "asks-once",
        "no-number",
        "not-set",
    ],
)  # fmt: skip
def test_only_where_torchft_asks_again_and_was_tried(
    environ: dict[str, str], version: str, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, _, number = version.rpartition(" ")
    installed = {name or "torchft": SimpleNamespace(version=number)}
    monkeypatch.setattr(
        ask_again, "distributions", lambda name: filter(None, [installed.get(name)])
    )
    assert asks_again(environ) is on


# -- real sockets --------------------------------------------------------------------------------


@contextlib.contextmanager
def server(talk: Callable[[socket.socket], object]) -> Iterator[str]:
    """Answers one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as link:
                link.recv(100)
                talk(link)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"localhost:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("talk", "lives"),
    [
        (lambda link: (link.send(SETTINGS[:4]), link.send(SETTINGS[4:])), True),
        (lambda link: link.send(b"HTTP/1.1 400 Bad Request\r\n"), False),
        (lambda link: None, False),
        (lambda link: link.recv(1), False),  # until the client gives up
    ],
    ids=["http2", "http1", "closes", "is stopped"],
)
def test_a_server_lives_if_it_speaks_http2(
    talk: Callable[[socket.socket], object], lives: bool
) -> None:
    with server(talk) as address:
        assert answers(address) is lives


def test_nobody_answers_at_a_closed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert not answers(address)


def test_the_rank_shuts_these_sockets_alone() -> None:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2))
        ours = [
            stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(2)
        ]
        theirs = [stack.enter_context(listener.accept()[0]) for _ in range(2)]
        inodes = [os.fstat(each.fileno()).st_ino for each in (ours[0], listener)]
        assert exchange.shut([*inodes, 1]) == (1, "shut 1 connection")
        assert ours[0].recv(1) == theirs[0].recv(1) == b""
        ours[1].sendall(b"x")
        assert theirs[1].recv(1) == b"x"


def test_one_that_still_connects_gives_up() -> None:
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        stack.enter_context(socket.create_connection(full.getsockname()))
        waiting = stack.enter_context(socket.socket())
        waiting.setblocking(False)
        assert waiting.connect_ex(full.getsockname())
        assert exchange.shut([os.fstat(waiting.fileno()).st_ino])[0] == 1
        assert waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
