"""The state machine of incidents over ticks.

Theory of operation. A verdict belongs to the open incident of the same kind on the same
group; otherwise it opens one. An incident seen in enough consecutive sweeps with the same suspects
fires. An eviction that the evictor reports makes it `evicting`; when the culprit's replica id has
left the quorum it is resolved. A pending incident is dropped the first time it is not seen. A
firing one ends only on positive evidence: the rank moved, is another process, or is gone. Being
unable to see it is no evidence. Milestones are still awaited after the end. After a restart of
the monitor restored incidents continue: the same fault gets the same incident, and an
eviction asked before is finished or asked again, never forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Any, Final

from lightkeeper.monitor.decide.commits import Commits
from lightkeeper.monitor.decide.guards import COSTS_KEPT, price_s, teaches
from lightkeeper.monitor.detect.dead import told
from lightkeeper.monitor.detect.detectors import Wait
from lightkeeper.monitor.detect.endings import End, end_of
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.wording import looks
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Evict, Eviction, EvictionState, Guard, Ruling
from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.incident import (
    Incident,
    Milestones,
    State,
    Training,
    Transition,
    newest_first,
    oldest_first,
    severity_of,
)
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, one_line
from lightkeeper.monitor.model.verdict import OF_LIGHTHOUSE, Kind, Severity, Verdict
from lightkeeper.monitor.model.wait_map import fuller
from lightkeeper.monitor.model.wording import bring_back, listed, seconds

# -- ending ------------------------------------------------------------------------------------

GONE_UNCONFIRMED_S: Final = 30.0
"""An eviction whose processes are gone for this long no longer blocks others, even without a new
quorum to confirm it: another faulty group may keep one from forming."""

_UNTIL_ABSENT_S: Final = 75.0
"""A lost group's incident is over when it trains again, or once `absent` says that it does not."""
_LASTING: Final = (Kind.ABSENT, Kind.PROGRESS_LOST)
"""What stays true until it is made good, or a person closes it."""


def why_over(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault that is not seen now is over; None while that is not known."""
    if incident.kind is Kind.ABSENT:  # only a person ends it before its group trains again
        tracks = [t for group in incident.groups for t in history.groups().get(group, ())]
        trains = any(t.first_seen_s > incident.verdict.since_s and t.commits for t in tracks)
        return "it trains again" if trains else None
    if incident.kind is Kind.PROGRESS_LOST:
        return None if history.progress.fell_to is not None else "it has passed that step again"
    quorums = incident.kind in (Kind.REPLICA_LAG, Kind.LIGHTHOUSE_AWAY, Kind.UNSEEN)
    return (_settled if quorums else _passed)(history, incident, config)


def restarted(history: History, incident: Incident) -> bool:
    """True if one of its suspects is another process now."""
    tracks = _suspect_tracks(history, incident)
    return any(track.identity.incarnation not in incident.incarnations for track in tracks)


def other_processes(history: History, incident: Incident) -> str:
    """Why it is over once its suspects are other processes: evicted if it left the quorum."""
    asked = incident.milestones.evict_asked_s is not None
    out = incident.milestones.left_quorum_s is not None or out_of_quorum(history, incident)
    evicted = asked and (out or not incident.replica_ids)
    return f"{'evicted' if evicted else 'restarted'}: its ranks are other processes now"


def processes_gone(history: History, incident: Incident) -> bool:
    """True if all accused processes, and those beside them in their groups, are gone.

    Other ranks of a group count as gone if they started after the eviction was asked. One that
    was silent until its registration was over is not known to be gone.
    """
    asked_s = incident.milestones.evict_asked_s or incident.milestones.first_seen_s
    return all(
        track.died_s is not None
        or (
            track.identity.incarnation not in incident.incarnations
            if track.rank in incident.suspects
            else track.first_seen_s > asked_s
        )
        for track in history.tracks.values()
        if track.group in incident.groups
    )


def out_of_quorum(history: History, incident: Incident) -> bool:
    """True if a quorum without any of its replica ids is seen."""
    if history.lighthouse is None or not incident.replica_ids:
        return False
    members = history.lighthouse.ids
    return bool(members) and members.isdisjoint(incident.replica_ids)


def _passed(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    if restarted(history, incident):
        return other_processes(history, incident)
    if not incident.suspects:
        return _passed_for_all(history, incident, config)
    tracks = _suspect_tracks(history, incident)
    if history.now_s - incident.last_seen_s < config.clear_s or any(
        t.fresh is None for t in tracks
    ):
        return None
    if not tracks:
        return "its ranks are registered no more"
    died_s = [track.died_s for track in tracks if track.died_s is not None]
    asked = incident.milestones.evict_asked_s is not None
    if asked and any(history.now_s - at_s < GONE_UNCONFIRMED_S for at_s in died_s):
        return None  # our kill worked: the next quorum shows when it left
    return _passed_by_kind(history, incident, config, tracks)


def _passed_by_kind(
    history: History, incident: Incident, config: KeeperConfig, tracks: Sequence[RankTrack]
) -> str | None:
    """Why a fault is over whose suspects all answer."""
    dead = any(track.died_s is not None for track in tracks)
    match incident.kind:
        case Kind.DEAD:
            return _job_over(history, config) if dead else "its processes are there again"
        case Kind.NOT_ENTERED | Kind.MISMATCH | Kind.DEADLOCK:
            return _standstill_over(history, incident, config, tracks)
        case Kind.STATE_CORRUPT:
            return "its process ended" if dead else "its numbers are in order again"
        case Kind.STRAGGLER:
            return _keeps_pace(history, incident, dead=dead)
        case _:
            return _settled(history, incident, config)


def _standstill_over(
    history: History, incident: Incident, config: KeeperConfig, tracks: Sequence[RankTrack]
) -> str | None:
    """Why a hang, a mismatch or a deadlock is over: its suspects ended, or all that live move."""
    unseen_s = history.now_s - incident.last_seen_s
    died_s = [track.died_s for track in tracks if track.died_s is not None]
    alive = [track for track in tracks if track.died_s is None]
    if not alive or (died_s and incident.kind is Kind.MISMATCH):  # gloo ends who differs
        if history.now_s - max(died_s) < config.clear_s:
            return None  # the records of the dead may show it again
        return "its process ended" if len(tracks) == 1 else "its processes ended"
    if not incident.verdict.stops:
        return "not seen any more" if unseen_s >= 2 * config.sample_s else None
    recovered = all(_recovered(track, incident, config, unseen_s) for track in alive)
    return "recovered by itself" if recovered else None


def _recovered(track: RankTrack, incident: Incident, config: KeeperConfig, unseen_s: float) -> bool:
    """True if a suspect moves again, and not only to its end: a wait that times out ends, too."""
    if track.moved_s is None or track.moved_s <= incident.last_seen_s:
        return False
    committed_s = track.last_commit_s
    if committed_s is None or unseen_s >= config.ending_s:
        return True
    return committed_s > incident.last_seen_s


def _job_over(history: History, config: KeeperConfig) -> str | None:
    """Why a death is over; if all ended, None at first: launchers take up to half a minute."""
    died_s = [track.died_s for track in history.present()]
    if any(at_s is None for at_s in died_s):
        return "its processes ended"
    last_s = max((at_s for at_s in died_s if at_s is not None), default=history.now_s)
    return "the job ended" if history.now_s - last_s >= 2 * config.job_end_s else None


def _settled(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault of the quorum is over: judged over time, not by one process."""
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
    return "keeps up again" if incident.kind is Kind.REPLICA_LAG else "not seen any more"


def _ending(history: History, incident: Incident, config: KeeperConfig) -> bool:
    """True if a victim is still the waiting process, without a commit since: it will end soon."""
    last_s = incident.last_seen_s
    return history.now_s - last_s < config.follow_s and any(
        track.first_seen_s <= last_s
        and (track.last_commit_s is None or track.last_commit_s <= last_s)
        for track in history.present()
        if track.rank in incident.verdict.victims
    )


def _passed_for_all(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault without suspects is over: the job trains again, or all keep pace.

    A standstill is not over while one of its ranks is seen where it stood.
    """
    if incident.kind is Kind.STRAGGLER:
        return _keeps_pace(history, incident, dead=False)
    if incident.verdict.stops and _still_stands(history, incident):
        return None
    last_s = incident.last_seen_s
    commits = [track.last_commit_s for track in history.present() if track.commits]
    moves = commits or [track.moved_s for track in history.present()]
    moved = any(at_s is not None and at_s > last_s for at_s in moves)
    return "the job goes on" if moved and history.now_s - last_s >= config.clear_s else None


def _still_stands(history: History, incident: Incident) -> bool:
    """True if a live rank of its groups, or a victim, has not moved since the fault was seen."""
    last_s, victims = incident.last_seen_s, {*incident.verdict.victims}
    return any(
        track.fresh is not None
        and track.died_s is None
        and track.first_seen_s <= last_s
        and (track.moved_s is None or track.moved_s <= last_s)
        for track in history.present()
        if track.rank in victims or track.group in incident.groups
    )


def _keeps_pace(history: History, incident: Incident, *, dead: bool) -> str | None:
    if dead:
        return "its process ended"
    config = history.config
    quiet = history.now_s - history.disturbed_s >= config.restart_quiet_s
    tracks = _suspect_tracks(history, incident)
    if len(history.groups()) == 1 or any(not track.paced for track in tracks):
        calm_s = max(history.arrivals.calm_s.values(), default=incident.last_seen_s)
        judged = calm_s > incident.last_seen_s
    else:
        windows = history.pace.windows
        judged = bool(windows) and windows[-1].start_s >= incident.last_seen_s
    unseen_s = history.now_s - incident.last_seen_s
    passed = quiet and judged and unseen_s >= config.straggler_clear_s
    return "keeps pace again" if passed else None


def _suspect_tracks(history: History, incident: Incident) -> list[RankTrack]:
    tracks = (history.tracks.get(rank) for rank in incident.suspects)
    return [track for track in tracks if track is not None and track.observation is not None]


# -- story -------------------------------------------------------------------------------------


def enter_state(
    incident: Incident, at_s: float, state: State, reason: str, **changes: Any
) -> Incident:
    return noted(incident, at_s, state.value, reason, state=state, **changes)


def resolved(incident: Incident, at_s: float, why: str) -> Incident:
    return enter_state(incident, at_s, State.RESOLVED, why, resolution=why)


def noted(incident: Incident, at_s: float, to: str, reason: str, **changes: Any) -> Incident:
    """The incident with one more story line, such as a milestone, and its changes."""
    return replace(incident, story=(*incident.story, Transition(at_s, to, reason)), **changes)


def differs(before: Incident | None, after: Incident) -> bool:
    """True if more has changed than when an incident was last seen, and how its verdict puts it."""
    if before is None or before.verdict.confidence is not after.verdict.confidence:
        return True
    return before != replace(after, last_seen_s=before.last_seen_s, verdict=before.verdict)


# -- aftermath ---------------------------------------------------------------------------------


def followed(history: History, incident: Incident, config: KeeperConfig) -> Incident:
    """The incident with the milestones of this tick; they are awaited even after its end."""
    marks = incident.milestones
    since_s = marks.evict_asked_s
    if since_s is None and (not incident.open or incident.kind is Kind.DEAD):  # it may be gone
        since_s = marks.firing_s
    # without groups there is nobody to come back
    if since_s is None or history.now_s - since_s > config.follow_s or not incident.groups:
        return incident
    for milestone, reason, when in _AWAITED:
        if getattr(marks, f"{milestone}_s") is not None:
            continue
        if (at_s := when(history, incident, since_s)) is not None:
            incident = _reached(incident, at_s, milestone, reason)
    if marks.rejoined_s is None and incident.milestones.rejoined_s is not None:
        back = (track.rank for track in history.present() if track.group in incident.groups)
        incident = replace(incident, back_on=history.hosts(tuple(back)))
    return incident


def _left_quorum_s(history: History, incident: Incident, _: float) -> float | None:
    asked = incident.milestones.evict_asked_s is not None
    return history.now_s if asked and out_of_quorum(history, incident) else None


def _survivor_commit_s(history: History, incident: Incident, since_s: float) -> float | None:
    """When another group first committed since then, or since an eviction by hand was over: until
    then the others commit with it.
    """
    out_s = incident.ended_s if incident.kind is Kind.BY_HAND else since_s
    others = (track for track in history.present() if track.group not in incident.groups)
    commits = (track.last_commit_s for track in others if out_s is not None)
    return min((at_s for at_s in commits if at_s and at_s > (out_s or 0.0)), default=None)


def _reached(incident: Incident, at_s: float, milestone: str, reason: str) -> Incident:
    marks = replace(incident.milestones, **{f"{milestone}_s": at_s})
    return noted(incident, at_s, milestone, reason, milestones=marks)


def _rejoined_s(history: History, incident: Incident, _: float) -> float | None:
    """When its groups committed again, with suspects replaced and all ranks alive."""
    first_s: list[float] = []
    for group in incident.groups:
        members = history.groups().get(group, ())
        if not members or len(members) < members[0].identity.world_size:
            return None
        for track in members:
            fresh = track.fresh
            if fresh is None or not fresh.process.alive or track.commits < 1:
                return None
            if track.identity.incarnation in incident.incarnations:
                if track.rank in incident.suspects or incident.kind is Kind.BY_HAND:
                    return None
            else:
                first_s.append(track.first_commit_s or track.last_commit_s or history.now_s)
    return max(first_s, default=None)


def _heard(history: History, incident: Incident) -> Incident:
    """The incident with what a scheduler says of its ranks since it was acted on: the verdict
    stands, and its story continues.
    """
    before = incident.verdict.evidence.get("scheduler")
    asked = incident.milestones.evict_asked_s is not None
    if before is None or not asked or not incident.open or not history.ends:
        return incident
    said = told(history, _suspect_tracks(history, incident))
    if said is None or said.code == "evicted":
        return incident
    line = one_line(f"{said.witness}: {said.text}")
    news = line not in (before, *(each.reason for each in incident.story))
    return noted(incident, history.now_s, "scheduler", line) if news else incident


_AWAITED: Final = (
    ("left_quorum", "a quorum without it is seen", _left_quorum_s),
    ("survivor_commit", "another group commits", _survivor_commit_s),
    ("rejoined", "the group commits again", _rejoined_s),
)


# -- evicting ----------------------------------------------------------------------------------


def being_evicted(incident: Incident, eviction: Eviction) -> Incident:
    """The incident in state `evicting`, unless this eviction is already noted."""
    asked_s = incident.milestones.evict_asked_s
    if asked_s is not None and eviction.asked_s <= asked_s:
        return incident
    marks = replace(incident.milestones, evict_asked_s=eviction.asked_s)
    why = f"asked for {eviction.group}"
    return enter_state(incident, eviction.asked_s, State.EVICTING, why, milestones=marks)


def reported(
    history: History, incident: Incident, eviction: Eviction | None, config: KeeperConfig
) -> Incident:
    """The incident after the evictor's report on its eviction: asked, left, failed, or unchanged.

    None: the evictor does not know it, since it was asked before a restart. It fires again.
    """
    now_s = history.now_s
    if eviction is not None:
        incident = being_evicted(incident, eviction)
    if incident.state is not State.EVICTING:
        return incident
    if eviction is not None and eviction.lost and _awaits_it(history, incident):
        ended = None
    else:
        ended = resolved_by_eviction(history, incident, eviction, config)
    if ended is None and eviction is None and restarted(history, incident):
        ended = resolved(incident, now_s, other_processes(history, incident))
    if ended is not None:
        return ended
    why = _in_vain(history, eviction, config)
    return incident if why is None else enter_state(incident, now_s, State.FIRING, why)


def _in_vain(history: History, eviction: Eviction | None, config: KeeperConfig) -> str | None:
    """Why an eviction is over that has not put its group out; None while it continues, even if its
    processes are gone: until the next quorum.
    """
    if eviction is None:
        cut_short = "the eviction was cut short by a restart of the monitor: asked again if need be"
        return None if history.lighthouse is None else cut_short
    done = eviction.gone_s is not None or eviction.unseen_s is not None
    overdue = not done and history.now_s - eviction.asked_s > config.eviction_deadline_s
    if eviction.failed is None and not overdue:
        return None
    return f"the eviction failed: {eviction.failed or 'nothing happened within its deadline'}"


def resolved_by_eviction(
    history: History,
    incident: Incident,
    progress: Eviction | None,
    config: KeeperConfig,
) -> Incident | None:
    """The incident resolved, once its group is evicted; None until that is shown.

    A group is evicted if its replica id left the quorum *and* its processes are gone, or out of
    sight with a dead heartbeat. One that was never in a quorum has none to leave. If no quorum
    forms for `follow_s` after its processes were gone (the job may have ended), it is resolved too.
    """
    now_s, marks = history.now_s, incident.milestones
    gone_s = unseen_s = None
    left_s = marks.left_quorum_s
    if progress is not None:
        left_s, unseen_s = progress.left_quorum_s, progress.unseen_s
        gone_s = progress.gone_s or unseen_s
    if left_s is None and out_of_quorum(history, incident):
        left_s = now_s
    if left_s is None:
        joined = bool(incident.replica_ids)
        if gone_s is None or (joined and now_s - gone_s <= config.follow_s):
            return None
        why = "no quorum was formed since" if joined else "it was in no quorum"
        return resolved(incident, now_s, f"evicted: all its processes are gone; {why}")
    if gone_s is None and not processes_gone(history, incident):
        return None
    after = ""
    if marks.evict_asked_s is not None:
        after = f" {max(0.0, left_s - marks.evict_asked_s):.1f} s after it was asked"
    if marks.left_quorum_s is None:
        incident = _reached(incident, left_s, "left_quorum", f"left the quorum{after}")
    unseen = "" if unseen_s is None else ", host out of sight"
    return resolved(incident, now_s, f"evicted: left the quorum{after}{unseen}")


def _awaits_it(history: History, incident: Incident) -> bool:
    """True if a lost group may still come back before `absent` says that it does not."""
    if incident.milestones.rejoined_s is not None:
        return False
    absent_s = incident.verdict.since_s + _UNTIL_ABSENT_S
    return history.now_s < absent_s or bool(_suspect_tracks(history, incident))


def by_hand(history: History, eviction: Eviction) -> Incident:
    """The incident of an eviction that a person asked for: nobody is accused."""
    at_s, why = eviction.at_s, f"{eviction.author} asked for it: {eviction.reason}"
    began = Transition(eviction.asked_s, State.EVICTING.value, "the evictor began")
    verdict = Verdict(kind=Kind.BY_HAND, groups=(eviction.group,), reason=why, since_s=at_s)
    return replace(
        opened(history, verdict, ()),
        id=eviction.incident_id,
        state=State.EVICTING,
        replica_ids=() if eviction.replica_id is None else (eviction.replica_id,),
        incarnations=tuple(accused.incarnation for accused in eviction.accused),
        milestones=Milestones(at_s, firing_s=at_s, evict_asked_s=eviction.asked_s),
        story=(Transition(at_s, "asked", f"by {eviction.author}"), began),
        last_seen_s=at_s,
        severity=Severity.INFO,
        hosts=tuple(sorted({accused.host for accused in eviction.accused})),
    )


def progressed(incident: Incident, eviction: Eviction, now_s: float) -> Incident:
    """The incident of an eviction by hand, which ends as its eviction does."""
    incident, left_s = being_evicted(incident, eviction), eviction.left_quorum_s
    if left_s is not None and incident.milestones.left_quorum_s is None:
        incident = _reached(incident, left_s, "left_quorum", "a quorum without it is seen")
    if eviction.open:
        return incident
    why = f"{eviction.state}: {eviction.outcome}"
    if eviction.state is EvictionState.CONFIRMED:
        why = f"evicted: {eviction.confirmed or eviction.outcome}"
    return resolved(incident, now_s if eviction.ended_s is None else eviction.ended_s, why)


# -- sighting ----------------------------------------------------------------------------------


def opened(history: History, verdict: Verdict, taken: Container[IncidentId]) -> Incident:
    now_s = history.now_s
    accused = (*verdict.culprits, *verdict.groups)
    subject = "job" if not verdict.culprits and len(accused) > 1 else (*accused, "job")[0]
    name = f"{verdict.kind.value}-{subject}-{int(now_s * 1000)}"
    names = (IncidentId(name if number == 1 else f"{name}-{number}") for number in count(1))
    replica_ids = (history.replica_id(group) for group in verdict.groups)
    return Incident(
        id=next(name for name in names if name not in taken),
        kind=verdict.kind,
        fingerprint=_fingerprint(verdict),
        signature=verdict.signature,
        state=State.PENDING,
        culprits=verdict.culprits,
        candidates=verdict.candidates,
        groups=verdict.groups,
        replica_ids=tuple(replica for replica in replica_ids if replica is not None),
        incarnations=_incarnations(history, verdict.suspects),
        verdict=verdict,
        milestones=Milestones(first_seen_s=now_s),
        story=(Transition(now_s, State.PENDING.value, verdict.reason),),
        last_seen_s=now_s,
        severity=severity_of(verdict, costs_s=history.config.eviction_cost_s),
        hosts=history.hosts(verdict.suspects),
        run=history.run,
        remedy=remedy_of(history, verdict),
    )


def seen_again(history: History, incident: Incident, verdict: Verdict) -> Incident:
    """The incident as seen now; if its suspects changed, so do their processes."""
    same = incident.suspects == verdict.suspects
    waited = {*incident.verdict.victims, *verdict.victims}  # even if TorchFT has ended them since
    return replace(
        incident,
        culprits=verdict.culprits,
        candidates=verdict.candidates,
        groups=verdict.groups,
        fingerprint=_fingerprint(verdict),
        signature=verdict.signature,
        incarnations=incident.incarnations if same else _incarnations(history, verdict.suspects),
        hosts=incident.hosts if same else history.hosts(verdict.suspects),
        verdict=replace(
            verdict,
            victims=tuple(sorted(waited - {*verdict.suspects})),
            waits=fuller(incident.verdict.waits if same else None, verdict.waits),
        ),
        last_seen_s=history.now_s,
        remedy=remedy_of(history, verdict),
    )


_COMMANDS: Final = 16
"""Most processes in one command."""


def remedy_of(history: History, verdict: Verdict) -> str:
    """What lets the ranks continue that a signal has stopped, or that somebody traces."""
    ranks = verdict.suspects or [RankName(name) for name in sorted(verdict.evidence)]
    tracks = [track for rank in ranks if (track := history.tracks.get(rank)) is not None]
    stopped_on = grouped((t.identity.host, t) for t in tracks if history.stopped(t))
    away = all(track.fresh is None and track.died_s is None for track in tracks)
    says = []
    if verdict.kind in (Kind.ABSENT, Kind.DEAD) and verdict.groups and away:
        group = verdict.groups[0]
        places = [t.identity.place for t in history.tracks.values() if t.group == group]
        says.append(bring_back(group, places))
    for host, stopped_tracks in stopped_on.items():
        some = stopped_tracks[:_COMMANDS]
        pids = " ".join(str(track.identity.pid) for track in some)
        names = listed([track.rank for track in some])
        says.append(f"To let {names} continue: kill -CONT {pids} on host {host}")
    says += [
        f"{track.rank} continues once {looks(track.tracer)} on host {track.identity.host} lets go"
        for track in tracks[:_COMMANDS]
        if track.tracer is not None
    ]
    return ". ".join(says)


def with_training(incident: Incident, commits: Commits) -> Incident:
    training = commits.since(min(incident.verdict.since_s, incident.milestones.first_seen_s))
    stood = incident.stood or training is Training.STANDS
    return replace(incident, training=training, stood=stood)


def weighed(
    incident: Incident, verdict: Verdict, commits: Commits, eviction_cost_s: float
) -> Incident:
    """The incident with the severity of this verdict; a change is noted in the story."""
    incident, now_s = with_training(incident, commits), commits.now_s
    severity = severity_of(verdict, incident.training, eviction_cost_s)
    if severity is incident.severity:
        return incident
    if incident.milestones.firing_s is None:
        return replace(incident, severity=severity)
    says = {Training.TRAINS: "the job trains", Training.STANDS: "nobody commits"}
    why = f"now {severity.value}: {says.get(incident.training, verdict.reason)}"
    return noted(incident, now_s, "severity", why, severity=severity)


def _fingerprint(verdict: Verdict) -> str:
    return f"{verdict.kind.value}:{','.join(verdict.suspects or verdict.groups)}"


def _incarnations(history: History, ranks: Iterable[str]) -> tuple[str, ...]:
    return tuple(t.identity.incarnation for t in history.tracks.values() if t.rank in ranks)


# -- tracker -----------------------------------------------------------------------------------

_LIGHTHOUSE: Final = "the Lighthouse"
"""What victims wait for while the Lighthouse is away."""
_EACH_OTHER: Final = "each other"
"""What victims wait for when all wait and none is missing."""
_HOUR_S: Final = 3600.0
_FOLLOW_S: Final = 1.0
"""Added to `follow_s`, within which milestones of an eviction still arrive."""


@dataclass(slots=True)
class TrackedIncident:
    """One incident over the ticks, with what only the tracker has to know of it."""

    incident: Incident
    sightings: int = 0
    """Ticks in a row that showed it with the same suspects."""
    restored: bool = False
    """From the store, and not seen since: it is not dropped the first time it is not seen."""
    asked_s: float | None = None
    """When its eviction was decided, until the evictor has taken it up."""
    waited_s: dict[RankName, float] = field(default_factory=dict)
    """Victim -> when it was last seen waiting for this fault."""
    held: tuple[Guard, str] | None = None
    """The guard that held its eviction last, and its words; None: none, or it was decided."""
    closed: str = ""
    """Why a person closes it from the next tick on; empty: nobody does."""
    before: Incident | None = None
    """The incident at the start of the tick; None: it is new."""

    @property
    def open(self) -> bool:
        return self.incident.open

    @property
    def listed(self) -> bool:
        """True if it is shown: it is open, or has fired."""
        return self.open or self.incident.milestones.firing_s is not None

    def keep(self, incident: Incident) -> None:
        """Take the incident after a transition; at its end nothing is asked any more."""
        self.incident = incident
        if not incident.open:
            self.restored, self.asked_s = False, None

    def shields(self, now_s: float, config: KeeperConfig) -> bool:
        """True if its group is being evicted, or has not committed since.

        Even while it fires again: an eviction that failed, or was cut short by a restart of the
        monitor, may have reached the processes, which would explain their death.
        """
        if self.incident.state is State.EVICTING or self.asked_s is not None:
            return True
        marks = self.incident.milestones
        asked_s, back = marks.evict_asked_s, marks.rejoined_s is not None
        return asked_s is not None and not back and now_s - asked_s <= config.follow_s

    def take_eviction(
        self, history: History, eviction: Eviction | None, config: KeeperConfig
    ) -> None:
        """Take the evictor's report on its latest eviction; None: it has none."""
        incident, asked_s = self.incident, self.incident.milestones.evict_asked_s
        if incident.kind is Kind.BY_HAND:
            if eviction is not None:
                self.keep(progressed(incident, eviction, history.now_s))
            return
        if eviction is not None and eviction.asked_s < (asked_s or 0.0):
            eviction = None  # an earlier, ended one does not count
        after = reported(history, incident, eviction, config)
        if after.milestones.evict_asked_s != asked_s:
            self.asked_s = None
        self.keep(after)

    def see(
        self, history: History, verdict: Verdict, commits: Commits, config: KeeperConfig
    ) -> None:
        """Take this tick's verdict; it fires once it was seen often enough."""
        same, now_s = self.incident.suspects == verdict.suspects, history.now_s
        if self.incident.state is State.EVICTING or self.asked_s is not None:
            waiting = verdict.victims if same else ()  # what is left of the group accuses the rest
            verdict = replace(self.incident.verdict, victims=waiting)  # the act explains the rest
        self.sightings = self.sightings + 1 if same else 1
        self.waited_s.update(dict.fromkeys(verdict.victims, now_s))
        self.restored = False
        incident = seen_again(history, self.incident, verdict)
        incident = weighed(incident, verdict, commits, config.eviction_cost_s)
        needed = 1 if verdict.settled else _needed(verdict.kind, config)
        if incident.state is State.PENDING and self.sightings >= needed:
            marks = replace(incident.milestones, firing_s=now_s)
            incident = enter_state(incident, now_s, State.FIRING, verdict.reason, milestones=marks)
        self.incident = incident

    def miss(
        self, history: History, commits: Commits, inhibited: str | None, config: KeeperConfig
    ) -> None:
        """Nobody saw it in this tick, perhaps because it is `inhibited`; it ends if it is over."""
        self.sightings = 0
        self.incident = incident = with_training(self.incident, commits)
        if incident.state is State.EVICTING:
            return
        if incident.training is not Training.UNKNOWN:
            incident = weighed(incident, incident.verdict, commits, config.eviction_cost_s)
            self.incident = incident
        if incident.milestones.evict_asked_s is not None:
            evicted = resolved_by_eviction(history, incident, None, config)
            if evicted is not None:
                self.keep(evicted)
                return
        why = inhibited
        if why is None and incident.state is State.PENDING and not self.restored:
            why = "did not last"
        if why is None:
            why = why_over(history, incident, config)
        if why is not None:
            self.keep(resolved(incident, history.now_s, why))

    def same_wait(self, history: History, rank: RankName) -> RankTrack | None:
        """The victim, if it is the process that was seen waiting, and has not committed since."""
        track = history.tracks.get(rank)
        waited_s = self.waited_s.get(rank, self.incident.last_seen_s)
        if track is None or track.first_seen_s > waited_s:
            return None
        return track if (track.last_commit_s or -math.inf) <= waited_s else None

    def note_ends(self, history: History) -> None:
        """Add a line to the story of a hang for the victims that gave up waiting.

        Not every wait is seen: DDP's reducer waits in C++. So of a rank that certainly hangs each
        peer that gives up later, by nothing of its own, is a victim, too.
        """
        incident = self.incident
        if incident.kind not in (Kind.NOT_ENTERED, Kind.DEADLOCK):
            return
        noted_before = {*incident.suspects, *incident.gave_up}
        began_s, waiting = incident.milestones.first_seen_s, {*_waiting(incident)}
        ends = [
            track
            for track in history.present()
            if track.died_s is not None
            and track.first_seen_s <= began_s < track.died_s
            and track.rank not in noted_before
            and _gave_up(track)
            and (
                self.same_wait(history, track.rank) is not None
                if track.rank in waiting
                else bool(incident.culprits) and track.group in incident.groups
            )
        ]
        if not ends:
            return
        at_s, ranks = min(track.death_s for track in ends), [track.rank for track in ends]
        verdict = incident.verdict
        after = seconds(max(0.0, at_s - verdict.since_s))
        gave_up = tuple(sorted({*incident.gave_up, *ranks}))
        victims = tuple(sorted({*verdict.victims, *ranks}))
        incident = replace(incident, gave_up=gave_up, verdict=replace(verdict, victims=victims))
        self.incident = noted(incident, at_s, "gave_up", f"{listed(ranks)} gave up after {after}")


def _needed(kind: Kind, config: KeeperConfig) -> int:
    """How many ticks in a row must show a fault of this kind."""
    match kind:
        case Kind.DEAD:
            return config.dead_observations
        case Kind.MISMATCH | Kind.DEADLOCK:
            return config.mismatch_sweeps
        case Kind.STATE_CORRUPT:
            return config.corrupt_sweeps
        case Kind.STRAGGLER:
            return 1  # its windows have already confirmed it
        case _:
            return config.hang_sweeps


@dataclass(slots=True)
class Tracker:
    """All incidents, open and recently resolved."""

    config: KeeperConfig
    _tracked: dict[IncidentId, TrackedIncident] = field(default_factory=dict)
    _old: dict[IncidentId, Incident] = field(default_factory=dict)
    """Those that are over for long, and still teach something."""

    def go_on(
        self, incidents: Sequence[Incident], evictions: Sequence[Eviction], before: Tracker
    ) -> None:
        """Continue the incidents of the store, with another tracker's counts of the same ones.

        `evictions`: unfinished ones to take over. Their incidents are being evicted, and asking
        again is the same eviction.
        """
        for incident in incidents:
            tracked = TrackedIncident(incident, restored=incident.open)
            if (earlier := before._tracked.get(incident.id)) is not None:
                tracked.sightings, tracked.waited_s = earlier.sightings, earlier.waited_s
            self._tracked[incident.id] = tracked
        for eviction in evictions:
            taken = self._tracked.get(eviction.incident_id)
            if taken is not None and taken.open:
                taken.incident = being_evicted(taken.incident, eviction)

    def _faults(self) -> Iterator[TrackedIncident]:
        """All but evictions by hand: those are followed, and judge nothing."""
        every = self._tracked.values()
        return (tracked for tracked in every if tracked.incident.kind is not Kind.BY_HAND)

    def _open(self) -> list[TrackedIncident]:
        """Open faults, oldest first."""
        still = (tracked for tracked in self._faults() if tracked.open)
        return sorted(still, key=lambda tracked: oldest_first(tracked.incident))

    def all(self) -> tuple[Incident, ...]:
        return tuple(tracked.incident for tracked in self._faults())

    def open(self) -> tuple[Incident, ...]:
        """Open incidents, oldest first."""
        return tuple(tracked.incident for tracked in self._open())

    def shown(self) -> tuple[Incident, ...]:
        """Open ones, and resolved ones that fired, newest first."""
        shown = (tracked.incident for tracked in self._faults() if tracked.listed)
        return tuple(sorted(shown, key=newest_first))

    def ripe(self, now_s: float) -> tuple[Incident, ...]:
        """Firing incidents seen in this tick and for long enough, oldest first, of which no
        eviction is decided.
        """
        return tuple(
            tracked.incident
            for tracked in self._open()
            if tracked.incident.state is State.FIRING
            and tracked.incident.last_seen_s == now_s
            and tracked.sightings >= _needed(tracked.incident.kind, self.config)
            and tracked.asked_s is None
        )

    def decided(self, ruling: Ruling, now_s: float) -> bool:
        """Remember what was decided about an incident; whether that says anything new."""
        tracked = self._tracked[ruling.incident_id]
        if isinstance(ruling, Evict):
            tracked.asked_s, tracked.held = now_s, None
            return True
        before, tracked.held = tracked.held, (ruling.guard, f"{ruling.reason}. {ruling.release}")
        if ruling.would is not None:
            observed = {ruling.would.group: now_s, **tracked.incident.observed}
            tracked.incident = replace(tracked.incident, observed=observed)
        return tracked.held != before

    def observed(self, now_s: float) -> tuple[Eviction, ...]:
        """Evictions that observe mode held back, of the budget's hour or of open incidents."""
        return tuple(
            Eviction(incident.id, group, None, at_s)
            for incident in (*self.all(), *self._old.values())
            for group, at_s in incident.observed.items()
            if incident.open or now_s - at_s < _HOUR_S
        )

    def lost(self) -> frozenset[str]:
        """Incarnations that open incidents say are out of sight with their hosts."""
        lost = (incident for incident in self.open() if incident.verdict.lost)
        return frozenset(name for incident in lost for name in incident.incarnations)

    def lessons(self) -> tuple[Incident, ...]:
        """Incidents that are over and ended by an eviction, one that observe mode held back, or a
        death; oldest first.
        """
        taught = {incident.id: incident for incident in self.all() if _teaches(incident)}
        return tuple(sorted((self._old | taught).values(), key=attrgetter("ended_s", "id")))

    def awaiting(self) -> Collection[IncidentId]:
        """Incidents whose eviction is decided but not yet taken up by the evictor."""
        return {key for key, tracked in self._tracked.items() if tracked.asked_s is not None}

    def shielded(self, now_s: float) -> Mapping[GroupName, Incident]:
        """Groups that we evict or that are coming back: they are not accused again."""
        return {
            group: tracked.incident
            for tracked in self._faults()
            if tracked.shields(now_s, self.config)
            for group in tracked.incident.groups
        }

    def waits(self, history: History) -> dict[RankName, Wait]:
        """Victim of an incident -> what it waits for, or waited for until it died.

        A rank that committed after it was seen waiting is no longer a victim, nor is a process that
        started since. Of an incident that is over because its suspects ended, the victims that
        ended with them are still victims.
        """
        waits: dict[RankName, Wait] = {}
        for tracked in sorted(  # of two with one victim the one that is open and has fired counts
            self._tracked.values(),
            key=lambda t: (t.open, t.incident.state is not State.PENDING, oldest_first(t.incident)),
        ):
            incident, over = tracked.incident, not tracked.open
            ended = over and not _ended_itself(history, incident)
            if not incident.verdict.stops or ended or incident.run not in ("", history.run):
                continue
            whom = listed(incident.groups, last="or" if incident.candidates else "and")
            if not incident.groups:
                whom = _LIGHTHOUSE if incident.kind in OF_LIGHTHOUSE else _EACH_OTHER
            fired = incident.state is not State.PENDING
            wait = Wait(incident.suspects, incident.groups, whom, incident.kind, fired)
            for rank in _waiting(incident):
                track = tracked.same_wait(history, rank)
                if track is not None and not (over and track.died_s is None):
                    waits[rank] = wait
        return waits

    def _owner(
        self, verdict: Verdict, taken: Collection[IncidentId] = ()
    ) -> TrackedIncident | None:
        """The open incident of a verdict: with the same groups, else with some of them.

        `taken`: incidents of other verdicts of this tick.
        """
        groups = {*verdict.groups}
        candidates = [
            tracked
            for incident_id, tracked in self._tracked.items()
            if tracked.open
            and incident_id not in taken
            and tracked.incident.kind is verdict.kind
            and (
                not groups.isdisjoint(tracked.incident.groups)
                or not (tracked.incident.groups or groups)
            )
        ]
        return min(
            candidates, key=lambda each: each.incident.groups != verdict.groups, default=None
        )

    def close(self, incident_id: IncidentId, author: str, reason: str) -> bool:
        """A person closes an open incident of a missing group or of lost progress, from the next
        tick on; False: there is none.
        """
        tracked = self._tracked.get(incident_id)
        if tracked is None or not tracked.open or tracked.incident.kind not in _LASTING:
            return False
        tracked.closed = f"closed by {author}: {reason}"
        return True

    def _closed(self, verdict: Verdict) -> bool:
        """True if a person has closed what this verdict is about."""
        return verdict.kind in _LASTING and any(
            incident.groups == verdict.groups and (incident.ended_s or 0.0) > verdict.since_s
            for incident in self.all()
            if incident.kind is verdict.kind and not incident.open
        )

    def take_evictions(self, history: History, evictions: Sequence[Eviction]) -> None:
        """Begin a tick: evictions shield their groups from this tick's verdicts, and who gave up
        waiting is a victim.
        """
        for tracked in self._tracked.values():
            tracked.before = tracked.incident
        if any(track.died_s is not None for track in history.present()):
            for tracked in self._open():
                tracked.note_ends(history)
        by_time = sorted(evictions, key=attrgetter("asked_s"))
        latest = {eviction.incident_id: eviction for eviction in by_time}
        for key, eviction in latest.items():
            if eviction.by_hand and key not in self._tracked:
                self._tracked[key] = TrackedIncident(by_hand(history, eviction))
        for tracked in [tracked for tracked in self._tracked.values() if tracked.open]:
            tracked.take_eviction(history, latest.get(tracked.incident.id), self.config)

    def end_runs(self, history: History) -> None:
        """Resolve what began in another run, but for evictions: the evictor ends them."""
        for tracked in self._tracked.values():
            incident = tracked.incident
            if incident.run in ("", history.run) or incident.run_over_s is not None:
                continue
            incident = replace(incident, run_over_s=history.now_s)
            if incident.open and incident.state is not State.EVICTING:
                why = f"its run is over: run {history.run} began"
                incident = resolved(incident, history.now_s, why)
            tracked.incident = incident

    def update(
        self,
        history: History,
        verdicts: Sequence[Verdict],
        *,
        unknown: frozenset[Kind] = frozenset(),
        inhibited: Mapping[tuple[Kind, GroupName], str] | None = None,
    ) -> None:
        """Take verdicts, after `take_evictions`."""
        now_s = history.now_s
        for tracked in self._open():
            if tracked.closed:
                tracked.keep(resolved(tracked.incident, now_s, tracked.closed))
        if verdicts or self._open():
            self._take(history, verdicts, unknown, inhibited or {})
        for tracked in self._tracked.values():
            incident = followed(history, tracked.incident, self.config)
            tracked.incident = _heard(history, incident)
            asked_s = tracked.asked_s
            if asked_s is not None and now_s - asked_s > self.config.eviction_ack_s:
                tracked.asked_s = None

    def changed(self, now_s: float) -> tuple[Incident, ...]:
        """End a tick: the incidents that changed in it, oldest first. Old ones are forgotten."""
        changed = [t.incident for t in self._tracked.values() if differs(t.before, t.incident)]
        self._forget(now_s)
        return tuple(sorted(changed, key=oldest_first))

    def _take(
        self,
        history: History,
        verdicts: Sequence[Verdict],
        unknown: frozenset[Kind],
        inhibited: Mapping[tuple[Kind, GroupName], str],
    ) -> None:
        commits, seen = Commits.of(history), set[IncidentId]()
        for verdict in verdicts:
            if self._closed(verdict):
                continue
            tracked = self._owner(verdict, seen)
            if tracked is None:
                tracked = TrackedIncident(opened(history, verdict, self._tracked))
                self._tracked[tracked.incident.id] = tracked
            tracked.see(history, verdict, commits, self.config)
            seen.add(tracked.incident.id)
        for tracked in self._open():
            incident = tracked.incident
            if incident.id not in seen and incident.kind not in unknown:
                reasons = (inhibited.get((incident.kind, group)) for group in incident.groups)
                why = next((reason for reason in reasons if reason is not None), None)
                tracked.miss(history, commits, why, self.config)

    def _forget(self, now_s: float) -> None:
        for key, tracked in list(self._tracked.items()):
            story, last_s = tracked.incident.story, tracked.incident.last_seen_s
            ended_s = story[-1].at_s if story else last_s
            old = not tracked.open and now_s - ended_s > self.config.keep_resolved_s
            if old and _teaches(tracked.incident):
                self._old[key] = tracked.incident
            if old or not tracked.listed:
                del self._tracked[key]
        # recent enough for a crash loop, and the latest with a cost
        since_s = now_s - max(self.config.crash_loop_memory_s, self.config.follow_s + _FOLLOW_S)
        priced = [each.id for each in self.lessons() if price_s(each, 1) is not None][-COSTS_KEPT:]
        for key in [key for key in self._old if key not in priced]:
            if (self._old[key].ended_s or 0.0) < since_s:
                del self._old[key]


def _teaches(incident: Incident) -> bool:
    by_hand = incident.kind is Kind.BY_HAND
    return not (incident.open or by_hand) and (teaches(incident) or bool(incident.observed))


def _waiting(incident: Incident) -> Sequence[RankName]:
    """Its victims; where ranks wait for each other and none can be named, its candidates too."""
    tie = incident.kind is Kind.DEADLOCK and len(incident.candidates) > 1
    return (*incident.verdict.victims, *(incident.candidates if tie else ()))


def _ended_itself(history: History, incident: Incident) -> bool:
    """True if it is over because all its suspects ended, and not by an eviction."""
    marks, tracks = incident.milestones, _suspect_tracks(history, incident)
    if marks.firing_s is None or marks.evict_asked_s is not None or incident.kind is Kind.DEAD:
        return False
    return bool(tracks) and all(
        track.died_s is not None and track.identity.incarnation in incident.incarnations
        for track in tracks
    )


def _gave_up(track: RankTrack) -> bool:
    """True if it ended by nothing of its own that is known, and nobody asked it to."""
    report = track.report
    gone = report is not None and not report.process.alive
    return gone and end_of(track) in (End.PEERS, End.UNKNOWN)
