"""The committed dashboards, as JSON: read, fitted to one site."""

from __future__ import annotations

import copy
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from lightkeeper.dashboards.selectors import MONITOR_URL, RUNBOOKS

GRAFANA: Final = Path(__file__).parent / "grafana"
GRAFANA_URL: Final = "http://127.0.0.1:3000"
"""To which alerts link; `export --grafana-url` puts yours."""
_RULE: Final = """\
# Written by `lightkeeper dashboards export` from dashboards/prometheus/: edit these.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: lightkeeper
  namespace: lightkeeper
spec:
  groups:
"""


class CommittedError(Exception):
    """A file is not a dashboard; the message is one line."""


def read_boards(folder: Path = GRAFANA) -> list[dict[str, Any]]:
    """The rendered dashboards in a folder, by name.

    Raises:
        CommittedError: there are none, or one is not a dashboard.
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


def panels_of(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Its panels, without the titles of rows."""
    return (panel for panel in board.get("panels", []) if panel["type"] != "row")


def fitted(
    board: Mapping[str, Any], monitor_url: str | None, runbooks_url: str | None = None
) -> dict[str, Any]:
    """With the site's monitor in the variable `monitor_url`, and a link to its runbooks."""
    made = copy.deepcopy(dict(board))
    for variable in made.get("templating", {}).get("list", []):
        if monitor_url is not None and variable.get("name") == "monitor_url":
            url = monitor_url.rstrip("/")  # instead of what the monitor itself says
            variable |= {"type": "textbox", "query": url, "current": {"text": url, "value": url}}
    for link in made.get("links", []) if runbooks_url is not None else ():
        link["url"] = runbooks_url if link.get("url") == RUNBOOKS else link.get("url")
    return made


def rule_files(
    monitor_url: str | None, runbooks_url: str | None = None, grafana_url: str | None = None,
    folder: Path = GRAFANA.parent / "prometheus",
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Name and text of each file with rules, for Prometheus if no other folder is said: runbooks at
    the given page (default: the monitor's own), dashboards in the given Grafana.
    """
    page = runbooks_url or f"{(monitor_url or MONITOR_URL).rstrip('/')}/runbooks"
    for path in sorted(folder.glob("*.y*ml")):
        text = path.read_text().replace(f"{MONITOR_URL}/runbooks#", f"{page}#")
        yield path.name, text.replace(GRAFANA_URL, (grafana_url or GRAFANA_URL).rstrip("/"))


def manifests(
    boards: Iterable[Mapping[str, Any]], rules: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Name and text of each file for Kubernetes: `rules` (files by name) for the Prometheus
    operator, and a ConfigMap for each dashboard, with the label that Grafana's sidecar looks for.
    """
    groups = (rules[name].partition("\ngroups:\n")[2] for name in ("rules.yml", "alerts.yml"))
    yield "rules.yaml", _RULE + textwrap.indent("".join(groups), "  ")
    maps = [
        {
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": board["uid"], "namespace": "lightkeeper",
                "labels": {"grafana_dashboard": "1"},
                "annotations": {"grafana_folder": "Lightkeeper"},
            },
            "data": {f"{board['uid']}.json": json.dumps(board)},
        }
        for board in boards
    ]  # fmt: skip
    yield "dashboards.yaml", json.dumps({"apiVersion": "v1", "kind": "List", "items": maps})


def printable(text: str) -> str:
    """Text of a server, of which nothing moves a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
