"""`python -m tests.dashboards.operator_rules` writes examples/kubernetes' rules."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from lightkeeper.dashboards import committed

PATH: Final = Path(__file__).parents[2] / "examples/kubernetes/monitoring/rules.yaml"
_MONITOR: Final = "http://lightkeeper.lightkeeper:8470"


def made() -> str:
    """What the file should say."""
    rules = dict(committed.rule_files(_MONITOR))
    return dict(committed.manifests([], rules))[PATH.name]


if __name__ == "__main__":
    PATH.write_text(made())
