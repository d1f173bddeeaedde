"""An HTTP server on loopback that says what a test wants."""

from __future__ import annotations

import ssl
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hang(Exception):  # noqa: N818 - an instruction, not an accident
    """The server takes the request and never answers."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 30

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with suppress(OSError):
            try:
                self.server.owner.serve(self, self.command, self.path, body)  # type: ignore[attr-defined]
            except Hang:
                self.server.owner.hang()  # type: ignore[attr-defined]
                self.close_connection = True

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def reply(self, status: int, kind: str, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class FakeServer:
    """What it answers is `serve`, of a class that inherits."""

    def __init__(self, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._over = threading.Event()
        self._server = _Quiet(("127.0.0.1", port), Handler)
        self._server.owner = self  # type: ignore[attr-defined]
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        scheme = "http"
        if tls is not None:
            scheme, self._server.socket = (
                "https",
                tls.wrap_socket(
                    self._server.socket, server_side=True, do_handshake_on_connect=False
                ),
            )
        self.url = f"{scheme}://{self.address}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def serve(self, handler: Handler, method: str, path: str, body: bytes) -> None:
        """Answer with `handler.reply`, or raise `Hang`."""
        raise NotImplementedError

    def hang(self) -> None:
        self._over.wait(30)

    def pause(self, seconds: float) -> bool:
        """False once the server is closing."""
        return not self._over.wait(seconds)

    @property
    def closed(self) -> bool:
        return self._over.is_set()

    def close(self) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
