"""Collects the routes and serves them, with the WorkerServer's server
(`worker_server.http_server`).
"""

from __future__ import annotations

import socket
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Final
from urllib.parse import urlsplit

from flask import Flask

from lightkeeper.monitor.model.names import host_and_port
from lightkeeper.monitor.show.web.answers import (
    BODY_MAX_BYTES,
    KEY,
    AppContext,
    check_host,
    protect,
    refuse,
)
from lightkeeper.monitor.show.web.changing import changing
from lightkeeper.monitor.show.web.paging import compile_templates, paging
from lightkeeper.monitor.show.web.reading import reading
from lightkeeper.worker_server.http_server import HttpServer, ServerLimits, file_limit
from lightkeeper.worker_server.wire import routed

_STATIC = Path(__file__).parent / "static"


def create_app(context: AppContext) -> Flask:
    app = Flask("monitor", static_folder=str(_STATIC), static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = BODY_MAX_BYTES
    app.extensions[KEY] = context
    compile_templates()
    app.before_request(check_host)
    for routes in (reading, paging, changing):
        app.register_blueprint(routes)

    app.after_request(protect)
    app.register_error_handler(Exception, refuse)
    return app


THREADS: Final = 24
_PORTS: Final = {"http": 80, "https": 443}
LIMITS: Final = ServerLimits(
    connections=4096, idle_s=30.0, body_bytes=2 * BODY_MAX_BYTES, unread_bytes=256 << 20
)
"""More wait in the kernel's queue. Every rank renews its lease over a short connection."""
_OF_FILES: Final = 0.25
"""Largest share of the files that this process may open for clients' connections."""
FEW_FILES: Final = int(LIMITS.connections / _OF_FILES)
"""With fewer files, fewer connections than `LIMITS` allows."""


class ServeError(Exception):
    """The address cannot be served; the message is one line for a person."""


def parse_bind(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[V6]:PORT`.

    Raises:
        ServeError: not such an address.
    """
    address = host_and_port(text)
    if address is None:
        raise ServeError(f"--bind is {text!r}, expected HOST:PORT, such as 127.0.0.1:8470")
    return address


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_here(url: str, port: int) -> bool:
    """True if a URL leads to this port of this machine, however its address is written.

    A name is looked up if the port is the same.
    """
    parts = urlsplit(url)
    if (parts.port or _PORTS.get(parts.scheme)) != port or parts.hostname is None:
        return False
    try:
        resolved = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False  # cannot be reached either
    return any(_is_ours(routed(str(address[0]))) for *_, address in resolved)


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    """Only this machine's addresses can be bound."""
    with socket.socket(AF_INET6 if address.version == 6 else AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True


class Server:
    """Serves an application until closed. Binds at once, so a busy port shows early."""

    def __init__(self, host: str, port: int) -> None:
        """Bind.

        Raises:
            ServeError: the address is in use or not local.
        """
        listener = socket.socket(AF_INET6 if ":" in host else AF_INET)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError as exc:
            listener.close()
            raise ServeError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
        self._listener = listener
        self._http: HttpServer | None = None
        self.port: int = listener.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def waiting(self) -> int:
        return 0 if self._http is None else self._http.waiting

    def start(self, app: Flask) -> None:
        self._listener.listen(2048)
        connections = min(LIMITS.connections, int(_OF_FILES * file_limit(0)))
        limits = replace(LIMITS, connections=connections)
        self._http = HttpServer(app, self._listener, threads=THREADS, limits=limits)
        self._http.start()

    def close(self) -> None:
        """Stop; running requests get up to a second."""
        if self._http is None:
            self._listener.close()
        else:
            self._http.close()
