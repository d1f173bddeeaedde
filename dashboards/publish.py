"""The committed dashboards, and their push: what differs is stored in a Grafana, and nothing else.

Theory of operation. Each dashboard is first looked up by its uid. What Grafana has is compared
with ours, without what Grafana counts itself (id, version): equal is `unchanged`, and no version
is made. A Grafana that stores a dashboard in other words (newer ones migrate) is recognised by
the message of its newest version, which holds the digest of what was pushed: nobody has touched
it since, so it is unchanged as well. An update names the version it was compared with: when
somebody saves in between, Grafana answers 412 and their work is not lost unseen.

A dashboard that a Grafana reads from files cannot be pushed; that is said, and the others go on.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from dashboards.client import Grafana, PublishError, RefusedError

# -- the dashboards as JSON: rendered, committed, read, fitted to one site, compared ---------------
# with what a Grafana has.

GRAFANA: Final = Path(__file__).parent / "grafana"
_GRAFANAS_OWN: Final = frozenset({"id", "version", "iteration"})
"""What Grafana counts by itself."""


class CommittedError(Exception):
    """A file is no dashboard; the message is one line."""


def read(folder: Path = GRAFANA) -> list[dict[str, Any]]:
    """The rendered dashboards in a folder, by name.

    Raises:
        CommittedError: there are none, or one is no dashboard.
    """
    boards = []
    for path in sorted(folder.glob("*.json")):
        try:
            board = json.loads(path.read_text())
            uid, title = board["uid"], board["title"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CommittedError(
                f"{path} is no dashboard: {' '.join(str(error).split())}"
            ) from error
        boards.append({**board, "uid": uid, "title": title})
    if not boards:
        raise CommittedError(f"no dashboards in {folder}")
    return boards


def render(*, write: bool) -> list[Path]:
    """Files that do not contain what the Python says; `write`: now they do.

    Raises:
        ImportError: grafana-foundation-sdk is not installed (it is a development extra).
    """
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 - see Raises

    from dashboards import drill_downs, fleet  # noqa: PLC0415

    differing = []
    for board in (
        fleet.fleet(),
        drill_downs.groups(),
        drill_downs.rank(),
        drill_downs.stragglers(),
        drill_downs.incidents(),
        drill_downs.keeper(),
    ):
        path = GRAFANA / f"{board.uid.removeprefix('lightkeeper-')}.json"
        said = _finish(json.loads(JSONEncoder().encode(board.builder().build())))
        text = json.dumps(said, indent=2, sort_keys=True) + "\n"
        if not path.exists() or path.read_text() != text:
            differing.append(path)
            if write:
                path.write_text(text)
    return differing


def _finish(board: dict[str, Any]) -> dict[str, Any]:
    """What the SDK leaves out or adds: ids for panels, no hiding of links and annotations."""
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    board["timezone"] = "browser"
    for shown in (*board["links"], *board["annotations"]["list"]):
        shown.pop("placement", None)
    for variable in board["templating"]["list"]:
        for interval_only in ("auto", "auto_count", "auto_min"):
            variable.pop(interval_only, None)
    return board


def panels_of(board: Mapping[str, Any], *, rows: bool = False) -> Iterator[dict[str, Any]]:
    """Its panels, or (`rows`) the rows that they stand in."""
    return (panel for panel in board.get("panels", []) if (panel["type"] == "row") is rows)


def fitted(board: Mapping[str, Any], monitor_url: str | None) -> dict[str, Any]:
    """With the address of the site's monitor in the variable `monitor_url`."""
    made = copy.deepcopy(dict(board))
    for variable in made.get("templating", {}).get("list", []):
        if monitor_url is not None and variable.get("name") == "monitor_url":
            url = monitor_url.rstrip("/")
            variable["query"] = url
            variable["current"] = {**variable.get("current", {}), "text": url, "value": url}
    return made


def plain(board: Mapping[str, Any]) -> dict[str, Any]:
    """What of a dashboard is anybody's doing."""
    return {key: value for key, value in board.items() if key not in _GRAFANAS_OWN}


def digest(board: Mapping[str, Any]) -> str:
    """Twelve characters that name this content."""
    text = json.dumps(plain(board), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def difference(theirs: Mapping[str, Any] | None, ours: Mapping[str, Any]) -> list[str]:
    """Lines of a unified diff, from what Grafana has to what a push would store."""
    uid = ours["uid"]
    before, after = (
        json.dumps(plain(board), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
        if board is not None
        else []
        for board in (theirs, ours)
    )
    return list(
        difflib.unified_diff(
            before, after, f"grafana/{uid}", f"lightkeeper/{uid}", lineterm="", n=2
        )
    )


# -- the push -------------------------------------------------------------------------------------

_FOLDER_UID: Final = "lightkeeper"
_FOLDER_TITLE: Final = "Lightkeeper"
_CONFLICTS: Final = frozenset({409, 412})
"""What Grafana answers when a folder of that uid or title is there already."""


class PushAction(StrEnum):
    """What a push does, or would do, with a dashboard."""

    CREATE = "create"
    UPDATE = "update"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


_WRITES: Final = frozenset({PushAction.CREATE, PushAction.UPDATE})


@dataclass(frozen=True, slots=True)
class Step:
    """One dashboard of a push."""

    board: dict[str, Any]
    """Ours."""
    action: PushAction
    theirs: dict[str, Any] | None = None
    """Grafana's, None when it has none."""
    version: int = 0
    """Of theirs, or what was stored."""
    url: str = ""
    why: str = ""

    @property
    def uid(self) -> str:
        """Of the dashboard, in any Grafana."""
        return str(self.board["uid"])

    def to_json(self) -> dict[str, Any]:
        """For a script."""
        said = {"uid": self.uid, "title": self.board["title"], "action": str(self.action)}
        return {**said, "version": self.version, "url": self.url, "why": self.why}


@dataclass(frozen=True, slots=True)
class Folder:
    """Where the dashboards go."""

    uid: str
    title: str
    there: bool


class Publisher:
    """Brings dashboards into one Grafana; twice is the same as once."""

    def __init__(self, grafana: Grafana, folder_uid: str | None = None) -> None:
        """`folder_uid`: a folder that is there, nested or not; None: our own, at the top."""
        self._grafana = grafana
        self._folder_uid = folder_uid

    def plan(self, boards: Sequence[dict[str, Any]]) -> tuple[Folder, list[Step]]:
        """What a push would do; looks, and changes nothing.

        Raises:
            PublishError: Grafana refused, broke, or was not there.
        """
        folder = self._find_folder()
        return folder, [self._compare(board, folder) for board in boards]

    def carry_out(
        self, folder: Folder, steps: Sequence[Step], tell: Callable[[Step], None]
    ) -> list[Step]:
        """Store what differs, and tell each as it is done; how each ended.

        Raises:
            PublishError: Grafana broke or was not there. A dashboard that it refuses is a step
                with that action, and the others go on.
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
        """A folder of our title under another uid: somebody's own, or a provisioner's."""
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
            # somebody made it meanwhile, or the title is taken where we may not look
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
    """What the version history says of a push of this content."""
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
