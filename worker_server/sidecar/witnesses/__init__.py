"""Witnesses of a host: what the machine itself says, read in a process of their own."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

TABLES: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("tables.toml").read_text(encoding="utf-8")
)
"""What the kernel's lines and counters mean."""
