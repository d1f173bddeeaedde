"""`make dashboards`: the committed JSON of the dashboards, made of their Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from lightkeeper.dashboards import drill_downs, fleet
from lightkeeper.dashboards.committed import GRAFANA


def render(*, write: bool) -> list[Path]:
    """Files that differ from the Python; `write`: update them."""
    differing = []
    for board in (
        fleet.fleet_board(),
        drill_downs.groups_board(),
        drill_downs.rank_board(),
        drill_downs.stragglers_board(),
        drill_downs.incidents_board(),
        drill_downs.keeper_board(),
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
    """Fix what the SDK omits or adds: panel ids, no hiding of links and annotations."""
    for number, panel in enumerate(board["panels"], start=1):
        panel["id"] = number
    board["timezone"] = "browser"
    for shown in (*board["links"], *board["annotations"]["list"]):
        shown.pop("placement", None)
    for variable in board["templating"]["list"]:
        for interval_only in ("auto", "auto_count", "auto_min"):
            variable.pop(interval_only, None)
    return board


if __name__ == "__main__":
    for changed in render(write=True):
        print(changed)
