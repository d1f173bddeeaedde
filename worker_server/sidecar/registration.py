"""Asks the monitor to be polled: a lease, renewed thrice in its time, returned at the end.

A monitor that is away is no news: the next try comes a little later, and nothing is logged
more than once per outage. The token goes to the monitor and nowhere else; redirects are not
followed. Of two monitors, one of which stands by, both are told, each in a thread of its own: one
that hangs is not in the way of the other.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode, urlsplit

from worker_server import wire

LEASE_S = 15.0
_TIMEOUT_S = 3.0
_MAX_WAIT_S = 15.0
_log = logging.getLogger("worker_server.sidecar")


class Registrars:
    """The leases of one rank with all of its monitors."""

    def __init__(
        self, monitors: Sequence[str], registration: wire.Registration, token: str | None
    ) -> None:
        self._all = [Registrar(one, registration, token) for one in monitors]

    def start(self) -> None:
        """Begin to renew."""
        for one in self._all:
            one.start()

    def stop(self) -> None:
        """Give all leases back, side by side; once."""
        stops = [threading.Thread(target=one.stop, daemon=True) for one in self._all]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()


class Registrar(threading.Thread):
    """Keeps the lease of one rank with the monitor."""

    def __init__(self, monitor: str, registration: wire.Registration, token: str | None) -> None:
        super().__init__(name="registrar", daemon=True)
        self._monitor = urlsplit(monitor)
        self._registration = registration
        self._began_s = time.monotonic()
        self._identity = registration.identity
        self._lease_s = registration.lease_s
        self._token = token
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Renew until asked to stop."""
        wait, up = 0.0, True
        while not self._stop_asked.wait(wait):
            problem = self._call("POST", wire.PATH_REGISTER, self._body())
            later = min(_MAX_WAIT_S, max(1.0, 2 * wait))
            wait = self._lease_s / 3 if problem is None else later
            if up != (problem is None):
                up = problem is None
                _log.info("monitor %s: %s", self._monitor.netloc, problem or "registered")

    def _body(self) -> bytes:
        age_s = time.monotonic() - self._began_s
        return json.dumps(wire.to_json(replace(self._registration, age_s=age_s))).encode()

    def stop(self) -> None:
        """Stop renewing and give the lease back; once."""
        if self._stop_asked.is_set():
            return
        self._stop_asked.set()
        self.join(_TIMEOUT_S)  # a renewal on its way must not come after the return
        query = urlencode({"incarnation": self._identity.incarnation})
        rank = quote(self._identity.rank, safe="")
        self._call("DELETE", f"{wire.PATH_REGISTER}/{rank}?{query}", None)

    def _call(self, method: str, path: str, body: bytes | None) -> str | None:
        """None when it went well, else what was wrong."""
        secure = self._monitor.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection = kind(self._monitor.netloc, timeout=_TIMEOUT_S)
            try:
                connection.request(method, self._monitor.path.rstrip("/") + path, body, headers)
                status = connection.getresponse().status
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return repr(exc)
        return None if status == http.HTTPStatus.OK else f"HTTP {status}"
