"""Asks the monitor to be polled: a lease, renewed thrice in its time, returned at the end.

A monitor that is away is no news: the next try comes a little later, and nothing is logged
more than once per outage. The token goes to the monitor and nowhere else; redirects are not
followed. Of two monitors, one of which stands by, both are told, each in a thread of its own: one
that hangs is not in the way of the other.

A rank that has a new name, its TorchFT Manager's, is registered under it at once. A monitor that
knows the name as another group's refuses it: then the rank goes on under its launcher's. A rank
that starts again has no Manager yet: the monitor says how the group was called before.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from urllib.parse import quote, urlencode, urlsplit

from worker_server import wire

LEASE_S = 15.0
_TIMEOUT_S = 3.0
_MAX_WAIT_S = 15.0
_RENEW_MOST_S = 60.0
_LOOK_S = 0.5
"""Between two looks at the rank's name."""
_MAX_ANSWER = 16 * 1024
_log = logging.getLogger("worker_server.sidecar")


def give_back(leases: Sequence[Registrar]) -> None:
    """All leases of one rank, side by side; once."""
    stops = [threading.Thread(target=one.stop, daemon=True) for one in leases]
    for thread in stops:
        thread.start()
    for thread in stops:
        thread.join()


class Registrar(threading.Thread):
    """Keeps the lease of one rank with the monitor."""

    def __init__(
        self,
        monitor: str,
        registration: Callable[[], wire.Registration],
        token: str | None,
        refused: Callable[[str, str], None],
        known_as: Callable[[str], None],
    ) -> None:
        """`refused` hears of a name that is another group's, and why; `known_as` how the group was
        called before.
        """
        super().__init__(name="registrar", daemon=True)
        self._monitor = urlsplit(monitor)
        self._registration = registration
        self._refused = refused
        self._known_as = known_as
        self._began_s = time.monotonic()
        self._told = registration().identity
        """As whom the rank was registered last."""
        self._token = token
        self._stop_asked = threading.Event()
        self._renew_s = 0.0
        """What the monitor asked for: thousands that renew every 5 s would be all that it does."""

    def run(self) -> None:
        """Renew until asked to stop."""
        wait, up, due_s = 0.0, True, time.monotonic()
        while not self._stop_asked.wait(min(_LOOK_S, max(0.0, due_s - time.monotonic()))):
            registration = self._registration()
            if time.monotonic() < due_s and registration.identity == self._told:
                continue
            self._told = registration.identity
            problem = self._call("POST", wire.PATH_REGISTER, self._body(registration))
            later = min(_MAX_WAIT_S, max(1.0, 2 * wait))
            wait = max(registration.lease_s / 3, self._renew_s) if problem is None else later
            due_s = time.monotonic() + wait
            if up != (problem is None):
                up = problem is None
                _log.info("monitor %s: %s", self._monitor.netloc, problem or "registered")

    def _body(self, registration: wire.Registration) -> bytes:
        age_s = time.monotonic() - self._began_s
        return json.dumps(wire.to_json(replace(registration, age_s=age_s))).encode()

    def stop(self) -> None:
        """Stop renewing and give the lease back; once."""
        if self._stop_asked.is_set():
            return
        self._stop_asked.set()
        self.join(_TIMEOUT_S)  # a renewal on its way must not come after the return
        query = urlencode({"incarnation": self._told.incarnation})
        rank = quote(self._told.rank, safe="")
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
                response = connection.getresponse()
                status = response.status
                if method == "POST":
                    self._heed(response.read(_MAX_ANSWER))
            finally:
                connection.close()
        except (OSError, http.client.HTTPException, ValueError) as exc:
            return repr(exc)
        return None if status == http.HTTPStatus.OK else f"HTTP {status}"

    def _heed(self, body: bytes) -> None:
        """Act on what the monitor says of the name, and of when to come again; any other answer is
        no news here.
        """
        try:
            answer = json.loads(body)
            refused, known_as = answer.get("refused_name"), answer.get("known_as")
            renew_s = answer.get("renew_s")
        except (ValueError, AttributeError, RecursionError):
            return
        if type(renew_s) in (int, float) and 0 <= renew_s <= _RENEW_MOST_S:
            self._renew_s = renew_s
        renamed = self._told.launched_as is not None
        if renamed and refused == self._told.group:
            self._refused(refused, str(answer.get("error"))[: wire.LINE_MAX_CHARS])
        elif not renamed and isinstance(known_as, str):
            self._known_as(known_as)
