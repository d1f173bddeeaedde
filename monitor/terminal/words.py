"""Lists and times in a few words. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from monitor.reports.wording import clean


def listed(names: Sequence[Any], most: int) -> str:
    """`a, b, c and 7 more`."""
    shown = ", ".join(clean(str(one), 80) for one in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def clock(at_s: float | None) -> str:
    """Local time of day."""
    if at_s is None:
        return "-"
    at = datetime.datetime.fromtimestamp(at_s, tz=datetime.UTC).astimezone()
    return at.strftime("%H:%M:%S")
