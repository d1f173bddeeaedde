"""Client of torch's control plane in the rank: HTTP over a unix socket.

Only handlers that need no GIL are called, so an abandoned request never piles up in the rank. One
that does not answer all the same holds a thread of the rank's server: its connection is kept, and
it is not asked again before that answer has come.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
from pathlib import Path
from time import monotonic
from typing import Any, Final

_MAX_BYTES: Final = 64 * 1024 * 1024
_CHUNK_BYTES: Final = 1024 * 1024
_LIST: Final = ""


class ControlPlaneError(Exception):
    """Torch's control plane did not answer; the message says why, in one line."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("rank", timeout=timeout_s)
        self._path = path
        self.since_s = monotonic()

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def has_answered(self) -> bool:
        """Whether something, if only its end, has come meanwhile."""
        return self.sock is None or bool(select.select([self.sock], [], [], 0)[0])


class ControlPlane:
    """Asks the control plane that listens on `path`, when there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unanswered: dict[str, _UnixConnection] = {}

    def handlers(self, timeout_s: float = 1.0) -> frozenset[str]:
        """The questions that this torch answers.

        Raises:
            ControlPlaneError: no control plane, no answer in time, or not a list.
        """
        names = self._ask_json(_LIST, timeout_s, "GET")
        if not isinstance(names, list):
            raise ControlPlaneError("/handler/: not a list")
        return frozenset(name for name in names if isinstance(name, str))

    def ask(self, question: str, timeout_s: float = 2.0) -> dict[str, Any]:
        """What a handler says, such as `fr_trace_json?backend=nccl`.

        Raises:
            ControlPlaneError: no control plane, no answer in time, or no JSON object.
        """
        answer = self._ask_json(question, timeout_s, "POST")
        if not isinstance(answer, dict):
            raise ControlPlaneError(f"{question}: not an object")
        return answer

    def _ask_json(self, question: str, timeout_s: float, method: str) -> Any:
        with self._lock:
            body = self._ask(question, timeout_s, method)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as exc:
            raise ControlPlaneError(f"{question}: not JSON: {exc}") from exc

    def _ask(self, question: str, timeout_s: float, method: str) -> bytes:
        name = question or "/handler/"
        earlier = self._unanswered.pop(question, None)
        if earlier is not None and not earlier.has_answered():
            self._unanswered[question] = earlier
            age_s = monotonic() - earlier.since_s
            raise ControlPlaneError(f"{name}: no answer for {age_s:.0f} s; not asked again")
        if earlier is not None:
            earlier.close()
        if not self._path.exists():
            raise ControlPlaneError(
                "torch's control plane is not up (torch.distributed is not imported in the rank)"
            )
        connection = _UnixConnection(self._path, timeout_s)
        try:
            connection.request(method, f"/handler/{question}", headers={"Connection": "close"})
            body = self._read(connection, connection.since_s + timeout_s)
        except TimeoutError as exc:
            self._unanswered[question] = connection
            raise ControlPlaneError(f"{name}: no answer within {timeout_s:g} s") from exc
        except (OSError, http.client.HTTPException, ControlPlaneError) as exc:
            connection.close()
            told = str(exc) if isinstance(exc, ControlPlaneError) else repr(exc)
            raise ControlPlaneError(f"{name}: {told}") from exc
        connection.close()
        return body

    @staticmethod
    def _read(connection: _UnixConnection, deadline_s: float) -> bytes:
        """The body, whole: who sends it in drops is not waited for either."""
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ControlPlaneError(f"HTTP {response.status}")
        parts: list[bytes] = []
        size = 0
        while part := response.read1(_CHUNK_BYTES):
            parts.append(part)
            size += len(part)
            if size > _MAX_BYTES:
                raise ControlPlaneError(f"more than {_MAX_BYTES >> 20} MiB")
            if monotonic() > deadline_s:
                raise TimeoutError
        return b"".join(parts)
