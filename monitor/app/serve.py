"""Where the monitor listens. The server is the WorkerServer's, see `worker_server.http_server`."""

from __future__ import annotations

import ipaddress
import socket
from typing import Final

from flask import Flask

from monitor.app.answers import BODY_MAX_BYTES
from monitor.urls import host_and_port
from worker_server.http_server import HttpServer, Limits

THREADS: Final = 24
"""Half of them are never held by an open page (`streams.STREAMS`)."""
LIMITS: Final = Limits(connections=4096, idle_s=30.0, body_bytes=2 * BODY_MAX_BYTES)
"""More wait in the kernel's queue. Every rank renews its lease over a short connection."""


class ServeError(Exception):
    """The address cannot be served; the message is one line for a person."""


def parse_bind(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[V6]:PORT`.

    Raises:
        ServeError: not such an address.
    """
    found = host_and_port(text)
    if found is None:
        raise ServeError(f"--bind is {text!r}, expected HOST:PORT, such as 127.0.0.1:8470")
    return found


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """Serves an application until closed. Binds at once, so that a busy port is known at once."""

    def __init__(self, host: str, port: int) -> None:
        """Bind.

        Raises:
            ServeError: the address is in use or not ours.
        """
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
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
        """Requests for which no thread is free."""
        return 0 if self._http is None else self._http.waiting

    def start(self, app: Flask) -> None:
        """Begin to answer."""
        self._listener.listen(2048)
        self._http = HttpServer(app, self._listener, threads=THREADS, limits=LIMITS)
        self._http.start()

    def close(self) -> None:
        """Stop; requests under way get up to a second."""
        if self._http is None:
            self._listener.close()
        else:
            self._http.close()
