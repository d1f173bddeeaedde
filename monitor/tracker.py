"""How incidents move: the state machine over ticks.

Theory of operation. A verdict belongs to the open incident of the same kind on the same
group; otherwise it opens one. Seen in enough consecutive sweeps with the same culprits, it
fires. An eviction that the evictor reports makes it `evicting`; a culprit whose replica id has
left the quorum makes it resolved. A pending incident that is not seen once is dropped. A
firing one ends only on positive evidence: the rank moved, or is another process, or is gone.
That it cannot be seen is no evidence. Milestones are awaited beyond the end. After a restart
of the monitor restored incidents go on: the same fault gets the same incident, and an
eviction asked before is finished or asked again, never forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Kind, Verdict
from monitor.history import History, RankTrack
from monitor.incident import Incident, Milestones, State, Transition
from monitor.names import GroupName, IncidentId, RankName
from monitor.severity import severity_of
from monitor.snapshot import EvictionProgress

_GONE_UNCONFIRMED_S: Final = 30.0
"""Every process gone for so long counts as left, though no new quorum says so yet."""


_LIGHTHOUSE: Final = GroupName("the Lighthouse")
"""Whom those wait for who wait for a Lighthouse that is away."""
_EACH_OTHER: Final = GroupName("each other")
"""Whom those wait for who all wait, with nobody missing."""


@dataclass(slots=True)
class Tracker:
    """All incidents, open and lately resolved."""

    config: KeeperConfig
    incidents: dict[IncidentId, Incident] = field(default_factory=dict)
    _sightings: dict[IncidentId, int] = field(default_factory=dict)
    _restored: set[IncidentId] = field(default_factory=set)
    _asked_s: dict[IncidentId, float] = field(default_factory=dict)
    """Evictions decided that the evictor has not taken up yet."""
    _before: dict[IncidentId, Incident] = field(default_factory=dict)
    """As they were when the tick began."""
    _waited_s: dict[tuple[IncidentId, RankName], float] = field(default_factory=dict)
    """When a victim was last seen waiting for the fault of an incident."""
    cut_short: set[IncidentId] = field(default_factory=set)
    """Evictions that a restart of the monitor interrupted: asking again is the same eviction."""

    def restore(self, incidents: Sequence[Incident]) -> None:
        """Continue what the store knew when the monitor started."""
        for incident in incidents:
            self.incidents[incident.id] = incident
            if incident.open:
                self._restored.add(incident.id)

    def open(self) -> tuple[Incident, ...]:
        """Open incidents, oldest first."""
        found = (incident for incident in self.incidents.values() if incident.open)
        return tuple(sorted(found, key=lambda i: (i.milestones.first_seen_s, i.id)))

    def shown(self) -> tuple[Incident, ...]:
        """Open ones and those resolved that ever fired, newest first."""
        found = (
            incident
            for incident in self.incidents.values()
            if incident.open or incident.milestones.firing_s is not None
        )
        return tuple(sorted(found, key=lambda i: (-i.milestones.first_seen_s, i.id)))

    def ripe(self, now_s: float) -> tuple[Incident, ...]:
        """Firing incidents that this very tick shows, held for long enough; oldest first."""
        return tuple(
            incident
            for incident in self.open()
            if incident.state is State.FIRING
            and incident.last_seen_s == now_s
            and self._sightings.get(incident.id, 0) >= self._needed(incident.kind)
        )

    def asked(self, incident_id: IncidentId, now_s: float) -> None:
        """Remember that an eviction was decided."""
        self._asked_s[incident_id] = now_s
        self.cut_short.discard(incident_id)

    def awaiting(self) -> Mapping[IncidentId, float]:
        """Evictions decided, and not yet taken up by the evictor: when."""
        return self._asked_s

    def shielded(self, now_s: float) -> Mapping[GroupName, Incident]:
        """Groups on their way out or back, by our own doing: they are not accused again."""
        found: dict[GroupName, Incident] = {}
        for incident in self.incidents.values():
            if _under_eviction(incident, self._asked_s, now_s, self.config):
                found.update(dict.fromkeys(incident.groups, incident))
        return found

    def blamed(self, history: History) -> dict[RankName, GroupName]:
        """Victims of open incidents, and the group that they wait for (or waited for, and died).

        Who committed after it was seen waiting has moved on, and is another process's victim no
        more; so is a process that started since.
        """
        found: dict[RankName, GroupName] = {}
        for incident in self.open():
            if incident.state is State.PENDING or not incident.verdict.stops:
                continue
            for rank in incident.verdict.victims:
                track = history.tracks.get(rank)
                waited_s = self._waited_s.get((incident.id, rank), incident.last_seen_s)
                if track is None or track.first_seen_s > waited_s:
                    continue
                if track.last_commit_s is None or track.last_commit_s <= waited_s:
                    found[rank] = _cause(incident)
        return found

    def owner(self, verdict: Verdict, taken: Collection[IncidentId] = ()) -> Incident | None:
        """The open incident that a verdict belongs to: of the same groups, else of some of them.

        `taken`: incidents that other verdicts of this tick belong to.
        """
        found = [
            incident
            for incident in self.incidents.values()
            if incident.open
            and incident.id not in taken
            and incident.kind is verdict.kind
            and (
                set(incident.groups) & set(verdict.groups)
                or not (incident.groups or verdict.groups)
            )
        ]
        return min(found, key=lambda one: one.groups != verdict.groups, default=None)

    def update(
        self,
        history: History,
        verdicts: Sequence[Verdict],
        *,
        unknown: frozenset[Kind] = frozenset(),
        inhibited: Mapping[tuple[Kind, GroupName], str] | None = None,
    ) -> tuple[Incident, ...]:
        """Take in verdicts, after `take_evictions`; returns the changed ones, oldest first."""
        now_s = history.now_s
        seen: set[IncidentId] = set()
        for verdict in verdicts:
            seen.add(self._see(history, verdict, seen))
        for incident in self.open():
            if incident.id not in seen and incident.kind not in unknown:
                self._miss(history, incident, inhibited or {})
        for incident in list(self.incidents.values()):
            self._follow(history, incident)
        for incident_id, asked_s in list(self._asked_s.items()):
            if now_s - asked_s > self.config.eviction_ack_s:
                del self._asked_s[incident_id]
        changed = [i for i in self.incidents.values() if _differs(self._before.get(i.id), i)]
        self._forget(now_s)
        return tuple(sorted(changed, key=lambda i: (i.milestones.first_seen_s, i.id)))

    # -- verdicts --------------------------------------------------------------------------

    def _see(self, history: History, verdict: Verdict, taken: Collection[IncidentId]) -> IncidentId:
        incident = self.owner(verdict, taken)
        if incident is None:
            incident = _opened(history, verdict, self.incidents)
            self._sightings[incident.id] = 0
        same = incident.culprits == verdict.culprits
        sightings = self._sightings.get(incident.id, 0) + 1 if same else 1
        self._sightings[incident.id] = sightings
        self._waited_s.update(((incident.id, rank), history.now_s) for rank in verdict.victims)
        self._restored.discard(incident.id)
        incident = replace(
            incident,
            culprits=verdict.culprits,
            groups=verdict.groups,
            fingerprint=_fingerprint(verdict),
            signature=verdict.signature,
            incarnations=incident.incarnations
            if same
            else _incarnations(history, verdict.culprits),
            verdict=replace(verdict, victims=_victims(incident, verdict)),
            last_seen_s=history.now_s,
        )
        incident = self._weighed(incident, verdict, history.now_s)
        if incident.state is State.PENDING and sightings >= self._needed(verdict.kind):
            incident = replace(
                _moved(incident, history.now_s, State.FIRING, verdict.reason),
                milestones=replace(incident.milestones, firing_s=history.now_s),
            )
        self.incidents[incident.id] = incident
        return incident.id

    def _weighed(self, incident: Incident, verdict: Verdict, now_s: float) -> Incident:
        """With the severity of what is seen now; the story tells when it changed."""
        severity = severity_of(verdict, self.config.eviction_cost_s)
        if severity is incident.severity:
            return incident
        incident = replace(incident, severity=severity)
        if incident.milestones.firing_s is None:
            return incident
        return _noted(incident, now_s, "severity", f"now {severity.value}: {verdict.reason}")

    def _needed(self, kind: Kind) -> int:
        match kind:
            case Kind.DEAD:
                return self.config.dead_observations
            case Kind.NOT_ENTERED:
                return self.config.hang_sweeps
            case Kind.MISMATCH | Kind.DEADLOCK:
                return self.config.mismatch_sweeps
            case Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY:
                return self.config.hang_sweeps
            case Kind.STATE_CORRUPT:
                return self.config.corrupt_sweeps
            case Kind.STRAGGLER:
                return 1  # its windows have already held it

    def _miss(
        self,
        history: History,
        incident: Incident,
        inhibited: Mapping[tuple[Kind, GroupName], str],
    ) -> None:
        self._sightings[incident.id] = 0
        if incident.state is State.EVICTING:
            return
        if incident.milestones.evict_asked_s is not None and self._left(history, incident, None):
            return
        why = next(
            (
                inhibited[incident.kind, group]
                for group in incident.groups
                if (incident.kind, group) in inhibited
            ),
            None,
        )
        if why is None and incident.state is State.PENDING and incident.id not in self._restored:
            why = "did not last"
        if why is None:
            quorums = incident.kind in (Kind.REPLICA_LAG, Kind.LIGHTHOUSE_AWAY)
            why = (_settled if quorums else _passed)(history, incident, self.config)
        if why is not None:
            self._resolve(incident, history.now_s, why)

    def _resolve(self, incident: Incident, now_s: float, why: str) -> None:
        self._restored.discard(incident.id)
        self._asked_s.pop(incident.id, None)
        self.cut_short.discard(incident.id)
        self.incidents[incident.id] = replace(
            _moved(incident, now_s, State.RESOLVED, why), resolution=why
        )

    # -- evictions -------------------------------------------------------------------------

    def take_evictions(self, history: History, evictions: Sequence[EvictionProgress]) -> None:
        """Begin a tick: what the evictor did shields its groups from this tick's verdicts."""
        self._before = dict(self.incidents)
        latest: dict[IncidentId, EvictionProgress] = {}
        for progress in evictions:
            held = latest.get(progress.incident_id)
            if held is None or progress.asked_s >= held.asked_s:
                latest[progress.incident_id] = progress
        for incident in self.open():
            progress_now = latest.get(incident.id)
            if progress_now is not None:
                self._take_eviction(history, incident, progress_now)
            elif incident.state is State.EVICTING:
                self._without_evictor(history, incident)

    def _take_eviction(
        self, history: History, incident: Incident, progress: EvictionProgress
    ) -> None:
        asked_s = incident.milestones.evict_asked_s
        if asked_s is None or progress.asked_s > asked_s:
            incident = replace(
                _moved(incident, progress.asked_s, State.EVICTING, f"asked for {progress.group}"),
                milestones=replace(incident.milestones, evict_asked_s=progress.asked_s),
            )
            self._asked_s.pop(incident.id, None)
            self.incidents[incident.id] = incident
        if incident.state is not State.EVICTING:
            return
        now_s = history.now_s
        if self._left(history, incident, progress):
            return
        overdue = now_s - progress.asked_s > self.config.eviction_deadline_s
        if progress.failed is not None or overdue:
            why = progress.failed or "nothing happened within its deadline"
            self.incidents[incident.id] = _moved(
                incident, now_s, State.FIRING, f"the eviction failed: {why}"
            )

    def _left(
        self, history: History, incident: Incident, progress: EvictionProgress | None
    ) -> bool:
        left_s = None if progress is None else progress.left_quorum_s
        if left_s is None and _out_of_quorum(history, incident):
            left_s = history.now_s
        gone_s = None if progress is None else progress.gone_s
        nameless = not incident.replica_ids and gone_s is not None
        unconfirmed = gone_s is not None and history.now_s - gone_s > _GONE_UNCONFIRMED_S
        if left_s is None and not nameless and not unconfirmed:
            return False
        asked_s = incident.milestones.evict_asked_s
        if left_s is None:
            why = "evicted: all its processes are gone"
        else:
            after = (
                "" if asked_s is None else f" {max(0.0, left_s - asked_s):.1f} s after it was asked"
            )
            why = f"evicted: left the quorum{after}"
            incident = replace(
                incident,
                milestones=replace(incident.milestones, left_quorum_s=left_s),
                story=(*incident.story, Transition(left_s, "left_quorum", why)),
            )
        self._resolve(incident, history.now_s, why)
        return True

    def _without_evictor(self, history: History, incident: Incident) -> None:
        """An eviction under way of which the evictor knows nothing: asked before a restart."""
        if self._left(history, incident, None):
            return
        if _restarted(history, incident):
            self._resolve(incident, history.now_s, "evicted: its ranks are other processes now")
        elif history.lighthouse is not None:
            self.cut_short.add(incident.id)
            self.incidents[incident.id] = _moved(
                incident,
                history.now_s,
                State.FIRING,
                "the eviction was cut short by a restart of the monitor: asked again if need be",
            )

    # -- what comes after ------------------------------------------------------------------

    def _follow(self, history: History, incident: Incident) -> None:
        marks, now_s = incident.milestones, history.now_s
        since_s = marks.evict_asked_s
        if since_s is None and not incident.open:
            since_s = marks.firing_s
        if not incident.groups:
            return  # nobody's fault, nobody to come back
        if since_s is None or now_s - since_s > self.config.follow_s:
            return
        asked = marks.evict_asked_s is not None
        if asked and marks.left_quorum_s is None and _out_of_quorum(history, incident):
            marks = replace(marks, left_quorum_s=now_s)
            incident = _noted(incident, now_s, "left_quorum", "a quorum without it is seen")
        if marks.survivor_commit_s is None:
            commits = (
                track.last_commit_s
                for track in history.present()
                if track.group not in incident.groups and track.last_commit_s is not None
            )
            first_s = min((at_s for at_s in commits if at_s > since_s), default=None)
            if first_s is not None:
                marks = replace(marks, survivor_commit_s=first_s)
                incident = _noted(incident, first_s, "survivor_commit", "another group commits")
        if marks.rejoined_s is None:
            back_s = _rejoined_s(history, incident)
            if back_s is not None:
                marks = replace(marks, rejoined_s=back_s)
                incident = _noted(incident, back_s, "rejoined", "the group commits again")
        self.incidents[incident.id] = replace(incident, milestones=marks)

    def _forget(self, now_s: float) -> None:
        for incident in list(self.incidents.values()):
            ended_s = incident.story[-1].at_s if incident.story else incident.last_seen_s
            dropped = not incident.open and incident.milestones.firing_s is None
            if dropped or (not incident.open and now_s - ended_s > self.config.keep_resolved_s):
                del self.incidents[incident.id]
                self._sightings.pop(incident.id, None)
        self._waited_s = {
            key: at_s for key, at_s in self._waited_s.items() if key[0] in self.incidents
        }


def _cause(incident: Incident) -> GroupName:
    """Whom its victims wait for, in words where it is no group."""
    if incident.groups:
        return incident.groups[0]
    return _LIGHTHOUSE if incident.kind is Kind.LIGHTHOUSE_AWAY else _EACH_OTHER


def _opened(history: History, verdict: Verdict, taken: Mapping[IncidentId, Incident]) -> Incident:
    now_s = history.now_s
    subject = (*verdict.culprits, *verdict.groups, "job")[0]
    name = f"{verdict.kind.value}-{subject}-{int(now_s * 1000)}"
    number = 1
    while IncidentId(name if number == 1 else f"{name}-{number}") in taken:
        number += 1
    replica_ids = (history.replica_id(group) for group in verdict.groups)
    return Incident(
        id=IncidentId(name if number == 1 else f"{name}-{number}"),
        kind=verdict.kind,
        fingerprint=_fingerprint(verdict),
        signature=verdict.signature,
        state=State.PENDING,
        culprits=verdict.culprits,
        groups=verdict.groups,
        replica_ids=tuple(replica for replica in replica_ids if replica is not None),
        incarnations=_incarnations(history, verdict.culprits),
        verdict=verdict,
        milestones=Milestones(first_seen_s=now_s),
        story=(Transition(now_s, State.PENDING.value, verdict.reason),),
        last_seen_s=now_s,
        severity=severity_of(verdict, history.config.eviction_cost_s),
    )


def _victims(incident: Incident, verdict: Verdict) -> tuple[RankName, ...]:
    """All who ever waited: a victim that TorchFT's timeout has ended since waits no more."""
    everyone = {*incident.verdict.victims, *verdict.victims}
    return tuple(sorted(everyone - set(verdict.culprits)))


def _fingerprint(verdict: Verdict) -> str:
    return f"{verdict.kind.value}:{','.join(verdict.culprits or verdict.groups)}"


def _incarnations(history: History, culprits: Iterable[str]) -> tuple[str, ...]:
    return tuple(t.identity.incarnation for t in history.tracks.values() if t.rank in culprits)


def _moved(incident: Incident, at_s: float, state: State, reason: str) -> Incident:
    return replace(
        incident, state=state, story=(*incident.story, Transition(at_s, state.value, reason))
    )


def _noted(incident: Incident, at_s: float, milestone: str, reason: str) -> Incident:
    return replace(incident, story=(*incident.story, Transition(at_s, milestone, reason)))


def _differs(before: Incident | None, after: Incident) -> bool:
    """Whether an incident changed in what its story tells, not only in when it was last seen."""
    return before is None or (
        before.state,
        before.culprits,
        before.milestones,
        before.story,
        before.verdict.confidence,
        before.severity,
    ) != (
        after.state,
        after.culprits,
        after.milestones,
        after.story,
        after.verdict.confidence,
        after.severity,
    )


def _under_eviction(
    incident: Incident, asked_s: Mapping[IncidentId, float], now_s: float, config: KeeperConfig
) -> bool:
    """Whether its group is on its way out, or has not committed since it was put out."""
    if incident.state is State.EVICTING or incident.id in asked_s:
        return True
    # Also while it fires again: an eviction that failed, or was cut short by a restart of the
    # monitor, may have reached the processes, and then it explains their death.
    marks = incident.milestones
    return (
        marks.evict_asked_s is not None
        and marks.rejoined_s is None
        and now_s - marks.evict_asked_s <= config.follow_s
    )


def _culprit_tracks(history: History, incident: Incident) -> list[RankTrack]:
    tracks = (history.tracks.get(rank) for rank in incident.culprits)
    return [track for track in tracks if track is not None and track.observation is not None]


def _restarted(history: History, incident: Incident) -> bool:
    tracks = _culprit_tracks(history, incident)
    return any(track.identity.incarnation not in incident.incarnations for track in tracks)


def _out_of_quorum(history: History, incident: Incident) -> bool:
    if history.lighthouse is None or not incident.replica_ids:
        return False
    members = {member.replica_id for member in history.lighthouse.members}
    return bool(members) and members.isdisjoint(incident.replica_ids)


def _passed(  # noqa: C901, PLR0911 - one reason a line
    history: History, incident: Incident, config: KeeperConfig
) -> str | None:
    """Why a fault that is not seen now is over; None while that is not known."""
    tracks = _culprit_tracks(history, incident)
    unseen_s = history.now_s - incident.last_seen_s
    asked = incident.milestones.evict_asked_s is not None
    if _restarted(history, incident):
        return f"{'evicted' if asked else 'restarted'}: its ranks are other processes now"
    if not incident.culprits:
        return _passed_for_all(history, incident, config)
    if not tracks:
        return "its ranks are registered no more" if unseen_s >= config.clear_s else None
    reports = [track.fresh for track in tracks if track.fresh is not None]
    if len(reports) < len(tracks) or unseen_s < config.clear_s:
        return None
    gone = [track for track in tracks if track.died_s is not None]
    if asked and any(history.now_s - t.died_s < _GONE_UNCONFIRMED_S for t in gone if t.died_s):
        return None  # our kill struck: the next quorum says when it left
    match incident.kind:
        case Kind.DEAD:
            return "the job ended" if gone else "its processes are there again"
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
        case Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY:
            return _settled(history, incident, config)


def _settled(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault of the quorum is over: it is told by what lasts, not by one process."""
    unseen_s = history.now_s - incident.last_seen_s
    if incident.kind is Kind.LIGHTHOUSE_AWAY:
        back = history.lighthouse is not None and unseen_s >= config.clear_s
        return "the Lighthouse answers again" if back else None
    if unseen_s < config.lag_clear_s / 2:
        return None
    if not any(group in history.groups() for group in incident.groups):
        return "its ranks are registered no more" if incident.groups else "commits go through again"
    return "keeps up again"


def _passed_for_all(history: History, incident: Incident, config: KeeperConfig) -> str | None:
    """Why a fault that was nobody's is over: somebody moved, or all keep pace."""
    if incident.kind is Kind.STRAGGLER:
        return _keeps_pace(history, incident, gone=False)
    last_s = incident.last_seen_s
    moved = any(t.moved_s is not None and t.moved_s > last_s for t in history.present())
    passed = moved and history.now_s - last_s >= config.clear_s
    return "recovered by itself" if passed else None


def _keeps_pace(history: History, incident: Incident, *, gone: bool) -> str | None:
    if gone:
        return "its process ended"
    config = history.config
    quiet = history.now_s - history.disturbed_s >= config.restart_quiet_s
    tracks = _culprit_tracks(history, incident)
    if len(history.groups()) == 1 or any(not track.phased for track in tracks):
        calm_s = max(history.arrivals.calm_s.values(), default=incident.last_seen_s)
        judged = calm_s > incident.last_seen_s
    else:
        windows = history.pace.windows
        judged = bool(windows) and windows[-1].start_s >= incident.last_seen_s
    unseen_s = history.now_s - incident.last_seen_s
    passed = quiet and judged and unseen_s >= config.straggler_clear_s
    return "keeps pace again" if passed else None


def _rejoined_s(history: History, incident: Incident) -> float | None:
    """When a group committed again, its culprits being other processes and all ranks alive."""
    first_s: list[float] = []
    for group in incident.groups:
        members = history.groups().get(group, ())
        if not members or len(members) < members[0].identity.world_size:
            return None
        for track in members:
            fresh = track.fresh
            if fresh is None or not fresh.process.alive or track.commits < 1:
                return None
            if (
                track.rank in incident.culprits
                and track.identity.incarnation in incident.incarnations
            ):
                return None
            if track.identity.incarnation not in incident.incarnations:
                first_s.append(track.first_commit_s or track.last_commit_s or history.now_s)
    return max(first_s, default=None)
