"""From builders to the JSON that is committed, and whether the two still agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dashboards.committed import GRAFANA


def rendered() -> dict[Path, str]:
    """Every dashboard file and what it has to contain.

    Raises:
        ImportError: grafana-foundation-sdk is not installed (it is a development extra).
    """
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415 - see Raises

    from dashboards import fleet, groups, incidents, keeper, rank, stragglers  # noqa: PLC0415

    found = {}
    for board in (
        fleet.fleet(),
        groups.groups(),
        rank.rank(),
        stragglers.stragglers(),
        incidents.incidents(),
        keeper.keeper(),
    ):
        plain = json.loads(JSONEncoder().encode(board.builder().build()))
        path = GRAFANA / f"{board.uid.removeprefix('lightkeeper-')}.json"
        found[path] = json.dumps(_finish(plain), indent=2, sort_keys=True) + "\n"
    return found


def write() -> list[Path]:
    """Write all files; which ones changed."""
    changed = differing()
    for path, text in rendered().items():
        path.write_text(text)
    return changed


def differing() -> list[Path]:
    """Files that do not contain what the Python says."""
    return [
        path for path, text in rendered().items() if not path.exists() or path.read_text() != text
    ]


def panels_of(board: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every panel, in rows and out of them; the rows too."""
    for panel in board.get("panels", []):
        yield panel
        yield from panel.get("panels", [])


def _finish(board: dict[str, Any]) -> dict[str, Any]:
    """What the SDK leaves out or adds: ids for panels, no hiding of links and annotations."""
    for number, panel in enumerate(panels_of(board), start=1):
        panel["id"] = number
    board["timezone"] = "browser"
    annotations = board.get("annotations", {}).get("list", [])
    for shown in (*board.get("links", []), *annotations):
        shown.pop("placement", None)
    for variable in board.get("templating", {}).get("list", []):
        for interval_only in ("auto", "auto_count", "auto_min"):
            variable.pop(interval_only, None)
    return board
