"""What a monitor tells of incidents, as tests ask for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def fired(incidents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that fired. On a busy machine an answer may be late, and one look suspects a rank: what
    the next look takes back is listed as resolved, and nothing was done about it.
    """
    return [incident for incident in incidents if incident["milestones"]["firing_s"] is not None]
