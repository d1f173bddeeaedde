"""`make dashboards`: the committed files for Grafana. The JSON of the dashboards is made of their
Python, Grafana's own alerts of those of Prometheus.
"""

from __future__ import annotations

import json
from pathlib import Path

from lightkeeper.dashboards import drill_downs, fleet
from lightkeeper.dashboards.committed import GRAFANA
from tests.dashboards import alerting


def render(*, write: bool) -> list[Path]:
    """Files that differ from the Python; `write`: update them."""
    boards = (
        fleet.FLEET, drill_downs.GROUPS, drill_downs.RANK, drill_downs.STRAGGLERS,
        drill_downs.INCIDENTS, drill_downs.KEEPER,
    )  # fmt: skip
    made = {
        GRAFANA / f"{board.name}.json": (
            json.dumps(board.to_json(), indent=2, sort_keys=True) + "\n"
        )
        for board in boards
    }
    made[alerting.PATH] = alerting.text()
    differing = [
        path for path, text in made.items() if not path.exists() or path.read_text() != text
    ]
    for path in differing if write else ():
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path])
    return differing


if __name__ == "__main__":
    for changed in render(write=True):
        print(changed)
