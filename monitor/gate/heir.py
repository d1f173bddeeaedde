"""A client of a worker that died: what it asked is answered, and it is told to connect anew.

Theory of operation. The new worker has the socket, the quorum requests that were under way on
it, and whatever the client sent since, which the kernel kept. It does not know which heartbeats
its predecessor had read; a manager waits for the answer to a heartbeat without a limit. So the
client is sent away in the two steps of RFC 9113, 6.8: a GOAWAY that ends nothing and a PING; once
that is acknowledged every quorum request that was on its way has come in, and a second GOAWAY
ends what was begun after the last of them. What was begun earlier is reset, and dialled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from monitor.gate import frames
from monitor.gate.arrival import Arrival, Arrivals
from monitor.gate.bequest import Asked
from monitor.gate.connection import Connection
from monitor.gate.group_side import GroupSide
from monitor.gate.headers import QUORUM_PATH, Call
from monitor.gate.stream import Kind, Stream

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore

_GOODBYE: Final = b"lk leave"
_EARLIER: Final = 40
"""Stream numbers before the quorum request that may still wait: a manager has one heartbeat
under way at a time."""
_UNREAD_MAX: Final = 1024 * 1024


class Heir(GroupSide):
    """A connection that is brought to its end."""

    def __init__(
        self, core: GateCore, arrivals: Arrivals, key: int, asked: Sequence[Asked], unread: bytes
    ) -> None:
        super().__init__(core, arrivals, key)
        self._asked = asked
        self._unread = unread
        self._numbers: set[int] = set()  # of quorum requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up what was asked, read on, and begin to say goodbye."""
        Connection.connection_made(self, transport)
        self._arrivals.open += 1
        self._core.clients.add(self)
        for asked in self._asked:
            self._open_window, self._initial = asked.connection_window, asked.initial_window
            call = Call(asked.path, asked.timeout_s, asked.block)
            made = Stream(asked.number, call, Kind.QUORUM, asked.began_s, ended=True)
            made.data += asked.data
            self.streams[asked.number] = made
            self._numbers.add(asked.number)
            self._kept_bytes += len(asked.data)
            self._last = max(self._last, asked.number)
            self._judge(made)
        self.write(frames.goaway(frames.WINDOW_MAX, frames.NO_ERROR, "the gate was started again"))
        self.write(frames.frame(frames.PING, 0, 0, _GOODBYE))
        self.data_received(self._unread)

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """Quorum requests are begun; the rest is ended by the second goodbye."""
        if self._leaving:
            return
        if stream in self.streams:
            super().on_headers(stream, block, end=end)
        elif stream > self._last and self._blocks.read(block).path == QUORUM_PATH:
            self._numbers.add(stream)
            super().on_headers(stream, block, end=end)

    def _ping(self, flags: int, payload: bytes) -> None:
        super()._ping(flags, payload)
        if flags & frames.ACK and payload == _GOODBYE and not self._leaving:
            self._say_goodbye()

    def _say_goodbye(self) -> None:
        """All that the client began before it knew has come in."""
        last = max(self._numbers, default=0)
        self.write(frames.goaway(last, frames.NO_ERROR, "the gate was started again"))
        for number in range(max(1, last - 2 * _EARLIER), last, 2):
            if number not in self._numbers:
                self.write(frames.reset(number, frames.CANCEL))
        self._leaving = True
        self._core.flush()
        if not self.streams and not self._queued:
            self.close()


async def inherit(
    core: GateCore, arrivals: Arrivals, key: int, found: socket.socket, asked: Sequence[Asked]
) -> None:
    """Go on with a client of a worker that died."""
    loop = asyncio.get_running_loop()
    found.setblocking(False)
    unread = b""
    with contextlib.suppress(OSError):
        while len(unread) < _UNREAD_MAX and (more := found.recv(65_536)):
            unread += more
    fresh = not asked and unread.startswith(frames.PREFACE[: len(unread) or 1])
    with contextlib.suppress(OSError):
        if not fresh:
            made = Heir(core, arrivals, key, asked, unread)
            await loop.connect_accepted_socket(lambda: made, found)
            return
        _, arrival = await loop.connect_accepted_socket(lambda: Arrival(arrivals), found)
        arrival.data_received(unread)
