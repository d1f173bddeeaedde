"""`make dashboards`: the committed JSON of the dashboards, made of their Python."""

from __future__ import annotations

import json
from pathlib import Path

from lightkeeper.dashboards import drill_downs, fleet
from lightkeeper.dashboards.committed import GRAFANA


def render(*, write: bool) -> list[Path]:
    """Files that differ from the Python; `write`: update them."""
    differing = []
    for board in (
        fleet.FLEET,
        drill_downs.GROUPS,
        drill_downs.RANK,
        drill_downs.STRAGGLERS,
        drill_downs.INCIDENTS,
        drill_downs.KEEPER,
    ):
        path = GRAFANA / f"{board.uid.removeprefix('lightkeeper-')}.json"
        text = json.dumps(board.to_json(), indent=2, sort_keys=True) + "\n"
        if not path.exists() or path.read_text() != text:
            differing.append(path)
            if write:
                path.write_text(text)
    return differing


if __name__ == "__main__":
    for changed in render(write=True):
        print(changed)
