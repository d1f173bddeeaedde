"""What shows that a replica id is in no quorum, and cannot come into one. Pure."""

from __future__ import annotations

from monitor.names import ReplicaId
from monitor.snapshot import LighthouseAway, LighthouseView

SLACK_S = 3.0
"""A heartbeat is a second old on the page, and a death is seen a second late."""


def shown_out(
    replica_id: ReplicaId,
    lighthouse: LighthouseView | LighthouseAway,
    refused_for_s: float | None,
    dead_s: float,
) -> str | None:
    """How it is known that a replica id has left the quorum; None while it is not.

    The Lighthouse's word counts before the gate's. While it is away, an id that the gate refuses
    for longer than a heartbeat lives (`dead_s`) is in none of its quorums when it is back.
    """
    if isinstance(lighthouse, LighthouseView):
        if not lighthouse.out(replica_id, dead_s):
            return None
        return "it left the quorum" if lighthouse.members else "the Lighthouse hears it no more"
    if refused_for_s is not None and refused_for_s > dead_s:
        return f"the gate refuses it for {refused_for_s:.0f} s, the Lighthouse is away"
    return None


def silent(
    replica_id: ReplicaId,
    lighthouse: LighthouseView | LighthouseAway,
    refused_for_s: float | None,
    dead_s: float,
) -> bool:
    """Whether the Lighthouse counts it for no quorum any more: its heartbeat is dead there."""
    if refused_for_s is not None and refused_for_s > dead_s:
        return True
    if isinstance(lighthouse, LighthouseAway):
        return False
    age_s = lighthouse.heartbeat_ages_s.get(replica_id)
    known = bool(lighthouse.members or lighthouse.heartbeat_ages_s)
    return known if age_s is None else age_s > dead_s


def beats_on(
    replica_id: ReplicaId,
    lighthouse: LighthouseView | LighthouseAway,
    gone_for_s: float,
    leave_s: float,
) -> bool:
    """Whether somebody still beats under its name, long after its last known process was gone."""
    if isinstance(lighthouse, LighthouseAway) or gone_for_s < leave_s:
        return False
    age_s = lighthouse.heartbeat_ages_s.get(replica_id)
    return age_s is not None and age_s + SLACK_S < gone_for_s
