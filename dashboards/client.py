"""The little of Grafana's HTTP API that a push needs, behind one seam.

The client is grafana-api: archived upstream since 2022, with known traps (it leaks requests'
exceptions, and raises TypeError or a JSON error on answers that are not what it expects). Here
every failure becomes a `PublishError` of one line, so it can be replaced in this file. Uids
only: routes by numeric ids are off since Grafana 13.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaException
from grafana_api.grafana_face import GrafanaFace

_TIMEOUT_S: Final = 10.0
_TRIES: Final = 3


class PublishError(Exception):
    """The push failed; the message is one line and says what to do."""


class RefusedError(PublishError):
    """Grafana understood and said no."""

    def __init__(self, message: str, *, status: int, body: Any = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = body if isinstance(body, dict) else {}


class Grafana:
    """One Grafana, reached with a service account's token."""

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
        self.url = url.rstrip("/")
        self._root = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._sleep = sleep
        self._face = GrafanaFace(
            auth=token,
            host=host,
            port=port,
            protocol=parts.scheme,
            url_path_prefix=f"{path}/" if path else "",
            timeout=_TIMEOUT_S,
        )

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """`{"dashboard": ..., "meta": ...}` as Grafana has it; None: it has none."""
        get = self._face.dashboard.get_dashboard
        answer = self._absent_is_none(f"look at dashboard {uid}", lambda: get(_part(uid)))
        return None if answer is None else self._with(answer, "dashboard", dict)

    def last_message(self, uid: str) -> str | None:
        """What was said when the dashboard's newest version was stored; None: not told."""
        path = f"/dashboards/uid/{_part(uid)}/versions?limit=1"
        try:
            answer = self._call("read versions", lambda: self._face.api.GET(path))
        except PublishError:
            return None
        listed = answer.get("versions") if isinstance(answer, dict) else answer  # 11 and newer
        newest = listed[0] if isinstance(listed, list) and listed else None
        message = newest.get("message") if isinstance(newest, dict) else None
        return message if isinstance(message, str) else None

    def store(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create or replace a dashboard: `POST /api/dashboards/db`."""
        uid = body["dashboard"]["uid"]
        answer = self._call(
            f"store dashboard {uid}", lambda: self._face.dashboard.update_dashboard(body)
        )
        return self._with(answer, "url", str)

    def folder(self, uid: str) -> dict[str, Any] | None:
        """The folder, wherever it is nested; None: there is none."""
        get = self._face.folder.get_folder
        answer = self._absent_is_none("look at the folder", lambda: get(_part(uid)))
        return None if answer is None else self._with(answer, "uid", str)

    def folders(self) -> list[dict[str, Any]]:
        """The folders at the top."""
        answer = self._call("list the folders", lambda: self._face.api.GET("/folders?limit=1000"))
        return [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []

    def create_folder(self, title: str, uid: str) -> None:
        """At the top.

        Raises:
            RefusedError: among others 409 or 412, when its uid or title is taken.
        """
        create = self._face.folder.create_folder
        self._call("create the folder", lambda: create(title, uid))

    def absolute(self, path: str) -> str:
        """Where a browser finds what Grafana calls `path`: it says its own prefix itself."""
        return self._root + path

    def _absent_is_none(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return self._call(what, call)
        except RefusedError as error:
            # a proxy's or another server's page is no word of Grafana's about a uid
            if error.status == 404 and "message" in error.body:
                return None
            raise

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """`call`, tried again on answers that say "later", with every failure translated."""
        for left in reversed(range(_TRIES)):
            try:
                return call()
            except GrafanaClientError as error:
                raise self._refused(what, error) from error
            except (GrafanaException, requests.ConnectionError, requests.Timeout) as error:
                if not left:
                    raise PublishError(f"cannot {what} at {self.url}: {_why(error)}") from error
            except (requests.RequestException, ValueError, TypeError, LookupError) as error:
                raise PublishError(
                    f"cannot {what}: {self.url} did not answer as Grafana does ({_line(error)})"
                ) from error
            self._sleep(0.5 * 2 ** (_TRIES - 1 - left))
        raise AssertionError("not reached")

    def _refused(self, what: str, error: GrafanaClientError) -> RefusedError:
        hint = {
            401: "; is the token right and not expired?",
            403: "; the service account needs the Editor role",
            404: "; is this the root URL of Grafana?",
        }.get(error.status_code, "")
        return RefusedError(
            f"cannot {what} at {self.url}: {_line(error)}{hint}",
            status=error.status_code,
            body=error.response,
        )

    def _with(self, answer: Any, key: str, kind: type) -> dict[str, Any]:
        """The answer, if it holds what Grafana's does."""
        if isinstance(answer, dict) and isinstance(answer.get(key), kind):
            return answer
        raise PublishError(f"{self.url} did not answer as Grafana does: {str(answer)[:100]}")


def _why(error: Exception) -> str:
    """Of no answer, or of one that says "later"."""
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    if not isinstance(error, requests.ConnectionError):
        return _line(error)
    return "there is no host of that name" if "resolve" in str(error) else "nobody listens there"


def _part(uid: str) -> str:
    return quote(uid, safe="")


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
