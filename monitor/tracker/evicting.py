"""An eviction under way: what the evictor and the quorums say of it moves its incident. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from monitor.config import KeeperConfig
from monitor.history import History
from monitor.incident import Incident, State, Transition
from monitor.names import IncidentId
from monitor.snapshot import EvictionProgress
from monitor.tracker.ending import (
    other_processes,
    out_of_quorum,
    processes_gone,
    restarted,
)
from monitor.tracker.story import moved, resolved


def under_eviction(
    incident: Incident, asked: Container[IncidentId], now_s: float, config: KeeperConfig
) -> bool:
    """Whether its group is on its way out, or has not committed since it was put out."""
    if incident.state is State.EVICTING or incident.id in asked:
        return True
    # Also while it fires again: an eviction that failed, or was cut short by a restart of the
    # monitor, may have reached the processes, and then it explains their death.
    marks = incident.milestones
    return (
        marks.evict_asked_s is not None
        and marks.rejoined_s is None
        and now_s - marks.evict_asked_s <= config.follow_s
    )


def reported(
    history: History, incident: Incident, progress: EvictionProgress, config: KeeperConfig
) -> Incident:
    """The incident after what the evictor reports: asked, left, failed, or as it was."""
    asked_s, now_s = incident.milestones.evict_asked_s, history.now_s
    if asked_s is None or progress.asked_s > asked_s:
        incident = replace(
            moved(incident, progress.asked_s, State.EVICTING, f"asked for {progress.group}"),
            milestones=replace(incident.milestones, evict_asked_s=progress.asked_s),
        )
    if incident.state is not State.EVICTING:
        return incident
    ended = left(history, incident, progress, config)
    if ended is not None:
        return ended
    done = progress.gone_s is not None or progress.unseen_s is not None
    overdue = not done and now_s - progress.asked_s > config.eviction_deadline_s
    if progress.failed is None and not overdue:
        return incident  # also while its processes are gone and the next quorum is awaited
    why = progress.failed or "nothing happened within its deadline"
    return moved(incident, now_s, State.FIRING, f"the eviction failed: {why}")


def unattended(history: History, incident: Incident, config: KeeperConfig) -> Incident:
    """The incident when the evictor knows nothing of its eviction: asked before a restart.

    Firing again: the restart cut the eviction short.
    """
    ended = left(history, incident, None, config)
    if ended is not None:
        return ended
    if restarted(history, incident):
        return resolved(incident, history.now_s, other_processes(history, incident))
    if history.lighthouse is None:
        return incident
    return moved(
        incident,
        history.now_s,
        State.FIRING,
        "the eviction was cut short by a restart of the monitor: asked again if need be",
    )


def left(
    history: History,
    incident: Incident,
    progress: EvictionProgress | None,
    config: KeeperConfig,
) -> Incident | None:
    """The incident resolved, when its group is evicted; None as long as that is not shown.

    Evicted is a group whose replica id left the quorum *and* whose processes are gone, or out of
    sight with a dead heartbeat. A group that never was in a quorum has none to leave; and where no
    quorum forms for long after its processes were gone (the job may have ended), that is said.
    """
    now_s, marks = history.now_s, incident.milestones
    left_s = marks.left_quorum_s if progress is None else progress.left_quorum_s
    if left_s is None and out_of_quorum(history, incident):
        left_s = now_s
    gone_s = None if progress is None else progress.gone_s or progress.unseen_s
    if gone_s is None and not (left_s is not None and processes_gone(history, incident)):
        return None
    asked_s = marks.evict_asked_s
    if left_s is not None:
        after = "" if asked_s is None else f" {max(0.0, left_s - asked_s):.1f} s after it was asked"
        why = f"evicted: left the quorum{after}"
        if progress is not None and progress.unseen_s is not None:
            why += ", host out of sight"
        if marks.left_quorum_s is None:
            line = Transition(left_s, "left_quorum", f"left the quorum{after}")
            incident = replace(
                incident,
                milestones=replace(marks, left_quorum_s=left_s),
                story=(*incident.story, line),
            )
    elif not incident.replica_ids:
        why = "evicted: all its processes are gone; it was in no quorum"
    elif gone_s is not None and now_s - gone_s > config.follow_s:
        why = "evicted: all its processes are gone; no quorum was formed since"
    else:
        return None
    return resolved(incident, now_s, why)
