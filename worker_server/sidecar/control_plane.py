"""Client of torch's control plane in the rank: HTTP over a unix socket.

Only handlers that need no GIL are called, so an abandoned request never piles up in the rank.
"""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from typing import Any

_MAX_BYTES = 64 * 1024 * 1024


class ControlPlaneError(Exception):
    """Torch's control plane did not answer; the message says why, in one line."""


class SilentError(ControlPlaneError):
    """It took the question and did not answer in time: the next one would wait as long."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("rank", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class ControlPlane:
    """Asks the control plane that listens on `path`, when there is one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def flight_record(self, timeout_s: float = 2.0) -> dict[str, Any]:
        """Torch's own record, untouched.

        Raises:
            ControlPlaneError: no control plane, no answer in time, or not JSON.
        """
        return self._ask_json("fr_trace_json", timeout_s)

    def wait_counters(self, timeout_s: float = 1.0) -> dict[str, Any]:
        """Torch's wait counters.

        Raises:
            ControlPlaneError: no control plane, no answer in time, or not JSON.
        """
        return self._ask_json("wait_counter_values", timeout_s)

    def _ask_json(self, handler: str, timeout_s: float) -> dict[str, Any]:
        try:
            answer = json.loads(self._ask(handler, timeout_s))
        except (ValueError, RecursionError) as exc:
            raise ControlPlaneError(f"{handler}: not JSON: {exc}") from exc
        if not isinstance(answer, dict):
            raise ControlPlaneError(f"{handler}: not an object")
        return answer

    def _ask(self, handler: str, timeout_s: float) -> bytes:
        if not self._path.exists():
            raise ControlPlaneError(
                "torch's control plane is not up (torch.distributed is not imported in the rank)"
            )
        connection = _UnixConnection(self._path, timeout_s)
        try:
            connection.request("POST", f"/handler/{handler}", headers={"Connection": "close"})
            response = connection.getresponse()
            body = response.read(_MAX_BYTES)
        except TimeoutError as exc:
            raise SilentError(f"{handler}: no answer within {timeout_s:g} s") from exc
        except (OSError, http.client.HTTPException) as exc:
            raise ControlPlaneError(f"{handler}: {exc!r}") from exc
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise ControlPlaneError(f"{handler}: HTTP {response.status}")
        return body
