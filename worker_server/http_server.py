"""The HTTP server of WorkerServer and monitor: slow or numerous clients never block the others.

Theory of operation. It is waitress plus deadlines, on poll(), which has no limit of 1,024
descriptors. Waitress reads requests in its main thread and hands only complete ones to its
worker threads, so a slow client holds no thread. But it has no deadline for a request, and at
its connection limit it stops accepting: enough silent clients lock everybody out.
Here each connection *waits* for its client unless its request is being answered: for the rest
of a request, for the next one, or until the client takes the answer. Each wait has a deadline. At
the limit, the connection that has waited longest, and at least `young_s`, is dropped for the next
one; a connection whose request is being answered never is. A client that sends its request
at once is read before it could become the oldest, because each turn of the loop accepts few
connections and reads everything that has arrived.

Of several requests in a row (pipelining), the next is parsed, and goes to the end of the queue,
once the client has taken the answer before it: who reads nothing is answered once.

An answer is buffered (above 8 MiB waitress uses a temporary file), so that a client that reads
slowly holds no thread either.
"""

from __future__ import annotations

import contextlib
import logging
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from waitress import wasyncore
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher

_FULL_PAUSE_S: Final = 0.05
_QUEUE_KEPT_S: Final = 0.01
_ACCEPTS_A_TURN: Final = 32
"""More would let a burst of new connections delay reading the open ones."""
_IN_MEMORY: Final = 8 << 20
"""A full flight record has about one MiB and must not need disk space: the disk may be what is
wrong."""
_log = logging.getLogger(__name__)
logging.getLogger("waitress").setLevel(logging.ERROR)  # "task queue depth" is not news


@dataclass(frozen=True)
class _Sampled(Collector):
    """What there is now: a metric without a sample would speak of what the job does not have."""

    registry: CollectorRegistry

    def collect(self) -> Iterator[Metric]:
        return (family for family in self.registry.collect() if family.samples)


def metrics_page(registry: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """`/metrics` in the format that the scraper accepts, and its content type."""
    encode, content_type = choose_encoder(accept)
    return encode(_Sampled(registry)), content_type


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long a client may take (seconds), and how many there may be."""

    connections: int = 1024
    request_s: float = 10.0
    """Until a request is complete, from the connection's or the request's first byte."""
    idle_s: float = 15.0
    """Until the next request of a keep-alive connection."""
    unread_s: float = 10.0
    """Without the client taking a byte of the answer."""
    unread_bytes: int = 64 << 20
    """All answers together; then the client that has taken nothing for longest is dropped."""
    young_s: float = 0.5
    """A connection that has waited less is not dropped for room. Shorter would drop honest
    clients of a busy machine; longer keeps readers waiting behind many silent ones."""
    tend_s: float = 1.0
    """Between two checks of the deadlines."""
    header_bytes: int = 16 * 1024
    body_bytes: int = 64 * 1024
    """Read before the application says what is wrong with it (its own limit is less)."""


def file_limit(wanted: int = 0) -> int:
    """How many files this process may open; raises the limit to `wanted` if possible."""
    soft, hard = (sys.maxsize if limit == resource.RLIM_INFINITY else limit
                  for limit in resource.getrlimit(resource.RLIMIT_NOFILE))  # fmt: skip
    enough = min(wanted, hard)
    if soft >= enough:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
    except (OSError, ValueError):
        return soft
    return enough


class Channel(HTTPChannel):  # type: ignore[misc]  # waitress has no types
    """One connection. Only the main thread drops it; worker threads only set its times."""

    server: PatientServer
    requests: list[Any]
    request: Any
    sent_continue: bool

    def __init__(self, server: PatientServer, *args: Any, **kw: Any) -> None:
        self.since_s = self.moved_s = time.monotonic()
        self.idle = False
        self._unread = b""
        super().__init__(server, *args, **kw)

    def add_channel(self, map: dict[int, Any] | None = None) -> None:  # noqa: A002
        super().add_channel(map)
        self.server.connections.channels.add(self)

    def del_channel(self, map: dict[int, Any] | None = None) -> None:  # noqa: A002
        super().del_channel(map)
        self.server.connections.channels.discard(self)

    def close(self) -> None:
        """At the loop's end: waitress would close the socket, but not a large answer's file."""
        self.handle_close()

    def readable(self) -> bool:
        return bool(super().readable()) and not self._unread

    def writable(self) -> bool:
        return bool(super().writable() or (self._unread and not self.requests))

    def handle_write(self) -> None:
        super().handle_write()
        if self._unread and self.connected and not self.total_outbufs_len:
            self.received(b"")

    def received(self, data: bytes) -> bool:
        """Parse one request, the next once its answer is taken: waitress would parse all."""
        with self.requests_lock:
            self._unread += data
            while self._unread and not (
                self.requests or self.will_close or self.close_when_flushed
            ):
                if self.idle:
                    self.idle, self.since_s = False, time.monotonic()
                if self.request is None:
                    self.request = self.parser_class(self.adj)
                self._unread = self._unread[self.request.received(self._unread) :]
                self._read(self.request)
        return True

    def _read(self, request: Any) -> None:
        if request.expect_continue and request.headers_finished and not self.sent_continue:
            self.send_continue()
        if request.completed:
            self.sent_continue, self.request = False, None
            if not request.empty:
                self.requests.append(request)
                self.server.add_task(self)

    def write_soon(self, data: Any) -> int:
        """Take a part of the answer; after the last one, the wait for the client begins."""
        self.idle, self.since_s = True, time.monotonic()
        if not self.total_outbufs_len:
            self.moved_s = self.since_s
        return int(super().write_soon(data))

    def send(self, data: bytes, do_close: bool = True) -> int:
        sent = int(super().send(data, do_close))
        if sent:
            self.note_sent()
        return sent

    def note_sent(self) -> None:
        self.moved_s = time.monotonic()

    def waits_since_s(self) -> float | None:
        """When it began to wait for its client; None while its request is being answered."""
        if self.total_outbufs_len:
            return self.moved_s
        return None if self.requests else self.since_s

    def overdue(self, limits: ServerLimits, now_s: float) -> bool:
        since_s = self.waits_since_s()
        if since_s is None:
            return False
        if self.total_outbufs_len:
            return now_s - since_s > limits.unread_s
        return now_s - since_s > (limits.idle_s if self.idle else limits.request_s)


class Connections:
    """All connections of one process, over all its listeners."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.channels: set[Channel] = set()
        self._queue: list[tuple[float, int, Channel]] = []
        self._queued_s = 0.0

    @property
    def full(self) -> bool:
        return len(self.channels) >= self.limits.connections

    def drop_overdue(self) -> None:
        now_s, held = time.monotonic(), 0
        for channel in sorted(self.channels, key=lambda channel: -channel.moved_s):
            held += channel.total_outbufs_len
            slow = channel.total_outbufs_len and now_s - channel.moved_s >= self.limits.young_s
            too_much = slow and held > self.limits.unread_bytes
            if too_much or channel.overdue(self.limits, now_s):
                channel.handle_close()

    def may_accept(self) -> bool:
        """True if one more fits, or an old one can be dropped."""
        return not self.full or self._oldest() is not None

    def make_room(self) -> None:
        """Drop the oldest until all fit again, but none that is young or being answered."""
        while len(self.channels) > self.limits.connections:
            channel = self._oldest()
            if channel is None:
                return
            channel.handle_close()

    def _oldest(self) -> Channel | None:
        """The longest waiting, if long enough; sorted at most 100 times a second (1 ms)."""
        now_s = time.monotonic()
        if now_s - self._queued_s > _QUEUE_KEPT_S:
            self._queued_s = now_s
            waits = [(since_s, id(channel), channel) for channel in list(self.channels)
                     if (since_s := channel.waits_since_s()) is not None
                     and now_s - since_s >= self.limits.young_s]  # fmt: skip
            self._queue = sorted(waits, reverse=True)
        while self._queue:
            since_s, _, channel = self._queue[-1]
            if channel in self.channels and channel.waits_since_s() == since_s:
                return channel
            self._queue.pop()
        return None


class PatientServer(TcpWSGIServer):  # type: ignore[misc]  # waitress has no types
    """Accepts on one listening socket; several may share `Connections`, loop and worker threads."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        connections: Connections,
        channel: type[Channel],
        **waitress: Any,
    ) -> None:
        self.connections = connections
        self.channel_class = channel
        self._last_tended_s = 0.0
        self._defects = 0
        where = (listener.family, listener.type, 0, listener.getsockname())
        super().__init__(app, _sock=listener, bind_socket=False, sockinfo=where, **waitress)

    def readable(self) -> bool:
        """True if to accept: not when full, unless an old one can be dropped."""
        return self.accepting and self.connections.may_accept()

    def handle_accept(self) -> None:
        """Accept pending connections, a few at a time."""
        for _ in range(_ACCEPTS_A_TURN):
            if not self.connections.may_accept():
                return
            before = len(self.connections.channels)
            try:
                super().handle_accept()
            except OSError as exc:  # a client that left at once must not close the listener
                _log.info("a connection failed at once: %s", exc)
            if len(self.connections.channels) == before:
                return
            self.connections.make_room()

    def run(self) -> None:
        while self._map:
            try:
                self._turn()
            except Exception:  # noqa: BLE001  one defect must not end the black box
                self._defects += 1
                if not self._defects & (self._defects - 1):  # the 1st, 2nd, 4th, 8th: no flood
                    _log.exception("the HTTP server met defect %d; it goes on", self._defects)
                time.sleep(_FULL_PAUSE_S)

    def _turn(self) -> None:
        tend_s = self.connections.limits.tend_s
        wasyncore.poll2(_FULL_PAUSE_S if self.connections.full else tend_s, self._map)
        now_s = time.monotonic()
        if now_s - self._last_tended_s >= tend_s / 2:
            self._last_tended_s = now_s
            self.connections.drop_overdue()


def names_us(header: str, more: Iterable[str] = ()) -> bool:
    """True if a `Host` header names this machine, or there is none: then it is no browser."""
    own = socket.gethostname().lower()
    try:
        name = (urlsplit(f"//{header.strip()}").hostname or "").rstrip(".")
        ours = "", "localhost", own, own.partition(".")[0], *(alias.lower() for alias in more)
        return name in ours or bool(ip_address(name))
    except ValueError:
        return False


class HttpServer:
    """One loop, its worker threads, one listener or more."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        *,
        threads: int,
        limits: ServerLimits | None = None,
        channel: type[Channel] = Channel,
        scheme: str = "http",
    ) -> None:
        limits = limits or ServerLimits()
        adjustments = Adjustments(
            threads=threads, ident=None, clear_untrusted_proxy_headers=True,
            max_request_header_size=limits.header_bytes, max_request_body_size=limits.body_bytes,
            outbuf_high_watermark=1 << 40, outbuf_overflow=_IN_MEMORY, log_socket_errors=False,
            url_scheme=scheme, listen="127.0.0.1:0",
        )  # fmt: skip
        self._map: dict[int, Any] = {}
        self._dispatcher = ThreadedTaskDispatcher()
        self._dispatcher.set_thread_count(threads)
        self._listen_on = partial(
            PatientServer, app, connections=Connections(limits), channel=channel,
            map=self._map, dispatcher=self._dispatcher, adj=adjustments,
        )  # fmt: skip
        self._server = self._listen_on(listener)
        self._thread: threading.Thread | None = None
        self.port = int(listener.getsockname()[1])

    @property
    def waiting(self) -> int:
        """Requests waiting for a free thread."""
        return len(self._dispatcher.queue)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._server.run, name="http", daemon=True)
        self._thread.start()

    def also(self, listener: socket.socket) -> None:
        """Serve on one more socket, from any thread."""
        self._server.trigger.pull_trigger(lambda: self._listen_on(listener))

    def close(self) -> None:
        """End the loop and the threads; requests under way get up to a second."""
        self._dispatcher.shutdown(cancel_pending=True, timeout=1)
        # the loop ends when no connection is left, so they are closed in its own thread; if it woke
        # for another reason (an answer ended), it may have closed the trigger before we write to it
        with contextlib.suppress(OSError):
            self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._map))
        if self._thread is not None:
            self._thread.join(timeout=1.0)


# -- TLS -------------------------------------------------------------------------------------------
# TLS runs in waitress's own loop, and the handshake counts towards the first request's deadline.
# Waitress has no TLS, and a proxy in front (stunnel, an asyncio thread) would need its own limits
# and deadlines, a second socket for each connection, and would hide the client's address. Here each
# connection is a non-blocking SSL socket: `recv` also does the handshake, and whatever OpenSSL
# cannot do yet is tried again when the socket is ready. So all of the above holds for TLS too.
# OpenSSL's objects are not thread-safe, and waitress reads in its main thread and writes in its
# workers: so each connection has a lock.

_RECORD_BYTES: Final = 16 * 1024
"""The size limit of a TLS record: reading this much leaves nothing in OpenSSL's buffer, which
poll() does not see."""
_NOT_YET: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsError(Exception):
    """The certificate or the key cannot be used; the message says which file and why."""


def tls_channel(cert: Path, key: Path) -> type[Channel]:
    """The class of connections that speak TLS 1.2 or newer with this certificate.

    Raises:
        TlsError: the files are not a matching certificate and key.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each costs as much as a handshake
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        files = f"LIGHTKEEPER_TLS_CERT={cert}, LIGHTKEEPER_TLS_KEY={key}"
        raise TlsError(f"{files}: not a certificate and its key, in PEM: {exc}") from exc
    return type("OurTlsChannel", (TlsChannel,), {"context": context})


def _no_password() -> str:
    raise ValueError("the key is encrypted: give one without a password")


class TlsChannel(Channel):
    """One TLS connection; `tls_channel` sets the class's context."""

    context: ssl.SSLContext

    def __init__(self, server: PatientServer, sock: socket.socket, *args: Any, **kw: Any) -> None:
        self._tls = threading.Lock()
        self._wants_write = False
        sock.setblocking(False)
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(server, wrapped, *args, **kw)

    def writable(self) -> bool:
        return self._wants_write or bool(super().writable())

    def handle_write(self) -> None:
        """The socket is writable: a handshake may need that too."""
        if self._wants_write:
            self.handle_read()
        if super().writable():
            super().handle_write()

    def handle_read(self) -> None:
        """Bytes arrived: of a handshake, or of a request."""
        self._wants_write = False
        try:
            with self._tls:
                data = self.socket.recv(_RECORD_BYTES)
        except _NOT_YET as exc:
            self._wants_write = isinstance(exc, ssl.SSLWantWriteError)
        except OSError:  # a bad handshake, or the client is gone
            self.handle_close()
        else:
            if data:
                self.received(data)
            else:
                self.handle_close()

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send what OpenSSL takes; after a refusal it gets the same bytes again, as it must."""
        try:
            with self._tls:
                sent = self.socket.send(data)
        except _NOT_YET:
            return 0
        except OSError:
            if do_close:
                self.handle_close()
            else:
                self.will_close = True
            return 0
        self.note_sent()
        return int(sent)

    def handle_close(self) -> None:
        """Send TLS's close notification without waiting for the other side's.

        A client that disconnects is closed twice: for data left to read, and for the hang-up.
        """
        sock = self.socket
        if sock is not None:
            with contextlib.suppress(OSError, ValueError), self._tls:
                sock.unwrap()
        super().handle_close()
