"""A client of a worker that died: what it asked is answered, and it is told to connect anew.

Theory of operation. The new worker has the socket, the quorum requests that were under way on
it, and whatever the client sent since, which the kernel kept. It does not know which heartbeats
its predecessor had read; a manager waits for the answer to a heartbeat without a limit. So it
says GOAWAY: the client ends what it began after the last quorum request that is known, and
connects again; what it began earlier and is no quorum request is reset.
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
from monitor.gate.stream import Kind, Stage, Stream

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore

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
        self._inheriting = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up what was asked, read on, and say goodbye."""
        Connection.connection_made(self, transport)
        self._arrivals.open += 1
        self._core.clients.add(self)
        for asked in self._asked:
            self._open_window, self._initial = asked.connection_window, asked.initial_window
            call = Call(asked.path, asked.timeout_s, asked.block)
            made = Stream(asked.number, call, Kind.QUORUM, asked.began_s, ended=True)
            made.data += asked.data
            self.streams[asked.number] = made
            self._kept_bytes += len(asked.data)
            self._last = max(self._last, asked.number)
        self.data_received(self._unread)
        self._inheriting = False
        if self.closed:
            return
        last = max(self.streams, default=0)
        self.write(frames.goaway(last, frames.NO_ERROR, "the gate was started again"))
        for number in range(max(1, last - 2 * _EARLIER), last, 2):
            if number not in self.streams:
                self.write(frames.reset(number, frames.CANCEL))
        self._leaving = True
        for stream in list(self.streams.values()):
            if stream.stage is Stage.READING and stream.ended:
                self._judge(stream)
        self._core.flush()
        if not self.streams:
            self.close()

    def on_headers(self, stream: int, block: bytes, *, end: bool) -> None:
        """Only quorum requests that came before the goodbye are begun."""
        if stream in self.streams or (
            self._inheriting and self._blocks.read(block).path == QUORUM_PATH
        ):
            super().on_headers(stream, block, end=end)


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
