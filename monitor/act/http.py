"""Every HTTP request of the monitor, on one event loop in a thread of its own.

A request ends when its deadline says so, whatever the other side does: a peer that drips one
byte a second, sends forever, redirects or talks nonsense costs its own request and nothing
else. Callers are ordinary threads; they get a `Future`, or block in `Fetcher.ask`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import re
import resource
import ssl
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Set
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlsplit

import aiohttp
from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from lightkeeper.monitor.model.names import GroupName, one_line
from lightkeeper.monitor.model.observation import Failure

NO_GROUP: Final = GroupName("")
"""The gate, or a WorkerServer not identified yet: it is asked with the monitor's own token."""


class Tokens:
    """The API tokens: `own` may do everything (None: not configured), `groups` has one a group."""

    def __init__(
        self, own: str | None = None, groups: Mapping[GroupName, str] | None = None
    ) -> None:
        self.own = own
        self._of = dict(groups or {})
        self._groups: defaultdict[bytes, set[GroupName]] = defaultdict(set)
        for group, token in self._of.items():  # a hash lookup leaks no timing of the match
            self._groups[sha256(token.encode()).digest()].add(group)

    def of(self, group: GroupName) -> str | None:
        return self._of.get(group, self.own)

    def is_own(self, token: bytes) -> bool:
        return self.own is not None and hmac.compare_digest(token, self.own.encode())

    def groups(self, token: bytes) -> Set[GroupName]:
        """Groups whose ranks may register with this token."""
        return self._groups.get(sha256(token).digest(), frozenset())


T = TypeVar("T")

_RESOLVER_THREADS: Final = 32
"""getaddrinfo cannot be cancelled: with so many threads, a dead name server blocks no others."""
_UNTYPED: Final = "application/octet-stream"
_TOLD: Final = (b"content-type", b"retry-after")
_ERRNOS: Final = {
    **dict.fromkeys((errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH), Failure.TIMEOUT),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL),
        Failure.UNASKED,
    ),
}
"""Why a connection failed: nothing answered in time, or this monitor lacks files, memory or ports.
Any other error means that nobody listens there."""


class FetchError(Exception):
    """No usable answer; `failure` is the kind."""

    def __init__(self, failure: Failure, detail: str, *, too_large: bool = False) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.too_large = too_large


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str
    seconds: float
    """From asking to the last byte."""
    retry_after_s: float | None = None
    """The server's Retry-After, if it is in seconds."""

    @property
    def summary(self) -> str:
        text = one_line(self.body.decode("utf-8", "replace"), 160)
        return f"answered {self.status}: {text}" if text else f"answered {self.status}"


@dataclass(frozen=True, slots=True)
class Question:
    url: str = field(repr=False)
    """May hold a secret, as that of a chat's webhook does."""
    timeout_s: float
    max_bytes: int
    method: str = "GET"
    json: Mapping[str, Any] | None = None
    body: bytes | None = None
    """Sent unchanged, instead of `json`."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    group: GroupName | None = None
    """The replica group of the WorkerServer that is asked. Its token is sent to this URL only, as
    redirects are not followed. None: no token is sent."""
    meter: Callable[[int], None] | None = None
    """Called with each piece of the body, on the loop; raises `FetchError` to end the request."""


class CaError(Exception):
    """The file of certificate authorities cannot be used; the message is one line for a person."""


def trust(ca_file: Path) -> ssl.SSLContext:
    """Trust exactly the authorities of this file (PEM) for https.

    Raises:
        CaError: it cannot be read or holds none.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ValueError) as exc:
        why = exc.strerror if isinstance(exc, FileNotFoundError) else "no certificates in PEM"
        raise CaError(f"cannot use --ca-file {ca_file}: {why}") from exc


def trust_also(ca_file: Path) -> ssl.SSLContext:
    """Trust the authorities of this file and those that the system trusts.

    Raises:
        CaError: it cannot be read or holds none.
    """
    trust(ca_file)
    context = ssl.create_default_context()
    context.load_verify_locations(cafile=ca_file)
    return context


# -- kept connections --------------------------------------------------------------------------
# A client for one purpose: thousands of GETs a second, over plain http to IP addresses.
#
# A monitor of 10,000 ranks asks 625 hosts a second. aiohttp takes 160 us of CPU a request, this
# client 45 (docs/scale.md). Host names, https and anything but a plain GET stay with aiohttp.
# httptools is the parser of uvicorn and Node.

KEPT_S: Final = 30.0
"""Idle connections are kept this long: longer than any sensible tick."""
_LOOK_EVERY_S: Final = 10.0
_OF_FILES: Final = 0.75
_OTHER_FILES: Final = 320
"""At most `_OF_FILES` of the open-file limit, less `_OTHER_FILES`, goes to connections. The rest is
for the web server's clients, 256 questions at once, and the store, the journal and logs."""
_HEAD_MAX_BYTES: Final = 32 * 1024
_PLAIN: Final = re.compile(r"[\x21-\x7e]*")
"""A path that may go into a request unchanged."""


def _too_large(max_bytes: int) -> FetchError:
    return FetchError(Failure.GARBAGE, f"body over {max_bytes} bytes", too_large=True)


class _ClosedError(Exception):
    """The connection ended before the first byte of an answer."""


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    request: bytes
    """The request's first lines, up to the headers that vary."""


@lru_cache(maxsize=1 << 16)
def address_of(url: str) -> Address | None:
    """The parsed URL; None unless it is plain http to an IP address and needs no escaping."""
    try:
        parts = urlsplit(url)
        host, port = ip_address(parts.hostname or ""), parts.port or 80
    except ValueError:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if parts.scheme != "http" or "@" in parts.netloc or not _PLAIN.fullmatch(path):
        return None
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
    same = "Accept: */*\r\nAccept-Encoding: identity\r\nUser-Agent: lightkeeper\r\n"
    return Address(str(host), port, (head + same).encode())


@dataclass(slots=True)
class Reply:
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    """By lower-case name; of repeated headers, the last."""
    body: bytearray = field(default_factory=bytearray)


_NO_REPLY: Final = Reply()
"""What an idle connection holds, so that thousands do not keep their last answers in memory."""


class _Connection(asyncio.Protocol):
    """One connection; one question at a time."""

    def __init__(self, drop: Callable[[_Connection], None]) -> None:
        self._drop = drop
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[Reply] | None = None
        self._received = 0
        self._lasts = False
        """Whether the other side keeps the connection open after this answer."""
        self.idle_since_s = 0.0

    async def ask(self, request: bytes, end: float, question: Question) -> Reply:
        """Send a request and return the answer; `end`: the loop's time by which it must be here.

        Raises:
            TimeoutError, FetchError, _ClosedError: no answer; the connection is unusable.
        """
        if self._transport is None or self._transport.is_closing():
            raise _ClosedError
        loop = asyncio.get_running_loop()
        self._asked, self._reply, self._complete = loop.create_future(), Reply(), False
        self._parser, self._received, self._lasts = HttpResponseParser(self), 0, False
        self._max_bytes, self._meter = question.max_bytes, question.meter
        alarm = loop.call_at(end, self._fail, TimeoutError())
        self._transport.write(request)
        try:
            return await self._asked
        except BaseException:
            self.abort()
            raise
        finally:
            alarm.cancel()
            self._asked, self._reply = None, _NO_REPLY

    @property
    def reusable(self) -> bool:
        going = self._transport is not None and not self._transport.is_closing()
        return going and self._lasts

    def abort(self) -> None:
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
        if self._asked is None or self._asked.done():  # unsolicited
            self.abort()
            return
        self._received += len(data)
        if self._received > self._max_bytes + _HEAD_MAX_BYTES:
            self._fail(_too_large(self._max_bytes))
            return
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            self._fail(FetchError(Failure.GARBAGE, "it wants to speak another protocol"))
        except HttpParserError as exc:
            inner = exc.__context__  # what a callback raised
            self._fail(
                inner
                if isinstance(inner, Exception)
                else FetchError(Failure.GARBAGE, f"no HTTP: {exc}")
            )

    def eof_received(self) -> None:
        """The other side has finished: that ends a body of unknown length."""
        headers = self._reply.headers if self._asked is not None else {}
        length_headers = headers.keys() & {b"content-length", b"transfer-encoding"}
        if self._asked is not None and self._reply.status and not length_headers:
            self.on_message_complete()

    def connection_lost(self, _exc: Exception | None) -> None:
        self._drop(self)
        ended = FetchError(Failure.GARBAGE, "the connection ended in the answer")
        self._fail(ended if self._received else _ClosedError())

    # -- called by the parser -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            raise FetchError(Failure.GARBAGE, "two answers to one question")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._reply.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._reply.status = self._parser.get_status_code()
        if self._reply.status < 200:
            raise FetchError(Failure.GARBAGE, f"status {self._reply.status}")

    def on_body(self, piece: bytes) -> None:
        self._reply.body += piece
        if self._meter is not None:
            self._meter(len(piece))
        if len(self._reply.body) > self._max_bytes:
            raise _too_large(self._max_bytes)

    def on_message_complete(self) -> None:
        self._complete, self._lasts = True, bool(self._parser.should_keep_alive())
        if self._asked is not None and not self._asked.done():
            self._asked.set_result(self._reply)


class KeptConnections:
    """Open connections, reused for later requests. Belongs to one event loop."""

    def __init__(self) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        files = sys.maxsize if files == resource.RLIM_INFINITY else files
        self._most = int(_OF_FILES * files) - _OTHER_FILES
        self._next_look_s = 0.0
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        self._open: set[_Connection] = set()

    async def get(self, address: Address, headers: bytes, end: float, question: Question) -> Reply:
        """Return the answer; `headers`: those that vary, each with its CRLF.

        Raises:
            TimeoutError: no complete answer by `end`.
            FetchError: the answer is not HTTP, or its body has more than `max_bytes`.
            OSError: nobody listens there.
        """
        request, where = address.request + headers + b"\r\n", (address.host, address.port)
        while idle := self._idle.get(where):
            try:
                return await self._ask(idle.pop(), where, request, end, question)
            except _ClosedError:  # the other side closed it while it was idle
                continue
        async with asyncio.timeout_at(end):
            _, fresh = await asyncio.get_running_loop().create_connection(self._made, *where)
        try:
            return await self._ask(fresh, where, request, end, question)
        except _ClosedError:
            raise FetchError(Failure.GARBAGE, "it hung up without an answer") from None

    def close(self) -> None:
        for connection in tuple(self._open):
            connection.abort()

    def _made(self) -> _Connection:
        connection = _Connection(self._open.discard)
        self._open.add(connection)
        return connection

    async def _ask(
        self,
        connection: _Connection,
        where: tuple[str, int],
        request: bytes,
        end: float,
        question: Question,
    ) -> Reply:
        reply = await connection.ask(request, end, question)
        if not connection.reusable or len(self._open) > self._most:
            connection.abort()
            return reply
        connection.idle_since_s = now_s = time.monotonic()
        self._idle.setdefault(where, []).append(connection)
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + _LOOK_EVERY_S
            self._drop_old(now_s - KEPT_S)
        return reply

    def _drop_old(self, until_s: float) -> None:
        """Close connections idle since before then: the first ones, as `get` takes the last."""
        for place, idle in tuple(self._idle.items()):
            fresh = [connection for connection in idle if connection.idle_since_s >= until_s]
            for connection in idle[: len(idle) - len(fresh)]:
                connection.abort()
            if fresh:
                self._idle[place] = fresh
            else:
                del self._idle[place]


# -- fetcher -----------------------------------------------------------------------------------


class Fetcher:
    """Owns the loop, its thread and the connections. Close it when done."""

    def __init__(
        self,
        tls: ssl.SSLContext | None = None,
        *,
        proxies: bool = False,
        permit: Callable[[], str | None] = lambda: None,
        tokens: Tokens | None = None,
    ) -> None:
        """`tls`: authorities for https; None: the system's. `proxies`: whether HTTPS_PROXY,
        HTTP_PROXY and NO_PROXY of the environment are used. `permit` returns why nothing may be
        changed now, or None; it is called right before every request but a GET. `tokens`: for
        WorkerServers.
        """
        if proxies and tokens is not None:
            raise ValueError("no token goes to proxies")
        self.tokens = tokens or Tokens()
        self._permit = permit
        self._tls = tls
        self._proxies = proxies
        self._kept = KeptConnections()
        self._loop = asyncio.new_event_loop()
        self._resolvers = ThreadPoolExecutor(_RESOLVER_THREADS, thread_name_prefix="resolve")
        self._loop.set_default_executor(self._resolvers)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fetch", daemon=True)
        self._thread.start()
        self._session: aiohttp.ClientSession = self.submit(self._open()).result(timeout=10)

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=KEPT_S,
                ttl_dns_cache=60,
                ssl=True if self._tls is None else self._tls,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=self._proxies,
            timeout=aiohttp.ClientTimeout(total=None),  # each request has its own deadline
            auto_decompress=False,  # a small body that unpacks to a huge one is still small
            headers={"Accept-Encoding": "identity", "User-Agent": "lightkeeper"},
        )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def ask(self, question: Question) -> Answer:
        """Ask and wait.

        Raises:
            FetchError: no answer within `timeout_s`, or none that fits `max_bytes`.
        """
        asked = self.submit(self.fetch(question))
        try:
            return asked.result(timeout=question.timeout_s + 1.0)
        except FutureTimeoutError as exc:
            asked.cancel()
            raise FetchError(Failure.TIMEOUT, "the monitor's own loop is late") from exc
        except CancelledError as exc:
            raise FetchError(Failure.TIMEOUT, "the monitor is being stopped") from exc

    async def fetch(self, question: Question) -> Answer:
        """Ask, on the loop.

        Raises:
            FetchError: no answer within `timeout_s`, or none that fits `max_bytes`.
        """
        began = time.monotonic()
        if question.method != "GET" and (why := self._permit()) is not None:
            raise FetchError(Failure.REFUSED, f"not sent: {why}")
        try:
            if (address := self._plain(question)) is not None:
                return await self._get(question, address, began)
            async with asyncio.timeout(max(0.0, question.timeout_s)):
                return await self._exchange(question, began)
        except TimeoutError as exc:
            detail = f"no full answer within {question.timeout_s:.1f} s"
            raise FetchError(Failure.TIMEOUT, detail) from exc
        except aiohttp.ClientConnectorDNSError as exc:
            raise FetchError(Failure.UNRESOLVED, f"cannot resolve {exc.host}") from exc
        except aiohttp.ClientConnectorCertificateError as exc:
            raise FetchError(Failure.GARBAGE, f"its certificate: {exc.certificate_error}") from exc
        except aiohttp.ClientConnectorError as exc:
            raise _failed(exc.os_error) from exc
        except aiohttp.InvalidURL as exc:
            raise FetchError(Failure.UNRESOLVED, f"not a URL: {question.url}") from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise FetchError(Failure.GARBAGE, one_line(f"{type(exc).__name__}: {exc}")) from exc

    def _headers(self, question: Question) -> dict[str, str]:
        token = None if question.group is None else self.tokens.of(question.group)
        authorization = {} if token is None else {"Authorization": f"Bearer {token}"}
        return {**question.headers, **authorization}

    def _plain(self, question: Question) -> Address | None:
        """The address, if the request does not need aiohttp."""
        if question.method != "GET" or question.body or question.json or self._proxies:
            return None
        return address_of(question.url)

    async def _get(self, question: Question, address: Address, began: float) -> Answer:
        headers = "".join(f"{name}: {value}\r\n" for name, value in self._headers(question).items())
        end = self._loop.time() + max(0.0, question.timeout_s)
        try:
            reply = await self._kept.get(address, headers.encode(), end, question)
        except TimeoutError:
            raise
        except OSError as exc:
            raise _failed(exc) from exc
        kind, later = (reply.headers.get(name, b"").decode("latin-1") for name in _TOLD)
        return _answer(reply.status, reply.body, kind, later, began)

    async def _exchange(self, question: Question, began: float) -> Answer:
        headers = self._headers(question)
        async with self._session.request(
            question.method,
            question.url,
            json=question.json,
            data=question.body,
            headers=headers,
            allow_redirects=False,
        ) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if question.meter is not None:
                    question.meter(len(chunk))
                if len(body) > question.max_bytes:
                    response.close()
                    raise _too_large(question.max_bytes)
            kind, later = (response.headers.get(name.decode(), "") for name in _TOLD)
            return _answer(response.status, body, kind, later, began)

    def close(self) -> None:
        """End open requests and the thread; waits at most about two seconds."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(FutureTimeoutError):
            self.submit(self._shut()).result(timeout=1.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=1.0)
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        if not self._thread.is_alive():
            self._loop.close()

    async def _shut(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._kept.close()
        await self._session.close()


def _answer(status: int, body: bytearray, kind: str, later: str, began: float) -> Answer:
    took_s = time.monotonic() - began
    in_s = float(later) if later.isascii() and later.isdigit() and len(later) < 7 else None
    return Answer(status, bytes(body), kind or _UNTYPED, took_s, in_s)


def _failed(exc: OSError) -> FetchError:
    failure = _ERRNOS.get(exc.errno or 0, Failure.REFUSED)
    ours = "this monitor: " if failure is Failure.UNASKED else ""
    return FetchError(failure, ours + (exc.strerror or str(exc)))
