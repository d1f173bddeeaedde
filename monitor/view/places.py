"""Where things of an incident are, at this monitor. Pure."""

from __future__ import annotations

from urllib.parse import quote

from monitor.names import IncidentId


def bundle_url(incident_id: IncidentId) -> str:
    """Where the evidence of an incident is, at this monitor."""
    return f"/v1/incidents/{quote(incident_id, safe='')}/bundle"
