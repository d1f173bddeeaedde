"""The shipped rows of Prometheus as they are in the file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from lightkeeper.monitor.act import testimonies


def shipped() -> list[dict[str, Any]]:
    file = Path(testimonies.__file__).with_name("cluster.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))["prometheus"]
