"""Who may ask what.

Bound to loopback, reading needs no token, but a `Host` that names this machine: a page of any web
site can have its own name resolve to 127.0.0.1 (DNS rebinding) and would then read along. Bound to
anything else, everything needs the token, unless reading is configured open. Ending the rank and
profiling it need the token always.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection

from flask import request

from worker_server.http_server import names_us
from worker_server.rank.settings import Settings
from worker_server.sidecar.queries import RefusalError

_HOW = "set LIGHTKEEPER_TOKEN_FILE or LIGHTKEEPER_TOKEN where the rank is started"
_OPEN = "or LIGHTKEEPER_OPEN_READS=1, or LIGHTKEEPER_BIND=127.0.0.1"


class Guard:
    """Checks one request after the other; keeps nothing."""

    def __init__(self, settings: Settings, names: Collection[str] = ()) -> None:
        """`names`: of this host, beside what the system calls it."""
        self._token = None if settings.token is None else settings.token.encode()
        self._loopback = settings.loopback and not settings.closed_reads
        self._open = settings.open_reads
        self._names = frozenset(names)

    def may_read(self) -> None:
        """The request may read.

        Raises:
            RefusalError: 401 or 403.
        """
        if self._open:
            return
        if not self._loopback:
            self._check_token(f"reading needs a token here: {_HOW}, {_OPEN}")
        elif not names_us(request.headers.get("Host", ""), self._names) and not self._has_token():
            raise RefusalError(
                403, "the Host header names another host than this one: ask by IP address, as "
                "localhost, or with the bearer token",
            )  # fmt: skip

    def may_act(self) -> None:
        """The request may end the rank, or slow it down.

        Raises:
            RefusalError: 401 or 403.
        """
        self._check_token(f"this is off without a token: {_HOW}")

    def _check_token(self, without: str) -> None:
        if self._token is None:
            raise RefusalError(403, without)
        if not self._has_token():
            raise RefusalError(401, "wrong or missing bearer token", {"WWW-Authenticate": "Bearer"})

    def _has_token(self) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        told = given.strip().encode("utf-8", "surrogateescape")
        right = hmac.compare_digest(told, self._token or b"")
        return right and self._token is not None and scheme.lower() == "bearer"
