"""Pushes the committed dashboards into a running Grafana; twice is the same as once.

The client is grafana-api: archived upstream since 2022, with known traps (it leaks requests'
exceptions, and raises TypeError or a JSON error on answers that are not what it expects). It
is used behind this one seam, so that it can be replaced here; every failure leaves as a
`PublishError` of one line. File provisioning (`grafana/provisioning/`) needs no push at all.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaException
from grafana_api.grafana_face import GrafanaFace

FOLDER_UID: Final = "lightkeeper"
FOLDER_TITLE: Final = "Lightkeeper"
_TIMEOUT_S: Final = 10.0
_TRIES: Final = 3
_CONFLICTS: Final = frozenset({409, 412})
"""What Grafana answers when a folder of that uid or title is there already."""


class PublishError(Exception):
    """The push failed; the message is one line and says what to do."""


class GrafanaPublisher:
    """One Grafana, reached with a service account token."""

    def __init__(
        self, url: str, token: str, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise PublishError(f"{url!r} is not an http(s):// URL")
        try:
            port = parts.port
        except ValueError as error:
            raise PublishError(f"{url!r}: {error}") from error
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        path = parts.path.strip("/")
        self._url = url
        self._sleep = sleep
        self._face = GrafanaFace(
            auth=token,
            host=host,
            port=port,
            protocol=parts.scheme,
            url_path_prefix=f"{path}/" if path else "",
            timeout=_TIMEOUT_S,
        )

    def push(self, boards: Sequence[dict[str, Any]]) -> list[str]:
        """Create or replace the folder and the dashboards; where each is to be seen.

        Raises:
            PublishError: Grafana refused, broke, or was not there.
        """
        self._ensure_folder()
        return [self._push_one(board) for board in boards]

    def _ensure_folder(self) -> None:
        create = self._face.folder.create_folder
        try:
            self._call("create the folder", lambda: create(FOLDER_TITLE, FOLDER_UID))
        except _RefusedError as error:
            if error.status not in _CONFLICTS:
                raise
            self._call("find the folder", lambda: self._face.folder.get_folder(FOLDER_UID))

    def _push_one(self, board: dict[str, Any]) -> str:
        body = {
            "dashboard": {**board, "id": None},
            "folderUid": FOLDER_UID,
            "overwrite": True,
            "message": "pushed by lightkeeper",
        }
        answer = self._call(
            f"store dashboard {board['uid']}",
            lambda: self._face.dashboard.update_dashboard(body),
        )
        path = answer.get("url") if isinstance(answer, dict) else None
        if not isinstance(path, str):
            raise PublishError(f"{self._url} did not answer as Grafana does: {str(answer)[:100]}")
        return self._url.rstrip("/") + path

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """`call`, tried again on answers that say "later", with every failure translated."""
        for left in reversed(range(_TRIES)):
            try:
                return call()
            except GrafanaClientError as error:
                raise self._refused(what, error) from error
            except (GrafanaException, requests.ConnectionError, requests.Timeout) as error:
                if not left:
                    raise PublishError(f"cannot {what} at {self._url}: {_line(error)}") from error
            except (requests.RequestException, ValueError, TypeError, LookupError) as error:
                raise PublishError(
                    f"cannot {what}: {self._url} did not answer as Grafana does ({_line(error)})"
                ) from error
            self._sleep(0.5 * 2 ** (_TRIES - 1 - left))
        raise AssertionError("not reached")

    def _refused(self, what: str, error: GrafanaClientError) -> _RefusedError:
        hint = {
            401: "; is the token right and not expired?",
            403: "; the service account needs the Editor role",
            404: "; is this the root URL of Grafana?",
        }.get(error.status_code, "")
        return _RefusedError(
            f"cannot {what} at {self._url}: {_line(error)}{hint}", status=error.status_code
        )


class _RefusedError(PublishError):
    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message)
        self.status = status


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_token(path: Path) -> str:
    """The token in a file; never from the command line, where everybody sees it.

    Raises:
        PublishError: there is none.
    """
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise PublishError(f"token file {path}: {_line(error)}") from error
    if not token or not token.isascii() or any(letter.isspace() for letter in token):
        raise PublishError(f"token file {path} does not hold one token")
    return token


def committed(folder: Path) -> list[dict[str, Any]]:
    """The rendered dashboards in a folder, by name.

    Raises:
        PublishError: there are none, or one is no dashboard.
    """
    boards = []
    for path in sorted(folder.glob("*.json")):
        try:
            board = json.loads(path.read_text())
            uid = board["uid"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise PublishError(f"{path} is no dashboard: {_line(error)}") from error
        boards.append({**board, "uid": uid})
    if not boards:
        raise PublishError(f"no dashboards in {folder}")
    return boards
