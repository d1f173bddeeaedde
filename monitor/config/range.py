"""What a number may be."""

from __future__ import annotations

from typing import Final

DAY: Final = 86_400.0
"""Seconds."""

Range = tuple[float, float]
"""Least and most, both allowed."""
