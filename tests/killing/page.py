"""docs/kill-each.md, from the rows. Pure but for `write`."""

from __future__ import annotations

from pathlib import Path

from tests.campaign import results


def write(path: Path, out: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(str(len(results.read(out))))
