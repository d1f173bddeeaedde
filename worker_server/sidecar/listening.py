"""Where a sidecar listens: sockets, TLS, how many connections fit, and the name for its URL.

TLS is a part of waitress's own loop, and the handshake of the first request's time. Waitress has no
TLS, and a front that relays (stunnel, an asyncio thread) would need limits and deadlines of its
own, a second socket for each connection, and would hide the client's address. Here each connection
is an SSL socket that never blocks: `recv` does the handshake by the way, and whatever OpenSSL
cannot do yet is tried again when the socket is ready. So `http_server` holds for TLS as it is.
OpenSSL's objects are not made for two threads, and waitress reads in its main thread and writes in
its workers: a lock for each connection.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from worker_server.http_server import Channel, HttpServer, Limits, PatientServer
from worker_server.rank.settings import Settings

_FILES_WANTED: Final = 8192
_FILES_KEPT: Final = 64
"""For the page, logs, pidfds and pipes of our own."""
_log = logging.getLogger("worker_server.sidecar")
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between looks for a free port; together shorter than the rank waits for its sidecar."""


def listen(app: Any, settings: Settings, threads: int) -> HttpServer:
    """The server of this application, bound and not started; any port when the wanted is taken.

    Raises:
        TlsError: the certificate or the key cannot be used.
        OSError: the address is not ours.
    """
    channel = Channel
    if settings.tls_cert is not None and settings.tls_key is not None:
        channel = tls_channel(server_context(settings.tls_cert, settings.tls_key))
    try:
        listener = listening_socket(settings.bind, settings.port)
    except OSError as exc:
        if settings.port:
            _log.warning("port %d: %s; taking any", settings.port, exc.strerror)
        elif exc.errno != errno.EADDRINUSE:
            raise
        listener = _any_port(settings.bind)
    limits = Limits(connections=connections_that_fit(Limits().connections))
    return HttpServer(
        app, listener, threads=threads, limits=limits, channel=channel, scheme=settings.scheme
    )


def _any_port(host: str) -> socket.socket:
    """A socket on a port that the kernel picks, also where it has none to give just now."""
    for pause_s in _PAUSES_S:
        try:
            return listening_socket(host, 0)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            _log.warning("no port is free; looking again in %.0f s", pause_s)
            time.sleep(pause_s)
    return listening_socket(host, 0)


def reachable_host(settings: Settings) -> str:
    """A name for the URL: the bind address, or for a wildcard the address towards the monitor."""
    if settings.bind not in ("0.0.0.0", "::", ""):  # noqa: S104
        return f"[{settings.bind}]" if ":" in settings.bind else settings.bind
    target = urlsplit(settings.monitors[0]).hostname if settings.monitors else None
    if target is None:
        return socket.gethostname()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((target, 9))  # picks a route, sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def listening_socket(host: str, port: int, *, backlog: int = 2048) -> socket.socket:
    """A socket that listens on the first address that `host` stands for.

    Raises:
        OSError: the address is in use, or not ours.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def connections_that_fit(wanted: int) -> int:
    """How many connections the process may hold, after raising its limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = _FILES_WANTED if hard == resource.RLIM_INFINITY else min(_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
            soft = enough
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(8, min(wanted, soft - _FILES_KEPT))


_RECORD_BYTES: Final = 16 * 1024
"""The most that one TLS record holds: reading so much leaves nothing behind in OpenSSL, of which
poll() knows nothing."""
_NOT_YET: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)


class TlsError(Exception):
    """The certificate or the key cannot be used; the message says which file and why."""


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate.

    Raises:
        TlsError: the files are no certificate and key that belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # each would cost as much as a handshake
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        files = f"LIGHTKEEPER_TLS_CERT={cert}, LIGHTKEEPER_TLS_KEY={key}"
        raise TlsError(f"{files}: not a certificate and its key, in PEM: {exc}") from exc
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted: give one without a password")


class TlsChannel(Channel):
    """One TLS connection; `tls_channel` gives the class its context."""

    context: ssl.SSLContext

    def __init__(self, server: PatientServer, sock: socket.socket, *args: Any, **kw: Any) -> None:
        self._tls = threading.Lock()
        self._wants_write = False
        sock.setblocking(False)
        wrapped = self.context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        super().__init__(server, wrapped, *args, **kw)

    def writable(self) -> bool:
        """Whether to be called when the socket takes bytes."""
        return self._wants_write or bool(super().writable())

    def handle_write(self) -> None:
        """The socket takes bytes: a handshake may want that too."""
        if self._wants_write:
            self.handle_read()
        if super().writable():
            super().handle_write()

    def handle_read(self) -> None:
        """Bytes have come: of a handshake, or of a request."""
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
        """Send what OpenSSL takes; it wants the same bytes again after a refusal, and gets them:
        waitress forgets only what was sent.
        """
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
        """Say goodbye as TLS wants it, without waiting for the other side's.

        A client that breaks off is closed twice: what it left is to be read, and it hung up.
        """
        sock = self.socket
        if sock is not None:
            with contextlib.suppress(OSError, ValueError), self._tls:
                sock.unwrap()
        super().handle_close()


def tls_channel(context: ssl.SSLContext) -> type[Channel]:
    """The class of connections that speak TLS with this context."""
    return type("OurTlsChannel", (TlsChannel,), {"context": context})
