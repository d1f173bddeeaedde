"""Why a fault is over that is not seen now: only positive evidence ends it. Pure.

The rank moved, or is another process, or is gone; that it cannot be seen is no evidence.
"""

from __future__ import annotations

from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Kind
from monitor.history import History, RankTrack
from monitor.incident import Incident

GONE_UNCONFIRMED_S: Final = 30.0
"""An eviction whose processes are gone for so long stands in nobody's way any more, though no new
quorum says so yet: it may be another sick group that keeps one from forming."""


def why_over(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault that is not seen now is over; None while that is not known."""
    quorums = incident.kind in (Kind.REPLICA_LAG, Kind.LIGHTHOUSE_AWAY, Kind.UNSEEN)
    return (_settled if quorums else _passed)(history, incident, config)


def restarted(history: History, incident: Incident) -> bool:
    """Whether one of its culprits is another process now."""
    tracks = _culprit_tracks(history, incident)
    return any(track.identity.incarnation not in incident.incarnations for track in tracks)


def other_processes(history: History, incident: Incident) -> str:
    """Why it is over when its culprits are other processes now: evicted, if it left the quorum."""
    asked = incident.milestones.evict_asked_s is not None
    left = incident.milestones.left_quorum_s is not None or out_of_quorum(history, incident)
    evicted = asked and (left or not incident.replica_ids)
    return f"{'evicted' if evicted else 'restarted'}: its ranks are other processes now"


def processes_gone(history: History, incident: Incident) -> bool:
    """Whether no process that was accused, or ran beside one in its group, is there any more.

    Others of the group count when they started after the eviction was asked.
    """
    asked_s = incident.milestones.evict_asked_s or incident.milestones.first_seen_s
    return all(
        track.died_s is not None
        or (
            track.identity.incarnation not in incident.incarnations
            if track.rank in incident.culprits
            else track.first_seen_s > asked_s
        )
        for group in incident.groups
        for track in history.groups().get(group, ())
    )


def out_of_quorum(history: History, incident: Incident) -> bool:
    """Whether a quorum without any of its replica ids is seen."""
    if history.lighthouse is None or not incident.replica_ids:
        return False
    members = history.lighthouse.ids
    return bool(members) and members.isdisjoint(incident.replica_ids)


def _passed(  # noqa: C901, PLR0911, PLR0912 - one reason a line
    history: History, incident: Incident, config: KeeperConfig
) -> str | None:
    tracks = _culprit_tracks(history, incident)
    unseen_s = history.now_s - incident.last_seen_s
    asked = incident.milestones.evict_asked_s is not None
    if restarted(history, incident):
        return other_processes(history, incident)
    if not incident.culprits:
        return _passed_for_all(history, incident, config)
    if not tracks:
        return "its ranks are registered no more" if unseen_s >= config.clear_s else None
    reports = [track.fresh for track in tracks if track.fresh is not None]
    if len(reports) < len(tracks) or unseen_s < config.clear_s:
        return None
    gone = [track for track in tracks if track.died_s is not None]
    if asked and any(history.now_s - t.died_s < GONE_UNCONFIRMED_S for t in gone if t.died_s):
        return None  # our kill struck: the next quorum says when it left
    match incident.kind:
        case Kind.DEAD if gone:
            return _job_over(history, config)
        case Kind.DEAD:
            return "its processes are there again"
        case Kind.NOT_ENTERED | Kind.MISMATCH | Kind.DEADLOCK:
            if gone:
                return "its process ended"
            if not incident.verdict.stops:
                return "not seen any more" if unseen_s >= 2 * config.sample_s else None
            moved = all(t.moved_s is not None and t.moved_s > incident.last_seen_s for t in tracks)
            return "recovered by itself" if moved else None
        case Kind.STATE_CORRUPT:
            return "its process ended" if gone else "its numbers are in order again"
        case Kind.STRAGGLER:
            return _keeps_pace(history, incident, gone=bool(gone))
        case Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY | Kind.UNSEEN | Kind.BY_HAND:
            return _settled(history, incident, config)


def _job_over(history: History, config: KeeperConfig) -> str | None:
    """Whether nobody came back after all had ended: launchers take up to half a minute."""
    died_s = [track.died_s for track in history.present()]
    if any(at_s is None for at_s in died_s):
        return "its processes ended"
    last_s = max((at_s for at_s in died_s if at_s is not None), default=history.now_s)
    return "the job ended" if history.now_s - last_s >= 2 * config.job_end_s else None


def _settled(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault of the quorum is over: it is told by what lasts, not by one process."""
    unseen_s = history.now_s - incident.last_seen_s
    if incident.kind is Kind.LIGHTHOUSE_AWAY:
        back = history.lighthouse is not None and unseen_s >= config.clear_s
        over = back and not _ending(history, incident, config)
        return "the Lighthouse answers again" if over else None
    if incident.kind is Kind.UNSEEN:
        over = history.lighthouse is not None and unseen_s >= config.clear_s
        return "every participant is seen" if over else None
    if unseen_s < config.lag_clear_s / 2:
        return None
    if not any(group in history.groups() for group in incident.groups):
        return "its ranks are registered no more" if incident.groups else "commits go through again"
    return "keeps up again"


def _ending(history: History, incident: Incident, config: KeeperConfig) -> bool:
    """Whether a victim is still the process that waited, and has not gone on: it will end soon."""
    last_s = incident.last_seen_s
    return history.now_s - last_s < config.follow_s and any(
        track.first_seen_s <= last_s
        and (track.last_commit_s is None or track.last_commit_s <= last_s)
        for track in history.present()
        if track.rank in incident.verdict.victims
    )


def _passed_for_all(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault that was nobody's is over: the job goes on, or all keep pace."""
    if incident.kind is Kind.STRAGGLER:
        return _keeps_pace(history, incident, gone=False)
    last_s = incident.last_seen_s
    commits = [track.last_commit_s for track in history.present() if track.commits]
    moves = commits or [track.moved_s for track in history.present()]
    moved = any(at_s is not None and at_s > last_s for at_s in moves)
    return "the job goes on" if moved and history.now_s - last_s >= config.clear_s else None


def _keeps_pace(history: History, incident: Incident, *, gone: bool) -> str | None:
    if gone:
        return "its process ended"
    config = history.config
    quiet = history.now_s - history.disturbed_s >= config.restart_quiet_s
    tracks = _culprit_tracks(history, incident)
    if len(history.groups()) == 1 or any(not track.paced for track in tracks):
        calm_s = max(history.arrivals.calm_s.values(), default=incident.last_seen_s)
        judged = calm_s > incident.last_seen_s
    else:
        windows = history.pace.windows
        judged = bool(windows) and windows[-1].start_s >= incident.last_seen_s
    unseen_s = history.now_s - incident.last_seen_s
    passed = quiet and judged and unseen_s >= config.straggler_clear_s
    return "keeps pace again" if passed else None


def _culprit_tracks(history: History, incident: Incident) -> list[RankTrack]:
    tracks = (history.tracks.get(rank) for rank in incident.culprits)
    return [track for track in tracks if track is not None and track.observation is not None]
