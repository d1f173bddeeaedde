"""The push: stores in a Grafana what differs from the committed dashboards, and nothing else.

Theory of operation. Each dashboard is first looked up by its uid. Grafana's is compared with ours,
without the keys that Grafana sets itself (id, version): if equal it is `unchanged`, and no version
is made. A Grafana that stores a dashboard in another form (newer ones migrate) is recognised by the
message of its newest version, which holds the digest of what was pushed: nobody has changed it
since, so it is unchanged too. An update names the version it was compared with: if somebody saves
in between, Grafana answers 412 and their work is not lost.

A dashboard that Grafana reads from a file cannot be pushed: it is reported, the others are pushed.

The Grafana client is grafana-api: archived upstream since 2022, with known traps (it leaks
requests' exceptions, and raises TypeError or a JSON error on unexpected answers). Here every
failure becomes a `PublishError` of one line, so it can be replaced in this file. Uids only: routes
by numeric ids are off since Grafana 13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import requests
from grafana_api.grafana_api import GrafanaClientError, GrafanaException
from grafana_api.grafana_face import GrafanaFace

from lightkeeper.dashboards.committed import digest, plain

_TIMEOUT_S: Final = 10.0
_TRIES: Final = 3


class PublishError(Exception):
    """The push failed; the message is one line and says what to do."""


class RefusedError(PublishError):
    """Grafana refused the request."""

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
        """Grafana's `{"dashboard": ..., "meta": ...}`; None: it has none."""
        get = self._face.dashboard.get_dashboard
        answer = self._absent_is_none(f"look at dashboard {uid}", lambda: get(_part(uid)))
        return None if answer is None else self._with(answer, "dashboard", dict)

    def last_message(self, uid: str) -> str | None:
        """The message of the dashboard's newest version; None: unknown."""
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
        """The folder, at any depth; None: there is none."""
        get = self._face.folder.get_folder
        answer = self._absent_is_none("look at the folder", lambda: get(_part(uid)))
        return None if answer is None else self._with(answer, "uid", str)

    def folders(self) -> list[dict[str, Any]]:
        """The top-level folders."""
        answer = self._call("list the folders", lambda: self._face.api.GET("/folders?limit=1000"))
        return [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []

    def create_folder(self, title: str, uid: str) -> None:
        """At the top level.

        Raises:
            RefusedError: among others 409 or 412, if its uid or title is taken.
        """
        create = self._face.folder.create_folder
        self._call("create the folder", lambda: create(title, uid))

    def absolute(self, path: str) -> str:
        """The URL for a browser of Grafana's `path`, which includes Grafana's own prefix."""
        return self._root + path

    def _absent_is_none(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return self._call(what, call)
        except RefusedError as error:
            # a proxy's or another server's page says nothing about a uid
            if error.status == 404 and "message" in error.body:
                return None
            raise

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """`call`, with retries on temporary failures, and every failure translated."""
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
    """For a missing answer or a temporary failure."""
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

_FOLDER_UID: Final = "lightkeeper"
_FOLDER_TITLE: Final = "Lightkeeper"
_CONFLICTS: Final = frozenset({409, 412})
"""What Grafana answers when a folder with that uid or title exists."""


class PushAction(StrEnum):
    """What a push does, or would do, with a dashboard."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


_WRITES: Final = frozenset({PushAction.CREATE, PushAction.UPDATE})


@dataclass(frozen=True, slots=True)
class Step:
    board: dict[str, Any]
    """Ours."""
    action: PushAction
    theirs: dict[str, Any] | None = None
    """Grafana's; None when it has none."""
    version: int = 0
    """Of theirs, or as stored."""
    url: str = ""
    why: str = ""

    @property
    def uid(self) -> str:
        """Of the dashboard, in any Grafana."""
        return str(self.board["uid"])

    def to_json(self) -> dict[str, Any]:
        said = {"uid": self.uid, "title": self.board["title"], "action": str(self.action)}
        return {**said, "version": self.version, "url": self.url, "why": self.why}


@dataclass(frozen=True, slots=True)
class Folder:
    uid: str
    title: str
    there: bool


class Publisher:
    """Pushes dashboards to one Grafana; idempotent."""

    def __init__(self, grafana: Grafana, folder_uid: str | None = None) -> None:
        """`folder_uid`: an existing folder at any depth; None: our own, at the top."""
        self._grafana = grafana
        self._folder_uid = folder_uid

    def plan(self, boards: Sequence[dict[str, Any]]) -> tuple[Folder, list[Step]]:
        """What a push would do; changes nothing.

        Raises:
            PublishError: Grafana refused, failed, or was unreachable.
        """
        folder = self._find_folder()
        return folder, [self._compare(board, folder) for board in boards]

    def carry_out(
        self, folder: Folder, steps: Sequence[Step], tell: Callable[[Step], None]
    ) -> list[Step]:
        """Store what differs; report each step as it is done, and return all.

        Raises:
            PublishError: Grafana failed or was unreachable. A dashboard that it refuses is a step
                with that action, and the others continue.
        """
        if not folder.there and any(step.action in _WRITES for step in steps):
            folder = self._create_folder(folder)
        ended = []
        for step in steps:
            done = self._store(step, folder) if step.action in _WRITES else step
            tell(done)
            ended.append(done)
        return ended

    # -- looking ---------------------------------------------------------------------------------

    def _find_folder(self) -> Folder:
        wanted = self._folder_uid or _FOLDER_UID
        answer = self._grafana.folder(wanted)
        if answer is not None:
            return _folder(answer)
        if self._folder_uid is not None:
            raise PublishError(
                f"there is no folder with uid {wanted!r} at {self._grafana.url}: its address "
                "in a browser ends with the uid"
            )
        return self._namesake() or Folder(_FOLDER_UID, _FOLDER_TITLE, there=False)

    def _namesake(self) -> Folder | None:
        """A folder with our title and another uid: a user's, or a provisioner's."""
        listed = self._grafana.folders()
        return next((_folder(row) for row in listed if row.get("title") == _FOLDER_TITLE), None)

    def _compare(self, board: dict[str, Any], folder: Folder) -> Step:
        answer = self._grafana.dashboard(board["uid"])
        if answer is None:
            return Step(board, PushAction.CREATE)
        theirs = answer["dashboard"]
        meta = answer["meta"] if isinstance(answer.get("meta"), dict) else {}
        same = (
            plain(theirs) == plain(board)
            or self._grafana.last_message(board["uid"]) == _message_of(board)
        )  # fmt: skip
        moves = meta.get("folderUid", folder.uid) != folder.uid
        match bool(meta.get("provisioned")), same:
            case True, True:
                action, why = PushAction.UNCHANGED, "provisioned from a file"
            case True, False:
                file = str(meta.get("provisionedExternalId") or "")
                action, why = PushAction.REFUSED, _provisioned(file)
            case False, True if not moves:
                action, why = PushAction.UNCHANGED, ""
            case _:
                action = PushAction.UPDATE
                why = f"moves into the folder {folder.title}" if moves else ""
        return Step(
            board, action, theirs,
            version=_whole(theirs.get("version")) or _whole(meta.get("version")),
            url=self._grafana.absolute(str(meta.get("url") or f"/d/{board['uid']}")),
            why=why,
        )  # fmt: skip

    # -- changing --------------------------------------------------------------------------------

    def _create_folder(self, folder: Folder) -> Folder:
        try:
            self._grafana.create_folder(folder.title, folder.uid)
        except RefusedError as error:
            if error.status not in _CONFLICTS:
                raise
            # somebody made it meanwhile, or the title is taken where we may not read
            answer = self._grafana.folder(folder.uid)
            taken = _folder(answer) if answer is not None else self._namesake()
            if taken is None:
                raise PublishError(
                    f"{error}; a folder {folder.title!r} is there that this token may not see: "
                    "give its uid with --folder-uid"
                ) from error
            return taken
        return replace(folder, there=True)

    def _store(self, step: Step, folder: Folder) -> Step:
        body = {
            "dashboard": {**step.board, "id": None, "version": step.version},
            "folderUid": folder.uid,
            "overwrite": False,
            "message": _message_of(step.board),
        }
        try:
            answer = self._grafana.store(body)
        except RefusedError as error:
            if error.status in {401, 403}:
                raise  # the same for all of them
            return replace(step, action=PushAction.REFUSED, why=_refusal(error, folder))
        url = self._grafana.absolute(answer["url"])
        return replace(step, version=_whole(answer.get("version")), url=url)


def _message_of(board: dict[str, Any]) -> str:
    """The version message for a push of this content."""
    return f"pushed by lightkeeper ({digest(board)})"


def _refusal(error: RefusedError, folder: Folder) -> str:
    status = error.body.get("status")
    if status == "version-mismatch":
        return "somebody saved it since we looked: look at their change with --diff, push again"
    if status == "name-exists":
        return f"the folder {folder.title} has another dashboard of this title: rename or remove it"
    if "provisioned" in str(error.body.get("message", "")).lower():
        return _provisioned("")
    return str(error)


def _provisioned(file: str) -> str:
    of = f" ({file})" if file else ""
    return f"this Grafana reads it from a file{of}: change the file, or stop provisioning it"


def _folder(answer: dict[str, Any]) -> Folder:
    return Folder(str(answer.get("uid")), str(answer.get("title")), there=True)


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0
