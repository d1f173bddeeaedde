"""Asks the monitor to be polled: a lease, renewed thrice in its time, returned at the end.

A monitor that is away is no news: the next try comes a little later, and nothing is logged
more than once per outage. But who is refused, or finds no monitor where there should be one, would
watch an empty page and not know why: that the rank warns of, once. The token goes to the monitor
and nowhere else; redirects are not followed. Of two monitors, one of which stands by, both are
told, each in a thread of its own: one that hangs is not in the way of the other.

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
_ALONE_S = 10.0
"""Without an answer since the start for so long: then it is said."""
_UNAUTHORIZED = "HTTP 401"
_REFUSED, _BROKEN, _FULL = 400, 500, 503
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
        *,
        refused: Callable[[str, str], None],
        known_as: Callable[[str], None],
        complained: Callable[[str], None],
    ) -> None:
        """`refused` hears of a name that is another group's, and why; `known_as` how the group was
        called before; `complained` what people at the rank should read.
        """
        super().__init__(name="registrar", daemon=True)
        self._monitor = urlsplit(monitor)
        self._registration = registration
        self._refused = refused
        self._known_as = known_as
        self._complained = complained
        self._complaint = ""
        """The last one."""
        self._came = False
        """Whether it was registered once."""
        self._why = ""
        """The monitor's own words for its last refusal."""
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
            self._complain(problem)
            if up != (problem is None):
                up = problem is None
                _log.info("monitor %s: %s", self._monitor.netloc, problem or "registered")

    def _complain(self, problem: str | None) -> None:
        """Say why nobody watches here, once for each reason; of what is alike for all ranks of a
        group the first says it.
        """
        where, rank = f"{self._monitor.scheme}://{self._monitor.netloc}", self._told.rank
        words, alike = "", True
        if problem is None:
            self._came = True
        elif problem == _UNAUTHORIZED:
            what = "a token" if self._token is None else "another token"
            words = f"wants {what}: set LIGHTKEEPER_TOKEN_FILE to a file that holds its token"
        elif self._why:
            words, alike = f"refuses rank {rank}: {self._why}", False
        elif not self._came and time.monotonic() - self._began_s >= _ALONE_S:
            words = f"does not answer ({problem}); it is asked again and again"
        if words and words != self._complaint and (self._told.group_rank == 0 or not alike):
            self._complaint = words
            self._complained(f"the monitor at {where} {words}. Until then it does not see {rank}.")

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
                    said = response.read(_MAX_ANSWER)
                    self._why = _reason(status, said)
                    self._heed(said)
            finally:
                connection.close()
        except OSError as exc:
            return exc.strerror or str(exc) or type(exc).__name__
        except (http.client.HTTPException, ValueError) as exc:
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


def _reason(status: int, body: bytes) -> str:
    """Why the monitor refuses this rank, in its own words; empty: it does not, or only its name."""
    if status < _REFUSED or (status >= _BROKEN and status != _FULL):
        return ""
    try:
        answer = json.loads(body)
        why, name = answer.get("error"), answer.get("refused_name")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return wire.one_line(why).rstrip(".") if isinstance(why, str) and name is None else ""
