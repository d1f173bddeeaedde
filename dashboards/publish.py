"""The push: stores in a Grafana the dashboards that it does not have as we would store them.

Theory of operation. A version that a push made says so in its message, with the digest of what was
pushed. If a dashboard's newest version has our digest, nobody has changed it since, in whatever
form this Grafana stores it: it is `unchanged`. Else it is stored as the version after the one that
was looked at: if somebody saves in between, Grafana answers 412 and their work is not lost. What
Grafana reads from a file cannot be pushed: that is said, and the others are pushed.

The Grafana client is grafana-api: archived upstream since 2022, with known traps (it leaks
requests' exceptions, and raises TypeError or a JSON error on unexpected answers). Here every
failure becomes a `PublishError` of one line, so it can be replaced in this file. Uids only: routes
by numeric ids are off since Grafana 13.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaException
from grafana_api.grafana_face import GrafanaFace
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

_TIMEOUT_S: Final = 10.0
_TRIES: Final = 3
_FOLDER_UID: Final = "lightkeeper"
_FOLDER_TITLE: Final = "Lightkeeper"
_HINTS: Final = {
    401: "; is the token right and not expired?",
    403: "; the service account needs the Editor role",
    404: "; is this the root URL of Grafana?",
}


class PublishError(Exception):
    """The push failed; the message is one line and says what to do."""


class RefusedError(PublishError):
    """Grafana refused the request."""

    def __init__(self, message: str, status: int, body: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = body if isinstance(body, dict) else {}


class Grafana:
    """One Grafana, reached with a service account's token."""

    def __init__(self, url: str, token: str, *, pause_s: float = 0.5) -> None:
        """`pause_s`: before the second try of a request; it doubles."""
        parts = urlsplit(url)
        try:
            is_web = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
        except ValueError:  # the port
            is_web = False
        if not is_web:
            raise PublishError(f"{url!r} is not an http(s):// URL")
        host, path = parts.netloc.rpartition("@")[2], parts.path.strip("/")
        self.url, self._root = url.rstrip("/"), f"{parts.scheme}://{host}"
        self._face = GrafanaFace(
            auth=token, host=host, protocol=parts.scheme, timeout=_TIMEOUT_S,
            url_path_prefix=f"{path}/" if path else "",
        )  # fmt: skip
        again = Retry(
            _TRIES - 1, backoff_factor=pause_s, status_forcelist=range(500, 600),
            raise_on_status=False,
        )  # fmt: skip
        self._face.api.s.mount(f"{parts.scheme}://", HTTPAdapter(max_retries=again))

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """Grafana's `{"dashboard": ..., "meta": ...}`; None: it has none."""
        get = self._face.dashboard.get_dashboard
        return self._found(f"look at dashboard {uid}", "dashboard", lambda: get(_part(uid)))

    def last_message(self, uid: str) -> str | None:
        """The message of the dashboard's newest version; None: unknown."""
        path = f"/dashboards/uid/{_part(uid)}/versions?limit=1"
        try:
            answer = self._call("read versions", lambda: self._face.api.GET(path))
            # 11 and newer wrap the list
            listed: Any = answer.get("versions") if isinstance(answer, dict) else answer
            return str(listed[0]["message"])
        except (PublishError, LookupError, TypeError):
            return None

    def store(self, body: dict[str, Any]) -> str:
        """Create or replace a dashboard (`POST /api/dashboards/db`); returns its page."""
        what, put = "store a dashboard", self._face.dashboard.update_dashboard
        return f"{self._root}{self._with(self._call(what, lambda: put(body)), 'url')['url']}"

    def folder(self, uid: str) -> bool:
        """True if there is such a folder, at any depth."""
        get = self._face.folder.get_folder
        return self._found("look at the folder", "uid", lambda: get(_part(uid))) is not None

    def create_folder(self, title: str, uid: str) -> None:
        """At the top level."""
        create = self._face.folder.create_folder
        self._call(f"create the folder {title}", lambda: create(title, uid))

    def _found(self, what: str, key: str, call: Callable[[], Any]) -> dict[str, Any] | None:
        try:
            return self._with(self._call(what, call), key)
        except RefusedError as error:
            # a proxy's or another server's page says nothing about a uid
            if error.status == 404 and "message" in error.body:
                return None
            raise

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except GrafanaClientError as error:
            said = f"cannot {what} at {self.url}: {_line(error)}"
            hint = _HINTS.get(error.status_code, "")
            raise RefusedError(said + hint, error.status_code, error.response) from error
        except (GrafanaException, requests.ConnectionError, requests.Timeout) as error:
            why = _line(error) if isinstance(error, GrafanaException) else "it cannot be reached"
            raise PublishError(f"cannot {what} at {self.url}: {why}") from error
        except (requests.RequestException, ValueError, TypeError, LookupError) as error:
            said = f"cannot {what}: {self.url} did not answer as Grafana does ({_line(error)})"
            raise PublishError(said) from error

    def _with(self, answer: Any, key: str) -> dict[str, Any]:
        """The answer, if it holds what Grafana's does."""
        if isinstance(answer, dict) and key in answer:
            return answer
        raise PublishError(f"{self.url} did not answer as Grafana does: {str(answer)[:100]}")


def _part(uid: str) -> str:
    return quote(uid, safe="")


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def read_grafana_token(path: Path) -> str:
    """The token in a file; never on the command line, where everybody sees it.

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


# -- the push -------------------------------------------------------------------------------------


class Pushed(NamedTuple):
    """What became of a dashboard, or would."""

    uid: str
    title: str
    action: str
    """`create`, `update`, `unchanged`, `refused`."""
    url: str = ""
    why: str = ""


def push_boards(
    grafana: Grafana, boards: Sequence[dict[str, Any]], folder_uid: str | None = None,
    *, dry_run: bool = False,
) -> Iterator[Pushed]:  # fmt: skip
    """Store what differs, one dashboard after the other, into the folder: one that is there, or
    (None) our own, made if it is missing.

    Raises:
        PublishError: Grafana failed, could not be reached, or refuses all of it.
    """
    folder = folder_uid or _FOLDER_UID
    if not grafana.folder(folder):
        if folder_uid is not None:
            raise PublishError(
                f"there is no folder with uid {folder!r} at {grafana.url}: its address in a "
                "browser ends with the uid"
            )
        if not dry_run:
            grafana.create_folder(_FOLDER_TITLE, folder)
    for board in boards:
        yield _push(grafana, board, folder, dry_run=dry_run)


def _push(grafana: Grafana, board: dict[str, Any], folder: str, *, dry_run: bool) -> Pushed:
    digest = hashlib.sha256(json.dumps(board, sort_keys=True).encode()).hexdigest()[:12]
    uid, message = board["uid"], f"pushed by lightkeeper ({digest})"
    said = Pushed(uid, board["title"], "create")
    answer = grafana.dashboard(uid) or {"dashboard": {}}
    if theirs := answer["dashboard"]:
        meta = answer.get("meta") or {}
        if meta.get("provisioned"):
            return said._replace(action="refused", why=_provisioned(meta))
        same = grafana.last_message(uid) == message and meta.get("folderUid", folder) == folder
        said = said._replace(action="unchanged" if same else "update")
    if dry_run or said.action == "unchanged":
        return said
    body = {
        "dashboard": {**board, "id": None, "version": theirs.get("version", 0)},
        "folderUid": folder, "overwrite": False, "message": message,
    }  # fmt: skip
    try:
        return said._replace(url=grafana.store(body))
    except RefusedError as error:
        if error.status in {401, 403}:
            raise  # the same for all of them
        return said._replace(action="refused", why=_refusal(error))


def _refusal(error: RefusedError) -> str:
    status = error.body.get("status")
    if status == "version-mismatch":
        return "somebody saved it since we looked: push again to replace it"
    if status == "name-exists":
        return "the folder has another dashboard of this title: rename or remove it"
    return _provisioned({}) if "provisioned" in str(error.body.get("message")) else str(error)


def _provisioned(meta: dict[str, Any]) -> str:
    file = f" ({meta['provisionedExternalId']})" if meta.get("provisionedExternalId") else ""
    return f"this Grafana reads it from a file{file}: change the file, or stop provisioning it"
