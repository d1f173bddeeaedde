"""The push: stores in a Grafana the dashboards that it does not have as we would store them.

Theory of operation. A version that a push made says so in its message, with the digest of what was
pushed. If a dashboard's newest version has our digest, nobody has changed it since, in whatever
form this Grafana stores it: it is `unchanged`. Else it is stored as the version after the one that
was looked at: if somebody saves in between, Grafana answers 412 and their work is not lost. What
Grafana reads from a file cannot be pushed: that is said, and the others are pushed.

Every failure is a `PublishError` of one line. Uids only: routes by numeric ids are off since
Grafana 13.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import requests
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
        host = parts.netloc.rpartition("@")[2]
        self.url, self._root = url.rstrip("/"), f"{parts.scheme}://{host}"
        self._api = f"{self._root}{parts.path.rstrip('/')}/api"

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            request.headers["Authorization"] = f"Bearer {token}"
            return request

        self._session = requests.Session()
        self._session.auth = authorize  # a header alone would give way to what .netrc says
        again = Retry(
            _TRIES - 1, backoff_factor=pause_s, status_forcelist=range(500, 600),
            raise_on_status=False,
        )  # fmt: skip
        self._session.mount(f"{parts.scheme}://", HTTPAdapter(max_retries=again))

    def dashboard(self, uid: str) -> dict[str, Any] | None:
        """Grafana's `{"dashboard": ..., "meta": ...}`; None: it has none."""
        path = f"/dashboards/uid/{_part(uid)}"
        return self._found(f"look at dashboard {uid}", path, "dashboard")

    def last_message(self, uid: str) -> str | None:
        """The message of the dashboard's newest version; None: unknown."""
        try:
            answer = self._ask("read versions", f"/dashboards/uid/{_part(uid)}/versions?limit=1")
            # 11 and newer wrap the list
            listed: Any = answer.get("versions") if isinstance(answer, dict) else answer
            return str(listed[0]["message"])
        except (PublishError, LookupError, TypeError):
            return None

    def store(self, body: dict[str, Any]) -> str:
        """Create or replace a dashboard (`POST /api/dashboards/db`); returns its page."""
        stored = self._with(self._ask("store a dashboard", "/dashboards/db", body), "url")
        return f"{self._root}{stored['url']}"

    def folder(self, uid: str) -> bool:
        """True if there is such a folder, at any depth."""
        return self._found("look at the folder", f"/folders/{_part(uid)}", "uid") is not None

    def create_folder(self, title: str, uid: str) -> None:
        """At the top level."""
        body = {"title": title, "uid": uid}
        self._with(self._ask(f"create the folder {title}", "/folders", body), "uid")

    def _found(self, what: str, path: str, key: str) -> dict[str, Any] | None:
        try:
            return self._with(self._ask(what, path), key)
        except RefusedError as error:
            # a proxy's or another server's page says nothing about a uid
            if error.status == 404 and "message" in error.body:
                return None
            raise

    def _ask(self, what: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or to a POST of a body: JSON, or the text of another server."""
        method, url = "GET" if body is None else "POST", self._api + path
        try:
            said = self._session.request(method, url, json=body, timeout=_TIMEOUT_S)
        except requests.RequestException as error:
            raise PublishError(f"cannot {what} at {self.url}: it cannot be reached") from error
        try:
            answer = said.json()
        except ValueError:
            answer = said.text
        if said.ok:
            return answer
        message = answer.get("message", "") if isinstance(answer, dict) else said.text
        why = f"cannot {what} at {self.url}: it answers {said.status_code}: {_line(message)}"
        if said.status_code >= 500:
            raise PublishError(why)
        raise RefusedError(why + _HINTS.get(said.status_code, ""), said.status_code, answer)

    def _with(self, answer: Any, key: str) -> dict[str, Any]:
        """The answer, if it holds what Grafana's does."""
        if isinstance(answer, dict) and key in answer:
            return answer
        raise PublishError(f"{self.url} did not answer as Grafana does: {_line(answer)[:100]}")


def _part(uid: str) -> str:
    return quote(uid, safe="")


def _line(said: object) -> str:
    return " ".join(str(said).split())[:200]


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
    said = Pushed(uid, "create")
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
