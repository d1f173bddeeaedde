"""A client of a worker that died: its connection goes on, and nothing that it asked is lost.

Theory of operation. The new worker has the socket, the quorum requests that were under way on
it, the number of the last call that its predecessor had read, and whatever the client sent
since, which the kernel kept. Quorum requests are asked again; other calls up to that number are
reset, for a manager waits for the answer to a heartbeat without a limit. Headers can be read
without what came before, because clients were told to keep no table. No GOAWAY: TorchFT's client
cancels a request that it begins while one arrives (seen in 1 of 5 restarts), and never asks again.
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
from monitor.gate.headers import Call
from monitor.gate.stream import Kind, Stream

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore

_EARLIER: Final = 40
"""Stream numbers before the quorum request that may still wait: a manager has one heartbeat
under way at a time."""
_UNREAD_MAX: Final = 1024 * 1024


class Heir(GroupSide):
    """A connection that another worker began."""

    def __init__(
        self, core: GateCore, arrivals: Arrivals, key: int, asked: Sequence[Asked], unread: bytes
    ) -> None:
        super().__init__(core, arrivals, key)
        self._asked = asked
        self._unread = unread

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take up what was asked, reset the rest, and read on."""
        Connection.connection_made(self, transport)
        self._arrivals.open += 1
        self._core.clients.add(self)
        keeping = self._arrivals.keeping
        if keeping is not None:
            self._last, self._open_window, self._initial = keeping.page.read(self.key)
        asked = {each.number: each for each in self._asked}
        self._last = max([self._last, *asked])
        self.write(frames.window_update(0, frames.WINDOW_DEFAULT // 2))  # what was not credited
        for number in range(max(1, self._last - 2 * _EARLIER | 1), self._last + 1, 2):
            if number not in asked:
                self.write(frames.reset(number, frames.CANCEL))
        for each in asked.values():
            call = Call(each.path, each.timeout_s, each.block)
            made = Stream(each.number, call, Kind.QUORUM, each.began_s, ended=True)
            made.data += each.data
            self.streams[each.number] = made
            self._kept_bytes += len(each.data)
            self._judge(made)
        self.data_received(self._unread)


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
