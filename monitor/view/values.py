"""Single values, as JSON and people take them. Pure."""

from __future__ import annotations

import math
from urllib.parse import quote

from monitor.names import IncidentId


def finite(value: float | None) -> float | None:
    """JSON knows no NaN."""
    return round(value, 6) if value is not None and math.isfinite(value) else None


def bundle_url(incident_id: IncidentId) -> str:
    """Where the evidence of an incident is, at this monitor."""
    return f"/v1/incidents/{quote(incident_id, safe='')}/bundle"
