"""Where a sidecar listens: sockets, TLS, how many connections fit, and the name for its URL."""

from __future__ import annotations

import contextlib
import errno
import logging
import resource
import socket
import time
from typing import Any, Final
from urllib.parse import urlsplit

from worker_server.environment import Settings, monitors_of
from worker_server.http_server import Channel, HttpServer, Limits
from worker_server.sidecar.tls import server_context, tls_channel

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
    target = urlsplit(monitors_of(settings.monitor)[0]).hostname if settings.monitor else None
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
