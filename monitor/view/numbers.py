"""Numbers as JSON and people take them. Pure."""

from __future__ import annotations

import math


def finite(value: float | None) -> float | None:
    """JSON knows no NaN."""
    return round(value, 6) if value is not None and math.isfinite(value) else None
