"""Keeps the gate's sockets and open questions, so that a worker that dies is nobody's loss.

Theory of operation. TorchFT asks for a quorum once; when the connection breaks before the answer
every rank waits out its timeout and exits, whatever TORCHFT_QUORUM_RETRIES says. So the process
that reads and writes (the worker) is not the one that holds the connections: this one holds a
duplicate of each socket and the bytes of each quorum request under way, reads nothing from the
network and so has little to die of. When the worker dies or falls silent, a spare one that has
already started gets all of it. When the keeper itself dies, the worker serves on and hands
everything to the next `lightkeeper gate` on the same address (`orphan`, `succession`). Only both at
once lose a question.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from monitor.gate import bequest
from monitor.gate.bequest import Page
from monitor.gate.serve import Options, raise_file_limit
from monitor.gate.spare import Spare

log = logging.getLogger("lightkeeper.gate")

SILENT_S: Final = 10.0
"""A worker says every second that it is alive; one that is stopped or stuck is replaced."""
READY_S: Final = 30.0
_SHORT_S: Final = 0.5
"""A worker that lived no longer is followed by a pause."""
_GRACE_S: Final = 5.0


@dataclass
class Estate:
    """What outlives a worker."""

    listeners: list[socket.socket]
    page: Page
    denied: bytes | None = None
    numbers: bytes | None = None
    """How far the quorum ids are."""
    clients: dict[bytes, int] = field(default_factory=dict)
    """Key to a duplicate of the socket."""
    asked: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    """Key to number to the request."""

    def note(self, data: bytes, files: list[int]) -> None:
        """What a worker said."""
        kind, key, body = data[:1], data[1:9], data[9:]
        if kind == bequest.CLIENT and files:
            self._forget(key)
            self.clients[key] = files.pop()
        elif kind == bequest.ASKED:
            number = int(json.loads(body)[0]).to_bytes(4, "big")
            self.asked.setdefault(key, {})[number] = body
        elif kind == bequest.OVER:
            self.asked.get(key, {}).pop(body, None)
        elif kind == bequest.LEFT:
            self._forget(key)
        elif kind == bequest.DENIED:
            self.denied = data[1:] or None
        elif kind == bequest.NUMBERS:
            self.numbers = data[1:]
        for file in files:
            os.close(file)

    def _forget(self, key: bytes) -> None:
        self.asked.pop(key, None)
        if (file := self.clients.pop(key, None)) is not None:
            os.close(file)

    def close(self) -> None:
        """Nothing of it is ours."""
        for listener in self.listeners:
            listener.close()
        for file in [*self.clients.values(), self.page.file]:
            os.close(file)

    def hand_over(self, channel: socket.socket) -> None:
        """To a worker."""
        files = [listener.fileno() for listener in self.listeners]
        bequest.send(channel, bequest.LISTENERS, *files, self.page.file)
        if self.denied is not None:
            bequest.send(channel, bequest.DENIED + self.denied)
        if self.numbers is not None:
            bequest.send(channel, bequest.NUMBERS + self.numbers)
        for key, file in self.clients.items():
            bequest.send(channel, bequest.CLIENT + key, file)
            for body in self.asked.get(key, {}).values():
                bequest.send(channel, bequest.ASKED + key + body)
        bequest.send(channel, bequest.GO)


class Worker:
    """One worker process, waiting or at work."""

    def __init__(self) -> None:
        self.channel, theirs = bequest.pair()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "monitor.gate.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.began_s = self.heard_s = time.monotonic()

    def ready(self) -> Worker:
        """Wait until it has imported everything."""
        self.channel.settimeout(READY_S)
        with contextlib.suppress(OSError):
            bequest.receive(self.channel)
        return self

    def gone(self) -> bool:
        """Whether it has ended; then nothing of it is left."""
        if self.process.poll() is None:
            return False
        self.channel.close()
        return True

    def end(self, number: signal.Signals) -> None:
        """Signal it, and wait; kill it when it takes too long."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
        try:
            self.process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.channel.close()


class Keeper:
    """Holds the estate, and sees that somebody works."""

    def __init__(self, options: Options, estate: Estate, first: Worker, *, verbose: bool) -> None:
        self._options = options
        self._estate = estate
        self._first = first
        self._verbose = verbose
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until SIGTERM or SIGINT."""
        raise_file_limit()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        wake, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        worker = self._employ(self._first)
        spare = Spare(Worker)
        try:
            while not self._stopping.is_set():
                if self._watch(worker, spare, wake):
                    continue
                worker.end(signal.SIGKILL)
                if self._stopping.is_set():
                    break
                if time.monotonic() - worker.began_s < _SHORT_S:
                    time.sleep(_SHORT_S)
                log.warning("the worker (pid %d) is gone: another takes over", worker.process.pid)
                worker = self._employ(spare.take())
        finally:
            signal.set_wakeup_fd(-1)
            worker.end(signal.SIGTERM)
            if spare.there is not None:
                spare.there.end(signal.SIGKILL)

    def _stop(self, number: int, frame: object) -> None:
        del number, frame
        self._stopping.set()

    def _employ(self, worker: Worker) -> Worker:
        worker.channel.settimeout(_GRACE_S)
        host, port = self._options.lighthouse
        options = {
            "host": host,
            "port": port,
            "state": None if self._options.state is None else str(self._options.state),
            "token": self._options.token,
            "hold_s": self._options.hold_s,
            "verbose": self._verbose,
        }
        bequest.send(worker.channel, bequest.OPTIONS + json.dumps(options).encode())
        self._estate.hand_over(worker.channel)
        worker.began_s = worker.heard_s = time.monotonic()
        return worker

    def _watch(self, worker: Worker, spare: Spare[Worker], wake: socket.socket) -> bool:
        """Note what the worker says; False when it is gone, or as good as gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(worker.channel, selectors.EVENT_READ)
            selector.register(wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                ready = selector.select(timeout=1.0)
                spare.look()
                if any(key.fileobj is worker.channel for key, _ in ready):
                    if not self._read(worker):
                        return False
                elif time.monotonic() - worker.heard_s > SILENT_S:
                    log.warning("the worker (pid %d) is silent", worker.process.pid)
                    return False
        return True

    def _read(self, worker: Worker) -> bool:
        try:
            data, files = bequest.receive(worker.channel)
        except OSError:
            return False
        if not data:
            return False
        worker.heard_s = time.monotonic()
        self._estate.note(data, files)
        return True
