"""The dashboards as committed: read, fitted to one site, compared with what a Grafana has. Pure
but for the reading.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

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
    before = [] if theirs is None else _lines(theirs)
    return list(
        difflib.unified_diff(
            before, _lines(ours), f"grafana/{uid}", f"lightkeeper/{uid}", lineterm="", n=2
        )
    )


def _lines(board: Mapping[str, Any]) -> list[str]:
    return json.dumps(plain(board), indent=2, sort_keys=True, ensure_ascii=False).splitlines()
