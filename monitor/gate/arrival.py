"""The first bytes of a client: HTTP/2 goes through the gate, anything else straight through.

The Lighthouse serves its page, its status and its kill button on the same port by HTTP/1.1; such
a connection is joined to one of its own, byte for byte, with each side's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Final, cast

from monitor.gate import frames
from monitor.gate.group_side import GroupSide

if TYPE_CHECKING:
    from monitor.gate.gate import GateCore
    from monitor.gate.keeping import Keeping

CLIENTS_MAX: Final = 16_384
"""Connections at once; each costs two file descriptors and about 10 KB."""
SPLICED_MAX: Final = 256
"""Of these, browsers and scrapers."""
FIRST_S: Final = 30.0
"""Within this time a client has to say what it speaks."""
_AWAY: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"lightkeeper gate: the Lighthouse does not answer\n"
)


class Arrivals:
    """Counts who is here."""

    def __init__(self, core: GateCore) -> None:
        self.core = core
        self.keeping: Keeping | None = None
        self.open = 0
        self.spliced = 0

    def came(self, transport: asyncio.Transport) -> int:
        """A client has connected; the key by which the keeper knows it."""
        self.open += 1
        return 0 if self.keeping is None else self.keeping.client(transport)

    def left(self, key: int) -> None:
        """It is gone."""
        self.open -= 1
        if self.keeping is not None:
            self.keeping.left(key)

    def protocol(self) -> asyncio.Protocol:
        """Of a new client."""
        return Arrival(self)


class Arrival(asyncio.Protocol):
    """A client that has not said yet what it speaks."""

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._first = b""
        self._key = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for its first bytes, a while."""
        self._transport = made = cast(asyncio.Transport, transport)
        self._key = self._arrivals.came(made)
        if self._arrivals.open > CLIENTS_MAX:
            made.abort()
            return
        keep_alive(made)
        self._timer = asyncio.get_running_loop().call_later(FIRST_S, made.abort)

    def data_received(self, data: bytes) -> None:
        """Enough to tell, or not yet."""
        if self._transport is None:
            return
        self._first += data
        if len(self._first) < len(frames.PREFACE) and frames.PREFACE.startswith(self._first):
            return
        self._stop()
        transport, self._transport = self._transport, None
        made: GroupSide | Splice
        if self._first.startswith(frames.PREFACE):
            made = GroupSide(self._arrivals.core, self._arrivals, self._key)
            rest = self._first[len(frames.PREFACE) :]
        else:
            made, rest = Splice(self._arrivals, self._key), self._first
        transport.set_protocol(made)
        made.connection_made(transport)
        made.data_received(rest)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """It left without a word."""
        del exc
        self._stop()
        self._arrivals.left(self._key)


class Splice(asyncio.Protocol):
    """One end of two joined connections."""

    def __init__(self, arrivals: Arrivals | None, key: int = 0) -> None:
        """`arrivals`: of the client's end; None: the Lighthouse's."""
        self._key = key
        self._arrivals = arrivals
        self._other: Splice | None = None
        self._early = b""
        self._joining: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client's end looks for the other one."""
        self.transport = cast(asyncio.Transport, transport)
        if self._arrivals is None:
            return
        self._arrivals.spliced += 1
        if self._arrivals.spliced > SPLICED_MAX:
            self.transport.abort()
            return
        self.transport.pause_reading()
        lighthouse = self._arrivals.core.lighthouse
        self._joining = asyncio.get_running_loop().create_task(
            self._join(self.transport, lighthouse.host, lighthouse.port)
        )

    async def _join(self, client: asyncio.Transport, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5.0):
                transport, other = await loop.create_connection(lambda: Splice(None), host, port)
        except OSError:
            client.write(_AWAY)
            client.close()
            return
        if client.is_closing():
            transport.abort()
            return
        self._other, other._other = other, self
        transport.write(self._early)
        self._early = b""
        client.resume_reading()

    def data_received(self, data: bytes) -> None:
        """To the other end."""
        if self._other is None:
            self._early += data
        elif self._other.transport is not None:
            self._other.transport.write(data)

    def eof_received(self) -> bool:
        """One end has said all; the other may still answer."""
        other = None if self._other is None else self._other.transport
        if other is not None and other.can_write_eof():
            with contextlib.suppress(OSError):
                other.write_eof()
        return True

    def pause_writing(self) -> None:
        """Where one end reads slowly, the other is read slowly."""
        if self._other is not None and self._other.transport is not None:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        """It reads again."""
        other = None if self._other is None else self._other.transport
        if other is not None and not other.is_closing():
            other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """One end is gone: so is the other, once it has what was sent."""
        del exc
        if self._arrivals is not None:
            self._arrivals.left(self._key)
            self._arrivals.spliced -= 1
        if self._joining is not None:
            self._joining.cancel()
        if self._other is not None and self._other.transport is not None:
            self._other.transport.close()


def keep_alive(transport: asyncio.Transport) -> None:
    """Notice within a minute that a client's host is gone: TCP itself would wait for ever."""
    found = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
