"""GET over plain http from an address, thousands a second, on kept connections: no more than that.

A monitor of 10,000 ranks asks 625 hosts a second. aiohttp takes 160 us of CPU a request, this 45
(docs/scale.md). Names that have to be resolved, https and whatever is not a plain GET stay with
aiohttp. httptools is the parser of uvicorn and Node.
"""

from __future__ import annotations

import asyncio
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

KEPT_S: Final = 30.0
"""Idle connections are kept this long: longer than any sensible tick."""
_LOOK_EVERY_S: Final = 10.0
_OF_FILES: Final = 0.75
"""Of all files that this process may open, so many are connections that are kept."""
_HEAD_MAX_BYTES: Final = 32 * 1024
_PLAIN: Final = re.compile(r"[\x21-\x7e]*")
"""What may stand in a request as it is."""


class BadAnswerError(Exception):
    """What came is no answer, or too long a one; one line."""


class _ClosedError(Exception):
    """The connection ended before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a URL leads."""

    address: str
    port: int
    request: bytes
    """Its first lines, up to the headers that vary."""


@lru_cache(maxsize=1 << 16)
def place_of(url: str) -> Place | None:
    """None: not plain http to an address, or nothing that can be written as it stands."""
    try:
        parts = urlsplit(url)
        address, port = ip_address(parts.hostname or ""), parts.port or 80
    except ValueError:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme != "http" or "@" in parts.netloc or not _PLAIN.fullmatch(path):
        return None
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    same = "Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: lightkeeper\r\n"
    return Place(str(address), port, (head + same).encode())


@dataclass(frozen=True, slots=True)
class Asking:
    """One question."""

    place: Place
    headers: bytes
    """Those that vary, each with its CRLF."""
    end: float
    """Moment of the event loop by which the whole answer must be here."""
    max_bytes: int
    meter: Callable[[int], None] | None = None
    """Told of every piece of the body; what it raises ends the request."""


@dataclass(slots=True)
class Reply:
    """What came back."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name; the last of each."""
    body: bytearray = field(default_factory=bytearray)


class _Connection(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self, drop: Callable[[_Connection], None]) -> None:
        self._drop = drop
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[Reply] | None = None
        self._received = 0
        self._lasts = False
        """Whether the other side keeps it open after this answer."""
        self.idle_since_s = 0.0

    async def ask(self, asking: Asking) -> Reply:
        """The answer.

        Raises:
            TimeoutError, BadAnswerError, _ClosedError: none; the connection is of no use any more.
        """
        if self._transport is None or self._transport.is_closing():
            raise _ClosedError
        loop = asyncio.get_running_loop()
        self._asked, self._reply, self._complete = loop.create_future(), Reply(), False
        self._parser, self._received, self._lasts = HttpResponseParser(self), 0, False
        self._max_bytes, self._meter = asking.max_bytes, asking.meter
        alarm = loop.call_at(asking.end, self._fail, TimeoutError())
        self._transport.write(asking.place.request + asking.headers + b"\r\n")
        try:
            return await self._asked
        except BaseException:
            self.abort()
            raise
        finally:
            alarm.cancel()
            self._asked = None

    @property
    def reusable(self) -> bool:
        """Whether the next question may follow."""
        going = self._transport is not None and not self._transport.is_closing()
        return going and self._lasts

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    def _fail(self, exc: Exception) -> None:
        self._lasts = False
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(exc)

    # -- called by asyncio --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._asked is None or self._asked.done():  # nobody asked for this
            self.abort()
            return
        self._received += len(data)
        if self._received > self._max_bytes + _HEAD_MAX_BYTES:
            self._fail(BadAnswerError(f"body over {self._max_bytes} bytes"))
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._fail(BadAnswerError("it wants to speak another protocol"))
        except HttpParserError as exc:
            inner = exc.__context__  # what a callback raised
            self._fail(inner if isinstance(inner, Exception) else BadAnswerError(f"no HTTP: {exc}"))

    def eof_received(self) -> None:
        """The end of a body that tells no length."""
        headers = self._reply.headers if self._asked is not None else {}
        told = headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._asked is not None and self._reply.status and not told:
            self.on_message_complete()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._drop(self)
        ended = BadAnswerError("the connection ended in the answer")
        self._fail(ended if self._received else _ClosedError())

    # -- called by the parser -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise BadAnswerError("two answers to one question")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        if self._reply.status < 200:
            raise BadAnswerError(f"status {self._reply.status}")

    def on_body(self, piece: bytes) -> None:
        self._reply.body += piece
        if self._meter is not None:
            self._meter(len(piece))
        if len(self._reply.body) > self._max_bytes:
            raise BadAnswerError(f"body over {self._max_bytes} bytes")

    def on_message_complete(self) -> None:
        self._complete, self._lasts = True, bool(self._parser.should_keep_alive())
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(self._reply)


class KeptConnections:
    """To every address that was asked. Belongs to one event loop."""

    def __init__(self) -> None:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = sys.maxsize if most == resource.RLIM_INFINITY else int(_OF_FILES * most)
        self._next_look_s = 0.0
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def get(self, asking: Asking) -> Reply:
        """The answer.

        Raises:
            TimeoutError: none that is whole in its time.
            BadAnswerError: what came is none, or its body has more than `max_bytes`.
            OSError: nobody listens there.
        """
        place = asking.place
        while (kept := self._kept(place)) is not None:
            try:
                return await self._ask(kept, asking)
            except _ClosedError:  # by the other side, while it was idle
                continue
        async with asyncio.timeout_at(asking.end):
            _, fresh = await asyncio.get_running_loop().create_connection(
                self._made, place.address, place.port
            )
        try:
            return await self._ask(fresh, asking)
        except _ClosedError:
            raise BadAnswerError("it hung up without an answer") from None

    def close(self) -> None:
        """End all of them."""
        for one in tuple(self._open):
            one.abort()

    def _made(self) -> _Connection:
        made = _Connection(self._open.discard)
        self._open.add(made)
        return made

    def _kept(self, place: Place) -> _Connection | None:
        idle = self._idle.get((place.address, place.port))
        return idle.pop() if idle else None

    async def _ask(self, one: _Connection, asking: Asking) -> Reply:
        reply, place = await one.ask(asking), asking.place
        if not one.reusable or len(self._open) > self._most:
            one.abort()
            return reply
        one.idle_since_s = now_s = time.monotonic()
        self._idle.setdefault((place.address, place.port), []).append(one)
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._drop_old(now_s - KEPT_S)
        return reply

    def _drop_old(self, until_s: float) -> None:
        """End those that nobody has used since then: the newest of a place is asked first."""
        for place, idle in tuple(self._idle.items()):
            kept = [one for one in idle if one.idle_since_s >= until_s]
            for one in idle[: len(idle) - len(kept)]:
                one.abort()
            if kept:
                self._idle[place] = kept
            else:
                del self._idle[place]
