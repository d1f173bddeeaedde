"""Reading what the kernel shows in files, and the table of what it means."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

TABLES: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
)


def text_of(path: Path) -> str | None:
    """A file's content without blanks around; None: it is not there, or cannot be read."""
    try:
        return needed(path)
    except OSError:
        return None


def needed(path: Path) -> str:
    """The same of a file without which a witness is blind; raises OSError."""
    return path.read_text("utf-8", "replace").strip()


def number(path: Path) -> int | None:
    """A file's number; None: there is none, as in `max` or `N/A`."""
    try:
        return int(path.read_text("ascii", "replace"))
    except (OSError, ValueError):
        return None


def table(path: Path) -> dict[str, int]:
    """The lines `NAME NUMBER` of a file; empty if it cannot be read."""
    rows = (line.split() for line in (text_of(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}
