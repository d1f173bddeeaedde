"""Who could take part in a quorum, and who did: what attendance is taken from, once a tick."""

from __future__ import annotations

from typing import Final

from monitor.attendance import Quorum, Turn
from monitor.history.history import History
from monitor.history.track import FINISHED_PHASE, RankTrack
from monitor.names import GroupName, group_of_replica
from worker_server.wire import LONG_PHASES

HEARTBEAT_TIMEOUT_S: Final = 5.0
"""The Lighthouse's default `heartbeat_timeout_ms` (facts/torchft.md)."""


def push_unseen(history: History) -> None:
    """Keep since when which replica ids beat that no rank reports.

    While a rank has not told its id yet, it may be the one, under whatever name; but for those that
    were known to be nobody's before it came.
    """
    if history.lighthouse is None:
        return  # what was seen before is not forgotten while nobody looks
    alive = [track for track in history.present() if track.died_s is None]
    told = {None if track.step is None else track.step.replica_id for track in history.present()}
    untold = [t.first_seen_s for t in alive if t.step is None or t.step.replica_id is None]
    known_s = min(untold) - history.config.unseen_s if untold else float("inf")
    before = history.unseen_s
    history.unseen_s = {
        replica_id: before.get(replica_id, history.now_s)
        for replica_id, age_s in history.lighthouse.heartbeat_ages_s.items()
        if age_s <= HEARTBEAT_TIMEOUT_S and replica_id not in told
        if before.get(replica_id, history.now_s) < known_s
    }


def push_attendance(history: History) -> None:
    """Tell the book of attendance who is in the quorum, and who stays out of it."""
    quorum = None
    if history.lighthouse is not None:
        members = {
            group_of_replica(member.replica_id): member.replica_id
            for member in history.lighthouse.members
        }
        quorum = Quorum(history.lighthouse.quorum_id, members)
    turns = [turn for track in history.present() if (turn := _turn(history, track)) is not None]
    absent = [group for group in history.groups() if _stays_out(history, group)]
    history.attendance.push(history.now_s, turns, quorum, absent)


def _stays_out(history: History, group: GroupName) -> bool:
    """Whether a group could take part and does not: it beats, works, and is in no quorum."""
    age_s = history.heartbeat_age_s(group)
    if age_s is None or age_s > HEARTBEAT_TIMEOUT_S or history.in_quorum(group) is not False:
        return False
    return not any(_excused(history, track) for track in history.groups()[group])


def _excused(history: History, track: RankTrack) -> bool:
    """Whether a rank is on its way, done, or cannot be seen: no blame for staying out."""
    config, step = history.config, track.step
    if track.fresh is None or not track.fresh.process.alive or step is None:
        return True
    phase_s = step.phase_age_s
    return (
        step.phase == FINISHED_PHASE
        or _fresh(history, track)
        or (step.healing and phase_s < config.healing_budget_s)
        or (step.phase in LONG_PHASES and phase_s < config.long_phase_budget_s)
    )


def _fresh(history: History, track: RankTrack) -> bool:
    """Whether a rank is on its way to its first commits, and not for too long."""
    here_s = history.now_s - track.first_seen_s
    young = track.commits < history.config.warm_up_commits  # a heal makes nobody young again
    return young and here_s < history.config.warm_up_budget_s


def _turn(history: History, track: RankTrack) -> Turn | None:
    """What attendance is taken from: ranks under a Manager that answered in this tick."""
    report = track.fresh
    step = None if report is None else report.step
    if step is None or step.replica_id is None:
        return None
    return Turn(
        rank=track.rank,
        group=track.group,
        incarnation=track.identity.incarnation,
        commits=step.commits,
        failures=step.commit_failures,
        committed_step=step.committed_step,
        healing=step.healing,
        errored=step.errored,
        fresh=_fresh(history, track),
    )
