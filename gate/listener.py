"""The sockets that groups connect to, and which protocol a new client speaks.

Its first bytes decide: HTTP/2 goes through the proxy, anything else straight through. The
Lighthouse serves its page, status and kill button on the same port by HTTP/1.1; each such client
is joined to its own connection to the Lighthouse, byte for byte, at each side's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from dataclasses import dataclass, field
from typing import Any, Final, cast

from lightkeeper.gate import http2
from lightkeeper.gate.proxy import CLIENTS_MAX, Downstream, Proxy
from lightkeeper.gate.upstream import keep_alive
from lightkeeper.worker_server.wire import GATE_ANSWER, PATH_GATE

TUNNELS_MAX: Final = 256
"""Most clients that do not speak HTTP/2: browsers and scrapers."""
FIRST_S: Final = 30.0
"""Within this time a client must send its first bytes."""
BACKLOG: Final = 4096
"""After a gate restart all groups dial at once."""
_CONNECT_S: Final = 5.0
_UNREAD: Final = 64 * 1024
"""Bytes of a client that the kernel keeps for us."""
_OTHER_FILES: Final = 384
"""Files for browsers, for clients of the admin port, and for ourselves."""
_AWAY: Final = (
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"lightkeeper gate: the Lighthouse does not answer\n"
)
_HERE: Final = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n" + GATE_ANSWER
)


@dataclass(frozen=True, slots=True)
class GateOptions:
    lighthouse: tuple[str, int]
    bind: tuple[str, int]
    admin: tuple[str, int]
    take_over: tuple[str, int]
    """Admin address of the gate before, if there is one."""
    token: str | None = field(default=None, repr=False)
    grace_s: float = 0.0


# -- sockets ---------------------------------------------------------------------------------------


def resolve(host: str, port: int) -> tuple[int, Any]:
    """Family and socket address of a host's name or number; IPv4 if it has both.

    Raises:
        OSError: the name is unknown.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(addresses, key=lambda each: each[0] != socket.AF_INET)
    return family, address


def listen(host: str, port: int, *, shared: bool) -> socket.socket:
    """A listening socket; `shared`: beside that of the earlier gate, of the same user.

    Raises:
        OSError: the address is in use or not ours.
    """
    family, address = resolve(host, port)
    if not shared:
        with socket.socket(family) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # for the gate after us
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def raise_file_limit() -> int:
    """Allow as many open files as we may need; returns the room for clients, two files each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2 * CLIENTS_MAX + _OTHER_FILES
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return (limit - min(_OTHER_FILES, limit // 2)) // 2


# -- clients that come -------------------------------------------------------------------------


class NewClient(asyncio.Protocol):
    """A client whose protocol is not known yet."""

    _timer: asyncio.TimerHandle

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._first = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait `FIRST_S` for its first bytes."""
        self._transport = cast(asyncio.Transport, transport)
        self._proxy.came(self._transport)
        keep_alive(self._transport, idle_s=20, interval_s=10, deaf_ms=60_000)
        self._timer = asyncio.get_running_loop().call_later(FIRST_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._first += data
        if len(self._first) < len(http2.PREFACE) and http2.PREFACE.startswith(self._first):
            return
        self._timer.cancel()
        transport, self._transport = self._transport, None
        if self._first.startswith(http2.PREFACE):
            client = Downstream(self._proxy)
            transport.set_protocol(client)
            client.connection_made(transport)
            client.data_received(self._first[len(http2.PREFACE) :])
        elif self._first.startswith(f"GET {PATH_GATE} ".encode()):
            transport.write(_HERE)
            transport.close()
            self._proxy.left(transport)
        else:
            tunnel(self._proxy, transport, self._first)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._timer.cancel()
        if self._transport is not None:
            self._proxy.left(self._transport)


def tunnel(proxy: Proxy, transport: asyncio.Transport, first: bytes) -> None:
    """Join a client that does not speak HTTP/2 to its own connection to the Lighthouse."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport.set_protocol(protocol)
    protocol.connection_made(transport)
    reader.feed_data(first)
    client = asyncio.StreamWriter(transport, protocol, reader, loop)

    async def joined() -> None:
        proxy.tunnels += 1
        try:
            if proxy.tunnels > TUNNELS_MAX:
                transport.abort()
            else:
                await _join(proxy, reader, client)
        finally:
            proxy.tunnels -= 1
            transport.close()
            proxy.left(transport)

    task = loop.create_task(joined())
    proxy.tasks.add(task)
    task.add_done_callback(proxy.tasks.discard)


async def _join(proxy: Proxy, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
    lighthouse = proxy.lighthouse
    try:
        async with asyncio.timeout(_CONNECT_S):
            answers, server = await asyncio.open_connection(lighthouse.host, lighthouse.port)
    except OSError:
        client.write(_AWAY)
        return
    asking = asyncio.get_running_loop().create_task(_copy(reader, server))
    try:
        await _copy(answers, client)  # when this ends, nothing is left to answer
    finally:
        asking.cancel()
        server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the reader ends, no faster than the writer's side reads."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_UNREAD):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
