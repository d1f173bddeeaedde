"""What the monitor shows: one immutable value a tick, and its JSON. Pure.

The web page, the API and `/metrics` read a `View` and nothing that changes under their hands.
Belongs here: the value (`view`) and its forms for programs (`fleet`, `incidents`, `hosts`) and for
people (`words`). Not here: routes (app), and what an incident cost (audit).
"""

from monitor.view.condition import Ended, ended_of, warnings_of
from monitor.view.face import Face, face_of
from monitor.view.fleet import (
    degraded,
    groups_to_json,
    lighthouse_to_json,
    ranks_to_json,
    self_health_to_json,
    snapshot_to_json,
)
from monitor.view.hosts import entry_to_json, event_to_json, host_to_json
from monitor.view.incidents import case_of, decision_to_json, incident_json
from monitor.view.ranks import trouble_of
from monitor.view.values import bundle_url
from monitor.view.view import (
    SCHEMA,
    BundleView,
    GroupView,
    NotPossible,
    View,
    groups_of,
)

__all__ = [
    "SCHEMA",
    "BundleView",
    "Ended",
    "Face",
    "GroupView",
    "NotPossible",
    "View",
    "bundle_url",
    "case_of",
    "decision_to_json",
    "degraded",
    "ended_of",
    "entry_to_json",
    "event_to_json",
    "face_of",
    "groups_of",
    "groups_to_json",
    "host_to_json",
    "incident_json",
    "lighthouse_to_json",
    "ranks_to_json",
    "self_health_to_json",
    "snapshot_to_json",
    "trouble_of",
    "warnings_of",
]
