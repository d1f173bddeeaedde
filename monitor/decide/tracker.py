"""Incidents over ticks: one record each, and one table of what moves them (`TRANSITIONS`).

Theory of operation. A verdict belongs to the open incident of the same kind on the same
group; otherwise it opens one. An incident seen in enough consecutive sweeps with the same suspects
fires. An eviction that the evictor reports makes it `evicting`; when the culprit's replica id has
left the quorum it is resolved. A pending incident is dropped the first time it is not seen. A
firing one ends only on positive evidence: the rank moved, is another process, or is gone. Being
unable to see it is no evidence. Milestones are still awaited after the end. After a restart of
the monitor restored incidents continue: the same fault gets the same incident, and an
eviction asked before is finished or asked again, never forgotten. An eviction by hand is an
incident, too: it accuses nobody, judges nothing, and ends as its eviction does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import count
from operator import attrgetter
from typing import Any, Final

from lightkeeper.monitor.decide.commits import Commits
from lightkeeper.monitor.decide.guards import COSTS_KEPT, HOUR_S, price_s, teaches
from lightkeeper.monitor.detect.dead import told
from lightkeeper.monitor.detect.detectors import VictimWait
from lightkeeper.monitor.detect.endings import End, end_of
from lightkeeper.monitor.detect.history import History
from lightkeeper.monitor.detect.track import RankTrack
from lightkeeper.monitor.detect.wording import looks
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, EvictionState, Guard, Ruling
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
from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import OF_LIGHTHOUSE, Kind, Severity, Verdict
from lightkeeper.monitor.model.wait_map import fuller
from lightkeeper.monitor.model.wording import bring_back, listed, seconds

# -- why a fault is over -----------------------------------------------------------------------

GONE_UNCONFIRMED_S: Final = 30.0
"""An eviction whose processes are gone for this long no longer blocks others, even without a new
quorum to confirm it: another faulty group may keep one from forming."""

_UNTIL_ABSENT_S: Final = 75.0
"""A lost group's incident is over when it trains again, or once `absent` says that it does not."""
_LASTING: Final = (Kind.ABSENT, Kind.PROGRESS_LOST)
"""What stays true until it is made good, or a person closes it."""


def why_over(record: IncidentRecord, history: History, config: KeeperConfig) -> str | None:
    """Why a fault that is not seen now is over; None while that is not known."""
    incident = record.incident
    if not history.present() and history.now_s - incident.last_seen_s >= config.clear_s:
        return "its ranks are no longer registered"
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
        return "its ranks are no longer registered"
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
        case Kind.STATE_CORRUPT | Kind.STRAGGLER if dead:
            return "its process ended"
        case Kind.STATE_CORRUPT:
            return "its numbers are in order again"
        case Kind.STRAGGLER:
            return _keeps_pace(history, incident)
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
    answers = history.lighthouse is not None and unseen_s >= config.clear_s
    if incident.kind is Kind.LIGHTHOUSE_AWAY:
        over = answers and not _ending(history, incident, config)
        return "the Lighthouse answers again" if over else None
    if incident.kind is Kind.UNSEEN:
        return "every participant is seen" if answers else None
    if unseen_s < config.lag_clear_s / 2:
        return None
    if not any(group in history.groups() for group in incident.groups):
        return "its ranks are no longer registered" if incident.groups else "commits go through"
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
        return _keeps_pace(history, incident)
    if incident.verdict.stops and _still_stands(history, incident):
        return None
    last_s = incident.last_seen_s
    commits = [track.last_commit_s for track in history.present() if track.commits]
    moves = commits or [track.moved_s for track in history.present()]
    moved = any(at_s is not None and at_s > last_s for at_s in moves)
    return "the job continues" if moved and history.now_s - last_s >= config.clear_s else None


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


def _keeps_pace(history: History, incident: Incident) -> str | None:
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


# -- milestones --------------------------------------------------------------------------------


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


_AWAITED: Final = (
    ("left_quorum", "a quorum without it is seen", _left_quorum_s),
    ("survivor_commit", "another group commits", _survivor_commit_s),
    ("rejoined", "the group commits again", _rejoined_s),
)


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
        state=State.PENDING,
        replica_ids=tuple(replica for replica in replica_ids if replica is not None),
        verdict=verdict,
        milestones=Milestones(first_seen_s=now_s),
        story=(Transition(now_s, State.PENDING.value, verdict.reason),),
        severity=severity_of(verdict, costs_s=history.config.eviction_cost_s),
        run=history.run,
        **_of_verdict(history, verdict),
        **_of_suspects(history, verdict),
    )


def _of_verdict(history: History, verdict: Verdict) -> dict[str, Any]:
    """What an incident has of its latest verdict."""
    return {
        "culprits": verdict.culprits,
        "candidates": verdict.candidates,
        "groups": verdict.groups,
        "fingerprint": f"{verdict.kind.value}:{','.join(verdict.suspects or verdict.groups)}",
        "signature": verdict.signature,
        "last_seen_s": history.now_s,
        "remedy": remedy_of(history, verdict),
    }


def _of_suspects(history: History, verdict: Verdict) -> dict[str, Any]:
    """What an incident has of its suspects: of those of a group, and those that changed."""
    tracks = (t for t in history.tracks.values() if t.rank in verdict.suspects)
    incarnations = tuple(track.identity.incarnation for track in tracks)
    return {"incarnations": incarnations, "hosts": history.hosts(verdict.suspects)}


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


# -- the record --------------------------------------------------------------------------------


@dataclass(slots=True)
class IncidentRecord:
    """One incident, with all that is kept of it from tick to tick."""

    incident: Incident
    eviction: Eviction | None = None
    """The evictor's latest report on its eviction; None: it has none."""
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
    inhibited: str | None = None
    """What explains that it is not seen in this tick; None: nothing."""
    closed: str | None = None
    """Why a person closes it from the next tick on; None: nobody does."""
    before: Incident | None = None
    """The incident at the start of the tick; None: it is new."""

    @property
    def open(self) -> bool:
        return self.incident.open

    @property
    def fired(self) -> bool:
        return self.incident.milestones.firing_s is not None

    @property
    def changed(self) -> bool:
        """True if more has changed in this tick than its last sight and its verdict's words."""
        before, after = self.before, self.incident
        if before is None or before.verdict.confidence is not after.verdict.confidence:
            return True
        return before != replace(after, last_seen_s=before.last_seen_s, verdict=before.verdict)

    def change(self, **changes: Any) -> None:
        self.incident = replace(self.incident, **changes)

    def note(self, at_s: float, to: str, reason: str, **changes: Any) -> None:
        """Add a line to the story."""
        self.change(story=(*self.incident.story, Transition(at_s, to, reason)), **changes)

    def reach(self, milestone: str, at_s: float, reason: str) -> None:
        marks = replace(self.incident.milestones, **{f"{milestone}_s": at_s})
        self.note(at_s, milestone, reason, milestones=marks)

    def move(
        self, on: Trigger, history: History, config: KeeperConfig, at_s: float | None = None
    ) -> None:
        """Apply `TRANSITIONS`. `at_s`: when it happened; None: now."""
        at_s = history.now_s if at_s is None else at_s
        for states, trigger, state, why in TRANSITIONS:
            if trigger is not on or self.incident.state not in states:
                continue
            if (reason := why(self, history, config)) is not None:
                over = state is State.RESOLVED
                changes = {"resolution": reason} if over else {}
                self.note(at_s, state.value, reason, state=state, **changes)
                if over or state is State.EVICTING:
                    self.asked_s = None
                if over:
                    self.restored = False

    def take_eviction(
        self, history: History, eviction: Eviction | None, config: KeeperConfig
    ) -> None:
        """Take the evictor's report; one on an eviction before the latest does not count."""
        asked_s = self.incident.milestones.evict_asked_s or 0.0
        self.eviction = None if eviction is None or eviction.asked_s < asked_s else eviction
        if self.eviction is not None:
            self.move(Trigger.ASKED, history, config, self.eviction.asked_s)
        if self.incident.kind is not Kind.BY_HAND:
            self.move(Trigger.REPORTED, history, config)
        elif self.eviction is not None:
            self.move(Trigger.REPORTED_BY_HAND, history, config, self.eviction.ended_s)

    def see(
        self, history: History, verdict: Verdict, commits: Commits, config: KeeperConfig
    ) -> None:
        """Take this tick's verdict. If its suspects changed, so do their processes."""
        before, now_s = self.incident, history.now_s
        same = before.suspects == verdict.suspects
        if before.state is State.EVICTING or self.asked_s is not None:
            waiting = verdict.victims if same else ()  # what is left of the group accuses the rest
            verdict = replace(before.verdict, victims=waiting)  # the act explains the rest
        self.sightings = self.sightings + 1 if same else 1
        self.waited_s.update(dict.fromkeys(verdict.victims, now_s))
        self.restored = False
        self.change(**_of_verdict(history, verdict))
        if before.suspects != verdict.suspects:
            self.change(**_of_suspects(history, verdict))
        waited = {*before.verdict.victims, *verdict.victims}  # even if TorchFT has ended them since
        victims = tuple(sorted(waited - {*verdict.suspects}))
        waits = fuller(before.verdict.waits if same else None, verdict.waits)
        self.change(verdict=replace(verdict, victims=victims, waits=waits))
        self._weigh(commits, config, verdict)
        self.move(Trigger.SEEN, history, config)

    def miss(
        self, history: History, commits: Commits, inhibited: str | None, config: KeeperConfig
    ) -> None:
        """Nobody saw it in this tick, perhaps because it is `inhibited`."""
        self.sightings, self.inhibited = 0, inhibited
        self._weigh(commits, config, None)
        self.move(Trigger.MISSED, history, config)

    def _weigh(self, commits: Commits, config: KeeperConfig, seen: Verdict | None) -> None:
        """Take whether the job trains, and the severity that follows, from the verdict seen in this
        tick, or once that is known.
        """
        incident = self.incident
        marks, verdict = incident.milestones, seen or incident.verdict
        training = commits.since(min(incident.verdict.since_s, marks.first_seen_s))
        stood = incident.stood or training is Training.STANDS
        self.change(training=training, stood=stood)
        if seen is None and (incident.state is State.EVICTING or training is Training.UNKNOWN):
            return
        severity = severity_of(verdict, training, config.eviction_cost_s)
        if severity is incident.severity:
            return
        self.change(severity=severity)
        if marks.firing_s is not None:
            says = {Training.TRAINS: "the job trains", Training.STANDS: "nobody commits"}
            why = f"now {severity.value}: {says.get(training, verdict.reason)}"
            self.note(commits.now_s, "severity", why)

    def follow(self, history: History, config: KeeperConfig) -> None:
        """Note the milestones of this tick, awaited even after its end."""
        incident, marks = self.incident, self.incident.milestones
        since_s = marks.evict_asked_s
        if since_s is None and (not incident.open or incident.kind is Kind.DEAD):  # it may be gone
            since_s = marks.firing_s
        # without groups there is nobody to come back
        if since_s is None or history.now_s - since_s > config.follow_s or not incident.groups:
            return
        for milestone, reason, when in _AWAITED:
            due = getattr(marks, f"{milestone}_s") is None
            if due and (at_s := when(history, incident, since_s)) is not None:
                self.reach(milestone, at_s, reason)
        if marks.rejoined_s is None and self.incident.milestones.rejoined_s is not None:
            back = (track.rank for track in history.present() if track.group in incident.groups)
            self.change(back_on=history.hosts(tuple(back)))

    def hear(self, history: History) -> None:
        """Note what a scheduler says of its ranks after it was acted on: the verdict stands."""
        incident, before = self.incident, self.incident.verdict.evidence.get("scheduler")
        asked = incident.milestones.evict_asked_s is not None
        if before is None or not asked or not incident.open or not history.ends:
            return
        said = told(history, _suspect_tracks(history, incident))
        if said is None or said.code == "evicted":
            return
        line = one_line(f"{said.witness}: {said.text}")
        if line not in (before, *(each.reason for each in incident.story)):
            self.note(history.now_s, "scheduler", line)

    def note_ends(self, history: History) -> None:
        """Add a line to the story of a hang for the victims that gave up waiting.

        Not every wait is seen: DDP's reducer waits in C++. So if a rank certainly hangs, each peer
        that gives up later, by nothing of its own, is a victim, too.
        """
        incident, verdict = self.incident, self.incident.verdict
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
        says = f"{listed(ranks)} gave up after {seconds(max(0.0, at_s - verdict.since_s))}"
        victims = tuple(sorted({*verdict.victims, *ranks}))
        gave_up = tuple(sorted({*incident.gave_up, *ranks}))
        verdict = replace(verdict, victims=victims)
        self.note(at_s, "gave_up", says, gave_up=gave_up, verdict=verdict)

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

    def same_wait(self, history: History, rank: RankName) -> RankTrack | None:
        """The victim, if it is the process that was seen waiting, and has not committed since."""
        track = history.tracks.get(rank)
        waited_s = self.waited_s.get(rank, self.incident.last_seen_s)
        if track is None or track.first_seen_s > waited_s:
            return None
        return track if (track.last_commit_s or -math.inf) <= waited_s else None


# -- transitions -------------------------------------------------------------------------------


class Trigger(StrEnum):
    """On what an incident may enter another state."""

    ASKED = "asked"  # the evictor has taken up a newer eviction
    REPORTED = "reported"  # in each tick: the evictor says how far its eviction is
    REPORTED_BY_HAND = "reported_by_hand"  # of an eviction that a person asked for
    RUN_OVER = "run_over"  # another run begins
    CLOSED = "closed"  # a person closes it
    SEEN = "seen"  # this tick's verdicts show it
    MISSED = "missed"  # they do not


def _taken_up(record: IncidentRecord, *_: object) -> str | None:
    eviction, marks = record.eviction, record.incident.milestones
    asked_s = marks.evict_asked_s
    if eviction is None or (asked_s is not None and eviction.asked_s <= asked_s):
        return None
    record.change(milestones=replace(marks, evict_asked_s=eviction.asked_s))
    return f"asked for {eviction.group}"


def _evicted(record: IncidentRecord, history: History, config: KeeperConfig) -> str | None:
    """What shows that its group is evicted. A lost one may still come back, until `absent`."""
    incident, eviction = record.incident, record.eviction
    if eviction is not None and eviction.lost and incident.milestones.rejoined_s is None:
        absent_s = incident.verdict.since_s + _UNTIL_ABSENT_S
        if history.now_s < absent_s or _suspect_tracks(history, incident):
            return None
    evicted = _left(record, history, config, eviction)
    if evicted is None and eviction is None and restarted(history, incident):
        return other_processes(history, incident)
    return evicted


def _left(
    record: IncidentRecord, history: History, config: KeeperConfig, eviction: Eviction | None
) -> str | None:
    """What shows that its group is evicted, by this report on it; None until that is shown.

    A group is evicted if its replica id left the quorum *and* its processes are gone, or out of
    sight with a dead heartbeat. One that was never in a quorum has none to leave. If no quorum
    forms for `follow_s` after its processes were gone (the job may have ended), it is resolved too.
    """
    incident, marks, now_s = record.incident, record.incident.milestones, history.now_s
    gone_s = unseen_s = None
    left_s = marks.left_quorum_s
    if eviction is not None:
        left_s, unseen_s = eviction.left_quorum_s, eviction.unseen_s
        gone_s = eviction.gone_s or unseen_s
    if left_s is None and out_of_quorum(history, incident):
        left_s = now_s
    if left_s is None:
        joined = bool(incident.replica_ids)
        if gone_s is None or (joined and now_s - gone_s <= config.follow_s):
            return None
        why = "no quorum was formed since" if joined else "it was in no quorum"
        return f"evicted: all its processes are gone; {why}"
    if gone_s is None and not processes_gone(history, incident):
        return None
    after = ""
    if marks.evict_asked_s is not None:
        after = f" {max(0.0, left_s - marks.evict_asked_s):.1f} s after it was asked"
    if marks.left_quorum_s is None:
        record.reach("left_quorum", left_s, f"left the quorum{after}")
    return f"evicted: left the quorum{after}{'' if unseen_s is None else ', host out of sight'}"


def _in_vain(record: IncidentRecord, history: History, config: KeeperConfig) -> str | None:
    """Why an eviction is over that has not put its group out; None while it continues, even if its
    processes are gone: until the next quorum. The evictor does not know one of before a restart.
    """
    eviction = record.eviction
    if eviction is None:
        cut_short = "the eviction was cut short by a restart of the monitor: asked again if needed"
        return None if history.lighthouse is None else cut_short
    done = eviction.gone_s is not None or eviction.unseen_s is not None
    overdue = not done and history.now_s - eviction.asked_s > config.eviction_deadline_s
    if eviction.failed is None and not overdue:
        return None
    return f"the eviction failed: {eviction.failed or 'nothing happened within its deadline'}"


def _ended_by_hand(record: IncidentRecord, *_: object) -> str | None:
    """An eviction that a person asked for accuses nobody: its incident ends as it does."""
    eviction = record.eviction
    if eviction is None:
        return None
    left_s = eviction.left_quorum_s
    if left_s is not None and record.incident.milestones.left_quorum_s is None:
        record.reach("left_quorum", left_s, "a quorum without it is seen")
    if eviction.open:
        return None
    if eviction.state is EvictionState.CONFIRMED:
        return f"evicted: {eviction.confirmed or eviction.outcome}"
    return f"{eviction.state}: {eviction.outcome}"


def _lasts(record: IncidentRecord, history: History, config: KeeperConfig) -> str | None:
    """The verdict, once it was seen often enough."""
    verdict, marks = record.incident.verdict, record.incident.milestones
    if record.sightings < (1 if verdict.settled else _needed(verdict.kind, config)):
        return None
    record.change(milestones=replace(marks, firing_s=history.now_s))
    return verdict.reason


def _left_before(record: IncidentRecord, history: History, config: KeeperConfig) -> str | None:
    """It fires again after a failed eviction: what shows that the eviction failed."""
    asked = record.incident.milestones.evict_asked_s is not None
    return _left(record, history, config, None) if asked else None


def _run_over(_: IncidentRecord, history: History, __: KeeperConfig) -> str:
    return f"its run is over: run {history.run} began"


def _did_not_last(record: IncidentRecord, *_: object) -> str | None:
    return None if record.restored else "did not last"


_PENDING: Final = (State.PENDING,)
_FAULT: Final = (State.PENDING, State.FIRING)
_EVICTING: Final = (State.EVICTING,)
_OPEN: Final = (*_FAULT, *_EVICTING)
Why = Callable[[IncidentRecord, History, KeeperConfig], str | None]
TRANSITIONS: Final[tuple[tuple[tuple[State, ...], Trigger, State, Why], ...]] = (
    # in        on                        to              if this gives a reason
    (_OPEN,     Trigger.ASKED,            State.EVICTING, _taken_up),
    (_EVICTING, Trigger.REPORTED,         State.RESOLVED, _evicted),
    (_EVICTING, Trigger.REPORTED,         State.FIRING,   _in_vain),
    (_EVICTING, Trigger.REPORTED_BY_HAND, State.RESOLVED, _ended_by_hand),
    (_FAULT,    Trigger.RUN_OVER,         State.RESOLVED, _run_over),
    (_OPEN,     Trigger.CLOSED,           State.RESOLVED, lambda r, *_: r.closed),
    (_PENDING,  Trigger.SEEN,             State.FIRING,   _lasts),
    (_FAULT,    Trigger.MISSED,           State.RESOLVED, _left_before),
    (_FAULT,    Trigger.MISSED,           State.RESOLVED, lambda r, *_: r.inhibited),
    (_PENDING,  Trigger.MISSED,           State.RESOLVED, _did_not_last),
    (_FAULT,    Trigger.MISSED,           State.RESOLVED, why_over),
)  # fmt: skip
"""The whole state machine, asked from above: an incident that is resolved stays so."""


# -- tracker -----------------------------------------------------------------------------------

_FOLLOW_S: Final = 1.0
"""Added to `follow_s`, within which milestones of an eviction still arrive."""


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
    _records: dict[IncidentId, IncidentRecord] = field(default_factory=dict)
    _old: dict[IncidentId, Incident] = field(default_factory=dict)
    """Those that are over for long, and still teach something."""

    # -- one tick ----------------------------------------------------------------------------

    def go_on(
        self, history: History, incidents: Sequence[Incident], evictions: Sequence[Eviction],
        before: Tracker,
    ) -> None:  # fmt: skip
        """Continue the incidents of the store, with another tracker's counts of the same ones.

        `evictions`: unfinished ones to take over. Their incidents are being evicted, and asking
        again is the same eviction.
        """
        for incident in incidents:
            self._records[incident.id] = record = IncidentRecord(incident, restored=incident.open)
            if (earlier := before._records.get(incident.id)) is not None:
                record.sightings, record.waited_s = earlier.sightings, earlier.waited_s
        for eviction in evictions:
            if eviction.incident_id in self._records:
                record = self._records[eviction.incident_id]
                record.eviction = eviction
                record.move(Trigger.ASKED, history, self.config, eviction.asked_s)

    def close(self, incident_id: IncidentId, author: str, reason: str) -> bool:
        """A person closes an open incident of a missing group or of lost progress, from the next
        tick on; False: there is none.
        """
        record = self._records.get(incident_id)
        if record is None or not record.open or record.incident.kind not in _LASTING:
            return False
        record.closed = f"closed by {author}: {reason}"
        return True

    def take_evictions(self, history: History, evictions: Sequence[Eviction]) -> None:
        """Begin a tick: evictions shield their groups; ranks that gave up waiting are victims."""
        for record in self._records.values():
            record.before = record.incident
        if any(track.died_s is not None for track in history.present()):
            for record in self._open():
                record.note_ends(history)
        by_time = sorted(evictions, key=attrgetter("asked_s"))
        latest = {eviction.incident_id: eviction for eviction in by_time}
        for key, eviction in latest.items():
            if eviction.by_hand and key not in self._records:
                self._records[key] = IncidentRecord(by_hand(history, eviction))
        for record in self._records.values():
            if record.open:
                record.take_eviction(history, latest.get(record.incident.id), self.config)

    def end_runs(self, history: History) -> None:
        """Resolve what began in another run, but for evictions: the evictor ends them."""
        for record in self._records.values():
            if record.incident.run not in ("", history.run) and record.incident.run_over_s is None:
                record.change(run_over_s=history.now_s)
                record.move(Trigger.RUN_OVER, history, self.config)

    def update(
        self,
        history: History,
        verdicts: Sequence[Verdict],
        *,
        unknown: Container[str] = (),
        inhibited: Mapping[tuple[Kind, GroupName], str],
    ) -> None:
        """Take verdicts, after `take_evictions`."""
        for record in self._open():
            record.move(Trigger.CLOSED, history, self.config)
        if verdicts or self._open():
            self._take(history, verdicts, unknown, inhibited)
        for record in self._records.values():
            record.follow(history, self.config)
            record.hear(history)
            asked_s = record.asked_s
            if asked_s is not None and history.now_s - asked_s > self.config.eviction_ack_s:
                record.asked_s = None

    def _take(
        self,
        history: History,
        verdicts: Sequence[Verdict],
        unknown: Container[str],
        inhibited: Mapping[tuple[Kind, GroupName], str],
    ) -> None:
        commits, seen = Commits.of(history), set[IncidentId]()
        for verdict in verdicts:
            if self._is_closed(verdict):
                continue
            record = self._owner(verdict, seen)
            if record is None:
                record = IncidentRecord(opened(history, verdict, self._records))
                self._records[record.incident.id] = record
            record.see(history, verdict, commits, self.config)
            seen.add(record.incident.id)
        for record in self._open():
            incident = record.incident
            if incident.id not in seen and incident.kind not in unknown:
                reasons = (inhibited.get((incident.kind, group)) for group in incident.groups)
                why = next((reason for reason in reasons if reason is not None), None)
                record.miss(history, commits, why, self.config)

    def _owner(self, verdict: Verdict, taken: Collection[IncidentId]) -> IncidentRecord | None:
        """The open incident of a verdict: with the same groups, else with some of them.

        `taken`: incidents of other verdicts of this tick.
        """
        groups = {*verdict.groups}
        candidates = [
            record
            for record in self._records.values()
            if (incident := record.incident).open
            and incident.id not in taken
            and incident.kind is verdict.kind
            and (not groups.isdisjoint(incident.groups) or not (incident.groups or groups))
        ]
        return min(candidates, key=lambda r: r.incident.groups != verdict.groups, default=None)

    def _is_closed(self, verdict: Verdict) -> bool:
        """True if a person has closed what this verdict is about."""
        return verdict.kind in _LASTING and any(
            incident.groups == verdict.groups and (incident.ended_s or 0.0) > verdict.since_s
            for incident in self.all()
            if incident.kind is verdict.kind and not incident.open
        )

    def decided(self, ruling: Ruling, now_s: float) -> bool:
        """Remember what was decided about an incident; whether that says anything new."""
        record = self._records[ruling.incident_id]
        if isinstance(ruling, Eviction):
            record.asked_s, record.held = now_s, None
            return True
        before, record.held = record.held, (ruling.guard, f"{ruling.reason}. {ruling.release}")
        if ruling.would is not None:
            record.change(observed={ruling.would.group: now_s, **record.incident.observed})
        return record.held != before

    def changed(self, now_s: float) -> tuple[Incident, ...]:
        """End a tick: the incidents that changed in it, oldest first. Old ones are forgotten."""
        changed = [record.incident for record in self._records.values() if record.changed]
        for key, record in list(self._records.items()):
            incident = record.incident
            ended_s = incident.story[-1].at_s if incident.story else incident.last_seen_s
            old = not record.open and now_s - ended_s > self.config.keep_resolved_s
            if old and _teaches(incident):
                self._old[key] = incident
            if old or not (record.open or record.fired):
                del self._records[key]
        # recent enough for a crash loop, and the latest with a cost
        since_s = now_s - max(self.config.crash_loop_memory_s, self.config.follow_s + _FOLLOW_S)
        priced = [each.id for each in self.lessons() if price_s(each, 1) is not None][-COSTS_KEPT:]
        for key in [key for key in self._old if key not in priced]:
            if (self._old[key].ended_s or 0.0) < since_s:
                del self._old[key]
        return tuple(sorted(changed, key=oldest_first))

    # -- what is asked of them ---------------------------------------------------------------

    def _faults(self) -> Iterator[IncidentRecord]:
        """All but evictions by hand: those are followed, and judge nothing."""
        every = self._records.values()
        return (record for record in every if record.incident.kind is not Kind.BY_HAND)

    def _open(self) -> list[IncidentRecord]:
        """Open faults, oldest first."""
        still = (record for record in self._faults() if record.open)
        return sorted(still, key=lambda record: oldest_first(record.incident))

    def all(self) -> tuple[Incident, ...]:
        return tuple(record.incident for record in self._faults())

    def open(self) -> tuple[Incident, ...]:
        """Open incidents, oldest first."""
        return tuple(record.incident for record in self._open())

    def shown(self) -> tuple[Incident, ...]:
        """Open ones, and resolved ones that fired, newest first."""
        shown = (record.incident for record in self._faults() if record.open or record.fired)
        return tuple(sorted(shown, key=newest_first))

    def ripe(self, now_s: float) -> tuple[Incident, ...]:
        """Firing incidents without an eviction, seen long enough and in this tick; oldest first."""
        return tuple(
            incident
            for record in self._open()
            if (incident := record.incident).state is State.FIRING
            and incident.last_seen_s == now_s
            and record.sightings >= _needed(incident.kind, self.config)
            and record.asked_s is None
        )

    def observed(self, now_s: float) -> tuple[Eviction, ...]:
        """Evictions that observe mode held back, of the budget's hour or of open incidents."""
        return tuple(
            Eviction(incident.id, group, None, at_s)
            for incident in (*self.all(), *self._old.values())
            for group, at_s in incident.observed.items()
            if incident.open or now_s - at_s < HOUR_S
        )

    def lost(self) -> frozenset[str]:
        """Incarnations that open incidents say are out of sight with their hosts."""
        lost = (incident for incident in self.open() if incident.verdict.lost)
        return frozenset(name for incident in lost for name in incident.incarnations)

    def lessons(self) -> tuple[Incident, ...]:
        """Incidents ended by an eviction, one that observe mode held back, or a death; oldest
        first.
        """
        taught = {incident.id: incident for incident in self.all() if _teaches(incident)}
        return tuple(sorted((self._old | taught).values(), key=attrgetter("ended_s", "id")))

    def awaiting(self) -> Collection[IncidentId]:
        """Incidents whose eviction is decided but not yet taken up by the evictor."""
        return {key for key, record in self._records.items() if record.asked_s is not None}

    def shielded(self, now_s: float) -> Mapping[GroupName, Incident]:
        """Groups that we evict or that are coming back: they are not accused again."""
        return {
            group: record.incident
            for record in self._faults()
            if record.shields(now_s, self.config)
            for group in record.incident.groups
        }

    def waits(self, history: History) -> dict[RankName, VictimWait]:
        """Victim of an incident -> what it waits for, or waited for until it died.

        A rank that committed after it was seen waiting is no longer a victim, nor is a process that
        started since. Of an incident that is over because its suspects ended, the victims that
        ended with them are still victims; of an evicted one those that had ended before.
        """
        waits: dict[RankName, VictimWait] = {}
        for record in sorted(  # of two with one victim the one that is open and has fired counts
            self._records.values(),
            key=lambda r: (r.open, r.incident.state is not State.PENDING, oldest_first(r.incident)),
        ):
            incident = record.incident
            until_s = math.inf if record.open else _consequences_until_s(history, incident)
            if not incident.verdict.stops or incident.run not in ("", history.run):
                continue
            whom = listed(incident.groups, last="or" if incident.candidates else "and")
            if not incident.groups:  # all wait and none is missing, or for the Lighthouse
                whom = "the Lighthouse" if incident.kind in OF_LIGHTHOUSE else "each other"
            fired = incident.state is not State.PENDING
            wait = VictimWait(incident.suspects, incident.groups, whom, incident.kind, fired)
            for rank in _waiting(incident):
                track = record.same_wait(history, rank)
                if track is not None and (track.died_s or math.inf) <= until_s:
                    waits[rank] = wait
        return waits


def _teaches(incident: Incident) -> bool:
    by_hand = incident.kind is Kind.BY_HAND
    return not (incident.open or by_hand) and (teaches(incident) or bool(incident.observed))


def _waiting(incident: Incident) -> Sequence[RankName]:
    """Its victims; where ranks wait for each other and none can be named, its candidates too."""
    tie = incident.kind is Kind.DEADLOCK and len(incident.candidates) > 1
    return (*incident.verdict.victims, *(incident.candidates if tie else ()))


def _consequences_until_s(history: History, incident: Incident) -> float:
    """Until when victims died of it, though it is over: its suspects ended, or we evicted them."""
    marks, tracks = incident.milestones, _suspect_tracks(history, incident)
    if marks.evict_asked_s is not None:
        return marks.evict_asked_s
    if marks.firing_s is None or incident.kind is Kind.DEAD or not tracks:
        return -math.inf
    gone = all(
        track.died_s is not None and track.identity.incarnation in incident.incarnations
        for track in tracks
    )
    return history.now_s if gone else -math.inf


def _gave_up(track: RankTrack) -> bool:
    """True if it ended by nothing of its own that is known, and nobody asked it to."""
    report = track.report
    gone = report is not None and not report.process.alive
    return gone and end_of(track) in (End.PEERS, End.UNKNOWN)
