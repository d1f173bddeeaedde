"""How long a donor stages a state and a healer loads it, over TorchFT's HTTPTransport on loopback.

Two forked processes; the yardsticks are the same bytes through a plain TCP socket, and a copy of
them within memory. Each try of the one is followed by a try of the other, so that what the machine
does it does to both. Our own hook is installed in both: `told_s` is what a rank would tell.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import threading
import time
import warnings
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torchft.checkpointing.http_transport import HTTPTransport

from lightkeeper.worker_server.rank import collectives
from lightkeeper.worker_server.rank import torchft as torchft_times
from lightkeeper.worker_server.rank.page.reader import PageReader
from lightkeeper.worker_server.rank.page.writer import PageWriter
from lightkeeper.worker_server.rank.reporter import Reporter
from tests.worker_server.pages import identity

TENSORS = 64
"""Of a state, all of one size: a model of some hundred layers has more, and larger ones."""
LIMIT = timedelta(seconds=120)
Row = dict[str, Any]


def make_state(nbytes: int) -> dict[str, Any]:
    """A state of so many bytes, as a Manager hands it over."""
    each = nbytes // TENSORS // 4
    return {
        "user": {"default": {f"w{n}": torch.full((each,), float(n)) for n in range(TENSORS)}},
        "torchft": {"step": 1, "batches_committed": 2},
    }


@dataclass
class Hook:
    """What lightkeeper sees of a process."""

    folder: tempfile.TemporaryDirectory[str]
    reader: PageReader

    @classmethod
    def of(cls, transport: object) -> Hook:
        folder = tempfile.TemporaryDirectory()
        page = Path(folder.name) / "rank.page"
        reporter = Reporter(PageWriter.create(page, identity(world_size=1), 1))
        collectives.install(reporter)
        torchft_times.install(reporter)
        torchft_times.time_transport(transport)
        return cls(folder, PageReader(page))

    def last_s(self, part: str) -> float:
        """What the rank tells of the last one."""
        return self.reader.times()[part].last_s


def timed(act: Any, *args: Any) -> float:
    """Seconds that a call takes."""
    began_s = time.perf_counter()
    act(*args)
    return time.perf_counter() - began_s


def _begin() -> None:
    """In a forked process: one thread, and no word of torchft's HTTP server and of torch."""
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore")


def donor(pipe: Any, nbytes: int, tries: int) -> None:
    """Stages again and again, then serves until it is told to end."""
    _begin()
    transport: HTTPTransport[Any] = HTTPTransport(timeout=LIMIT, num_chunks=0)
    hook, state = Hook.of(transport), make_state(nbytes)
    tensors = list(state["user"]["default"].values())
    staged, hook_s, copied = [], [], []
    for _ in range(max(tries, 9)):
        staged.append(timed(transport.send_checkpoint, [1], 1, state, LIMIT))
        hook_s.append(hook.last_s("staging"))
        copied.append(timed(lambda: [tensor.clone() for tensor in tensors]))
        transport.disallow_checkpoint()
    transport.send_checkpoint([1], 1, state, LIMIT)
    server = socket.create_server(("127.0.0.1", 0))
    views = [memoryview(tensor.numpy()).cast("B") for tensor in tensors]
    threading.Thread(target=_send_plainly, args=(server, views), daemon=True).start()
    port = transport.address().rpartition(":")[2]
    address = f"http://127.0.0.1:{port}"
    pipe.send({"metadata": address, "port": server.getsockname()[1], "staged_s": staged,
               "told_s": hook_s, "copied_s": copied})  # fmt: skip
    pipe.recv()


def _send_plainly(server: socket.socket, views: list[memoryview]) -> None:
    while True:
        peer, _ = server.accept()
        with peer:
            for view in views:
                peer.sendall(view)


def healer(pipe: Any, nbytes: int, tries: int, where: Row) -> None:
    """Loads again and again; by turns the same bytes come through a plain socket."""
    _begin()
    transport: HTTPTransport[Any] = HTTPTransport(timeout=LIMIT, num_chunks=0)
    hook, checkpoint = Hook.of(transport), {}
    room = memoryview(bytearray(nbytes))
    loaded, hook_s, plain = [], [], []
    for _ in range(tries + 1):
        plain.append(timed(_receive_plainly, where["port"], room))

        def load() -> None:
            checkpoint.update(transport.recv_checkpoint(0, where["metadata"], 1, LIMIT))

        checkpoint.clear()
        loaded.append(timed(load))
        hook_s.append(hook.last_s("load"))
    last = checkpoint["user"]["default"][f"w{TENSORS - 1}"]
    whole = bool((last == TENSORS - 1).all()) and last.numel() == nbytes // TENSORS // 4
    nbytes_told = hook.reader.times()["load"].last_bytes
    pipe.send({"loaded_s": loaded[1:], "told_s": hook_s[1:], "plain_s": plain[1:], "whole": whole,
               "told_bytes": nbytes_told})  # fmt: skip


def _receive_plainly(port: int, room: memoryview) -> None:
    with socket.create_connection(("127.0.0.1", port)) as peer:
        at = 0
        while at < len(room):
            count = peer.recv_into(room[at:])
            if not count:
                raise ConnectionError("the donor is gone")
            at += count


def measure(nbytes: int, tries: int) -> list[Row]:
    """A row of staging and a row of loading; the first try of each load warms up."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    giving = fork.Process(target=donor, args=(theirs, nbytes, tries), daemon=True)
    giving.start()
    served = _answer(ours, giving)
    mine, there = fork.Pipe()
    taking = fork.Process(target=healer, args=(there, nbytes, tries, served), daemon=True)
    taking.start()
    seen = _answer(mine, taking)
    ours.send("over")
    for process in (taking, giving):
        process.join(30)
        process.kill()
    if not seen["whole"]:
        raise RuntimeError("what was loaded is not what was sent")
    return [
        {"what": "staging", "bytes": nbytes, "took_s": served["staged_s"],
         "told_s": served["told_s"], "yard": "copy in memory", "yard_s": served["copied_s"]},
        {"what": "load", "bytes": nbytes, "took_s": seen["loaded_s"], "told_s": seen["told_s"],
         "told_bytes": seen["told_bytes"], "yard": "plain socket", "yard_s": seen["plain_s"]},
    ]  # fmt: skip


def _answer(pipe: Any, process: Any) -> Row:
    deadline_s = time.monotonic() + LIMIT.total_seconds()
    while not pipe.poll(0.1):
        if not process.is_alive() and not pipe.poll(0):
            raise RuntimeError(f"a process ended with {process.exitcode}")
        if time.monotonic() > deadline_s:
            process.kill()
            raise TimeoutError("a process does not answer")
    answer: Row = pipe.recv()
    return answer
