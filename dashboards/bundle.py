"""The dashboards as files: what there is, and a folder that a Grafana can be given."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dashboards import committed
from dashboards.render import panels_of


def show(*, as_json: bool) -> int:
    """Print every dashboard with what it answers."""
    rows = [_row(board) for board in committed.read()]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(f"{row['uid']}  {row['title']}  ({row['panels']} panels)")
        print(f"    {row['about']}")
    return 0


def _row(board: dict[str, Any]) -> dict[str, Any]:
    panels = [panel for panel in panels_of(board) if panel["type"] != "row"]
    return {
        "uid": board["uid"],
        "title": board["title"],
        "about": board["description"],
        "panels": len(panels),
        "questions": [panel["title"] for panel in panels_of(board) if panel["type"] == "row"],
    }


def export(folder: Path, monitor_url: str | None) -> int:
    """Write dashboards and provisioning files for a Grafana to read; files there are replaced."""
    boards = folder / "dashboards"
    boards.mkdir(parents=True, exist_ok=True)
    for board in committed.read():
        path = boards / f"{board['uid']}.json"
        fitted = committed.fitted(board, monitor_url)
        path.write_text(json.dumps(fitted, indent=2, sort_keys=True) + "\n")
        print(path)
    shutil.copytree(committed.GRAFANA / "provisioning", folder / "provisioning", dirs_exist_ok=True)
    print(folder / "provisioning")
    return 0
