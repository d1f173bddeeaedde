"""The fleet as a decision sees it: who is well, who is accused, what was evicted. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.outside import inside_across
from monitor.detectors.sentence import looks
from monitor.detectors.verdict import SLOWS_ONLY, Confidence, Kind, Verdict
from monitor.history import History, RankTrack
from monitor.incident import Incident, State
from monitor.names import GroupName, Host, group_of, unseen_name
from monitor.pipeline.experience import Experience
from monitor.pipeline.without_lighthouse import missing_without
from monitor.policy import Fleet, GroupView, PastEviction, PastFault
from monitor.snapshot import LighthouseAway, Snapshot
from monitor.tracker import GONE_UNCONFIRMED_S, Tracker
from worker_server.wire import WAITING_PHASE

_OF_HOSTS: Final = frozenset({Kind.NOT_ENTERED, Kind.STRAGGLER, Kind.DEAD, Kind.STATE_CORRUPT})
"""Kinds that may be a host's."""


def fleet_of(
    history: History,
    tracker: Tracker,
    snapshot: Snapshot,
    *,
    config: KeeperConfig,
    past: Iterable[PastEviction],
    doubt: str | None,
    experience: Experience,
) -> Fleet:
    """What the decisions of this tick are made on.

    Args:
        history: with this tick's snapshot in it.
        tracker: with this tick's verdicts in it.
        snapshot: of this tick.
        config: thresholds.
        past: evictions asked for within the budget's hour.
        doubt: why the monitor does not trust itself; None while it does.
        experience: what earlier evictions and the Lighthouse have taught.
    """
    accused = frozenset(
        group
        for incident in tracker.open()
        if incident.state is not State.PENDING and _accuses(incident.verdict)
        for group in incident.groups
    )
    shields = tracker.shielded(snapshot.now_s)
    away = snapshot.lighthouse
    fired = [i for i in tracker.incidents.values() if i.milestones.firing_s is not None]
    return Fleet(
        now_s=snapshot.now_s,
        groups={
            group: _view(
                history,
                group,
                members,
                well=group not in accused and _anew(members, shields.get(group)),
            )
            for group, members in history.groups().items()
        }
        | {
            unseen_name(one): GroupView(
                unseen_name(one), healthy=False, alive=(), replica_id=one, names=(unseen_name(one),)
            )
            for one in history.unseen()
        },
        accused=accused,
        doubt=doubt,
        lighthouse_away=away.reason if isinstance(away, LighthouseAway) else None,
        without_lighthouse={
            incident.id: missing_without(history, snapshot, incident)
            for incident in tracker.open()
            if isinstance(away, LighthouseAway)
        },
        past=tuple(past),
        cut_short=frozenset(tracker.cut_short),
        in_flight=_in_flight(tracker, snapshot, config),
        would=tuple(experience.would),
        lessons=experience.all(),
        faults=_faults(fired),
        waited_for=frozenset(
            group
            for incident in tracker.open()
            if incident.verdict.confidence is not Confidence.UNSURE
            and incident.verdict.stops
            and any(group_of(rank) not in accused for rank in incident.verdict.victims)
            for group in incident.groups
        ),
        dead_hosts=_dead_hosts(history, config),
        min_replicas_told=experience.min_replicas,
        pause=snapshot.pause,
    )


def _faults(fired: Iterable[Incident]) -> dict[Host, tuple[PastFault, ...]]:
    """Faults that are over, by the hosts of their culprits."""
    found: dict[Host, list[PastFault]] = {}
    for one in fired:
        if one.open or one.kind not in _OF_HOSTS or not one.groups:
            continue
        for host in one.hosts:
            found.setdefault(host, []).append(PastFault(one.groups[0], one.kind, one.signature))
    return {host: tuple(faults) for host, faults in found.items()}


def _dead_hosts(history: History, config: KeeperConfig) -> frozenset[Host]:
    """Hosts on which every rank is known to be dead, or has been silent for as long as it takes to
    call a host lost.
    """
    lives: dict[Host, bool] = {}
    for track in history.present():
        silent_s = track.silent_since_s
        lost = silent_s is not None and history.now_s - silent_s >= config.host_lost_s
        host = track.identity.host
        lives[host] = lives.get(host, False) or not (lost or track.died_s is not None)
    return frozenset(host for host, alive in lives.items() if not alive)


def _in_flight(tracker: Tracker, snapshot: Snapshot, config: KeeperConfig) -> tuple[GroupName, ...]:
    now_s = snapshot.now_s
    going = {
        progress.group
        for progress in snapshot.evictions
        if not progress.out
        and progress.failed is None
        and now_s - progress.asked_s <= config.eviction_deadline_s
    }
    done = {
        progress.incident_id
        for progress in snapshot.evictions
        if (gone_s := progress.gone_s or progress.unseen_s) is not None
        and now_s - gone_s > GONE_UNCONFIRMED_S
    }
    going -= {progress.group for progress in snapshot.evictions if progress.incident_id in done}
    awaiting = tracker.awaiting()
    for incident in tracker.open():
        evicting = incident.state is State.EVICTING and incident.id not in done
        if incident.id in awaiting or evicting:
            going.update(incident.groups)
    return tuple(sorted(going))


def _accuses(verdict: Verdict) -> bool:
    """Whether it speaks against its groups: what only asks for a person does not, and must not
    stand in the way of evicting another that hangs.
    """
    unsure = verdict.kind in SLOWS_ONLY and verdict.confidence is Confidence.UNSURE
    return not (unsure or verdict.spare)


def _view(
    history: History, group: GroupName, members: tuple[RankTrack, ...], *, well: bool
) -> GroupView:
    died_s = [track.died_s for track in members if track.died_s is not None]
    whole = len(members) == members[0].identity.world_size
    return GroupView(
        group=group,
        healthy=well and whole and all(_able(history, track) for track in members),
        alive=tuple(t.rank for t in members if t.fresh is not None and t.fresh.process.alive),
        replica_id=history.replica_id(group),
        in_quorum=history.in_quorum(group),
        heartbeat_age_s=history.heartbeat_age_s(group),
        dead_for_s=history.now_s - min(died_s) if died_s else None,
        hosts={track.rank: track.identity.host for track in members},
        names=tuple(dict.fromkeys((group, *(t.identity.launched_as or group for t in members)))),
        traced="; ".join(
            f"{track.rank} is traced by {looks(track.tracer)}"
            for track in members
            if track.tracer is not None
        ),
        disk_wait=frozenset(track.rank for track in members if track.state == "D"),
    )


def _anew(members: tuple[RankTrack, ...], evicted: Incident | None) -> bool:
    """Whether a group is free of those processes for which it was evicted lately, if it was."""
    return evicted is None or not any(
        track.identity.incarnation in evicted.incarnations for track in members
    )


def _able(history: History, track: RankTrack) -> bool:
    """Whether a rank contributes, or stands ready to: it waits for the others to let it in.

    Two groups of which one hangs: the other, back from a restart, commits nothing before the hung
    one is out. It must not be counted as missing then.
    """
    if history.participating(track):
        return True
    if track.fresh is None or not track.fresh.process.alive or history.stopped(track):
        return False
    if track.phased:
        return track.doing == WAITING_PHASE
    return track.waits_in is not None or inside_across(track)
