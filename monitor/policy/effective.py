"""The policy and configuration that hold, and who said so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor.config import KeeperConfig
from monitor.policy.rules import DEFAULT, Policy


@dataclass(frozen=True, slots=True)
class Effective:
    """What holds, and who said so."""

    config: KeeperConfig
    policy: Policy = DEFAULT
    path: Path | None = None
    """None: no file, the defaults and the command line."""
    loaded_s: float = 0.0
    """Unix time."""
    number: int = 1
    """Counts loads since the start."""
    said: Mapping[str, str] = field(default_factory=dict)
    """Option -> `file` or `command line`; the others have their defaults."""
    waiting: Mapping[str, Any] = field(default_factory=dict)
    """Option -> what the file says, and only a restart brings."""
