"""The sidecar asks itself for its health, and marks the endpoint file when it answers.

The rank looks at that mark: a server that does not answer itself is replaced, see
`worker_server.companion`. Any answer counts, also that a token is missing.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

from worker_server import wire
from worker_server.environment import Settings

_EVERY_S = 3.0
_TIMEOUT_S = 5.0
_ANY = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104


class SelfCheck(threading.Thread):
    """Until the process ends."""

    def __init__(self, answers: Callable[[], bool], endpoint: Path) -> None:
        super().__init__(name="self-check", daemon=True)
        self._answers = answers
        self._endpoint = endpoint

    def run(self) -> None:
        """Ask, mark, wait."""
        pause = threading.Event()
        while not pause.wait(_EVERY_S):
            self.check()

    def check(self) -> None:
        """Once."""
        if self._answers():
            with contextlib.suppress(OSError):
                os.utime(self._endpoint)


def answers(settings: Settings, port: int) -> bool:
    """Whether the server on this port says anything to a question for its health."""
    host = _ANY.get(settings.bind, settings.bind)
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    if settings.scheme == "https":
        whoever = ssl._create_unverified_context()  # noqa: S323  it is ourselves
        connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=whoever)
    try:
        connection.request("GET", wire.PATH_HEALTHZ)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True
