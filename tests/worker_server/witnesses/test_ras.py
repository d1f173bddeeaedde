"""The witness that asks NCCL's RAS threads, against a socket that answers as they do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from lightkeeper.worker_server.sidecar.witnesses import ras
from lightkeeper.worker_server.sidecar.witnesses.ras import Ras
from lightkeeper.worker_server.sidecar.witnesses.witness import CannotReadError
from lightkeeper.worker_server.wire import Weight

SLOW, CONTEXT = Weight.SLOW, Weight.CONTEXT
HERE = socket.gethostname()


class Server:
    """Answers one client after another, each with the next of `answers`, the last for ever."""

    def __init__(self, answers: Sequence[bytes | None], *, old: bool = False) -> None:
        self.answers, self.old = list(answers), old
        self.orders: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.silent: list[socket.socket] = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if answer is None:  # a stopped rank was picked
                self.silent.append(link)
                continue
            with link, link.makefile("rwb", buffering=0) as lines:
                for line in iter(lambda: lines.readline(1024).decode().strip(), ""):
                    self.orders.append(line)
                    if line.endswith("STATUS"):
                        lines.write(answer)
                        break
                    old = self.old and line.startswith("SET")
                    hello = b"SERVER PROTOCOL 2\n" if line.startswith("CLIENT") else b"OK\n"
                    lines.write(b"ERROR: Unknown command\n" if old else hello)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    every: list[Server] = []
    yield every
    for server in every:
        server.listener.shutdown(socket.SHUT_RDWR)  # its thread comes back from accept
        for link in (server.listener, *server.silent):
            link.close()


def rank(number: int, pid: int, count: int = 10, error: int = 0) -> dict[str, Any]:
    return {
        "rank": number, "host": HERE, "pid": pid, "cuda_dev": 0, "nvml_dev": 0,
        "status": {"init_state": 0, "async_error": error, "finalize_called": False,
                   "destroy_flag": False, "abort_flag": False},
        "collective_counts": {"Broadcast": 1, "AllReduce": count},
    }  # fmt: skip


def status(*ranks: dict[str, Any], missing: Sequence[dict[str, Any]] = ()) -> bytes:
    group = {
        "hash": "0xabc", "size": 8, "ranks": list(ranks), "ranks_count": len(ranks),
        "missing_ranks_count": len(missing), "missing_ranks": list(missing),
    }  # fmt: skip
    return json.dumps({"nccl_version": "2.28.7", "communicators": [group]}).encode()


def gone(number: int, pid: int, host: str, *, dead: bool) -> dict[str, Any]:
    state = {"unresponsive": True, "considered_dead": dead}
    return {"rank": number, "host": host, "pid": pid, "status": state}


CASES: dict[str, tuple[list[bytes | None], list[tuple[Weight, str, str, tuple[int, ...]]]]] = {
    "healthy": ([status(rank(0, 70), rank(1, 71))], []),
    "other job": ([status(rank(0, 5, error=6), missing=[gone(1, 6, HERE, dead=True)])], []),
    "behind": ([status(rank(0, 70), rank(1, 71, 9))], []),
    "error": ([status(rank(0, 70), rank(1, 71, error=6))],
              [(SLOW, "nccl-error", "NCCL group 0xabc: rank 1 reports error 6", (71,))]),
    "missing here": ([status(rank(0, 70), missing=[gone(1, 71, HERE, dead=True)])],
                     [(SLOW, "nccl-missing", f"pid 71 of {HERE}, is taken for dead", (71,))]),
    "missing elsewhere": ([status(rank(0, 70), missing=[gone(1, 71, "other", dead=False)])],
                          [(CONTEXT, "nccl-missing", "pid 71 of other, does not answer", ())]),
    "a stopped rank answers first": ([None, status(rank(0, 70, error=2))],
                                     [(SLOW, "nccl-error", "rank 0 reports error 2", (70,))]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_ras_says(name: str, servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ras, "_TIMEOUT_S", 0.1 if name.startswith("a stopped") else 5.0)
    answers, said = CASES[name]
    servers.append(Server(answers))
    witness = Ras(servers[0].address)
    for now_s in (1000.0, 1030.0, 1060.0):
        rows = witness.look((70, 71), now_s)
    assert [(row.weight, row.code, row.pids) for row in rows] == [
        (weight, code, pids) for weight, code, _, pids in said
    ]
    for row, (_, _, text, _) in zip(rows, said, strict=True):
        assert text in row.text
    assert servers[0].orders[:3] == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json"]


@pytest.mark.parametrize(
    ("answer", "old", "why"),
    [
        (b"{}", True, "before 2.28.7"),
        (b"nonsense", False, "answers something else"),
        (b'{"communicators": [{"ranks": [3]}]}', False, "answers something else"),
        (b"[]", False, "answers something else"),
        (b"", False, "answers something else"),
        (b"[" * 100_000, False, "answers something else"),
        (None, False, "timed out"),
    ],
    ids=["old", "no JSON", "another form", "a list", "closed", "deep", "nobody answers"],
)
def test_ras_cannot_be_read(
    answer: bytes | None,
    old: bool,
    why: str,
    servers: list[Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if answer is None:
        monkeypatch.setattr(ras, "_TIMEOUT_S", 0.05)
    servers.append(Server([answer], old=old))
    with pytest.raises(CannotReadError, match=why):
        Ras(servers[0].address).look((70,), 1.0)


def test_nobody_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        witness = Ras(f"127.0.0.1:{bound.getsockname()[1]}")
        with pytest.raises(CannotReadError, match="refused"):
            witness.look((70,), 1.0)


@pytest.mark.parametrize("address", ["nonsense", "host:port", ":99999999"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(CannotReadError):
        Ras(address).look((70,), 1.0)
