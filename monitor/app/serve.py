"""Waitress, in a thread of its own: bounded threads and connections."""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
from contextlib import suppress
from typing import Any, Final

from flask import Flask
from waitress import wasyncore
from waitress.server import create_server

from monitor.app.answers import BODY_MAX_BYTES
from monitor.urls import host_and_port

THREADS: Final = 24
"""Half of them are never held by an open page (`streams.STREAMS`)."""
CONNECTIONS: Final = 1000
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
        self._connections: dict[int, Any] = {}
        self._server: Any = None
        self._thread: threading.Thread | None = None
        self.port: int = listener.getsockname()[1]
        self.url = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    @property
    def waiting(self) -> int:
        """Requests for which no thread is free."""
        return 0 if self._server is None else len(self._server.task_dispatcher.queue)

    def start(self, app: Flask) -> None:
        """Begin to answer."""
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        self._server = create_server(
            app,
            map=self._connections,
            sockets=[self._listener],
            threads=THREADS,
            connection_limit=CONNECTIONS,
            channel_timeout=30,
            max_request_body_size=BODY_MAX_BYTES * 2,
            ident="lightkeeper",
        )
        self._thread = threading.Thread(target=self._server.run, name="serve", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; requests under way get up to a second."""
        if self._server is None or self._thread is None:
            self._listener.close()
            return
        self._server.task_dispatcher.shutdown(cancel_pending=True, timeout=1)
        # the loop ends when no connection is left, so they are closed in its own thread; awake for
        # another reason (an answer that ends), it may close the trigger before that is written to
        with suppress(OSError):
            self._server.trigger.pull_trigger(lambda: wasyncore.close_all(self._connections))
        self._thread.join(timeout=1.0)
