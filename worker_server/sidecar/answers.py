"""How the sidecar answers: JSON or text, and every error as one line of JSON."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flask import Response, request
from werkzeug.exceptions import HTTPException

_log = logging.getLogger("worker_server.sidecar")


class RefusalError(Exception):
    """A request that is answered with a status and one line."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})


class Places:
    """So many worker threads may be at one kind of slow work; the others stay free."""

    def __init__(self, count: int, what: str) -> None:
        self._free = threading.BoundedSemaphore(count)
        self._message = f"{count} requests for {what} are under way: try again"

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold a place.

        Raises:
            RefusalError: 503, none is free.
        """
        if not self._free.acquire(blocking=False):
            raise RefusalError(503, self._message, {"Retry-After": "1"})
        try:
            yield
        finally:
            self._free.release()


def in_json(content: Mapping[str, Any]) -> Response:
    """One line of JSON."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    return Response(_encode(text + "\n"), content_type="application/json")


def in_text(content: str) -> Response:
    """Plain text."""
    return Response(_encode(content), content_type="text/plain; charset=utf-8")


def _encode(text: str) -> bytes:
    """A path or a name that is no UTF-8 (Python keeps its bytes as lone surrogates) costs its own
    characters and not the answer.
    """
    return text.encode(errors="replace")


def refuse(exc: Exception) -> Response:
    """The answer to any exception of a route; a bug leaves its traceback in the log only."""
    headers: Mapping[str, str] = {}
    match exc:
        case RefusalError():
            status, message, headers = exc.status, str(exc), exc.headers
        case HTTPException():
            status, message = exc.code or 500, f"{exc.name.lower()}: {request.path}"
            headers = {name: value for name, value in exc.get_headers() if name == "Allow"}
        case _:
            _log.exception("%s %s failed", request.method, request.path)
            status, message = 500, f"internal error: {type(exc).__name__}; see the sidecar's log"
    response = in_json({"error": " ".join(message.split())})
    response.status_code = status
    response.headers.update(headers)
    return response


def harden(response: Response) -> Response:
    """What every answer says to a browser: take it as it is, keep no copy, frame it nowhere."""
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Cache-Control"] = "no-store"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    )
    return response
