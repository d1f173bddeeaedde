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

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Kind, Verdict
from monitor.history import History
from monitor.incident import Incident, State
from monitor.names import GroupName, IncidentId, RankName
from monitor.snapshot import EvictionProgress
from monitor.tracker.aftermath import followed
from monitor.tracker.ending import why_over
from monitor.tracker.evicting import left, reported, unattended, under_eviction
from monitor.tracker.sighting import opened, seen_again, weighed
from monitor.tracker.story import differs, moved, resolved

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

    def resume(self, evictions: Sequence[EvictionProgress]) -> None:
        """Evictions that somebody left without an end: their incidents are being evicted, and to
        ask again is the same eviction.
        """
        for progress in evictions:
            incident = self.incidents.get(progress.incident_id)
            if incident is None or not incident.open:
                continue
            self.cut_short.add(incident.id)
            asked_s = incident.milestones.evict_asked_s
            if asked_s is None or asked_s < progress.asked_s:
                reason = f"asked for {progress.group}"
                self.incidents[incident.id] = replace(
                    moved(incident, progress.asked_s, State.EVICTING, reason),
                    milestones=replace(incident.milestones, evict_asked_s=progress.asked_s),
                )

    def warm(self, other: Tracker) -> None:
        """Go on with how often another tracker saw the same incidents."""
        known = self.incidents.keys()
        self._sightings = {key: n for key, n in other._sightings.items() if key in known}
        self._waited_s = {key: at for key, at in other._waited_s.items() if key[0] in known}

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
            if under_eviction(incident, self._asked_s, now_s, self.config):
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
            self.incidents[incident.id] = followed(history, incident, self.config)
        for incident_id, asked_s in list(self._asked_s.items()):
            if now_s - asked_s > self.config.eviction_ack_s:
                del self._asked_s[incident_id]
        changed = [i for i in self.incidents.values() if differs(self._before.get(i.id), i)]
        self._forget(now_s)
        return tuple(sorted(changed, key=lambda i: (i.milestones.first_seen_s, i.id)))

    # -- verdicts --------------------------------------------------------------------------

    def _see(self, history: History, verdict: Verdict, taken: Collection[IncidentId]) -> IncidentId:
        incident = self.owner(verdict, taken)
        if incident is None:
            incident = opened(history, verdict, self.incidents)
            self._sightings[incident.id] = 0
        same = incident.culprits == verdict.culprits
        sightings = self._sightings.get(incident.id, 0) + 1 if same else 1
        self._sightings[incident.id] = sightings
        self._waited_s.update(((incident.id, rank), history.now_s) for rank in verdict.victims)
        self._restored.discard(incident.id)
        incident = seen_again(history, incident, verdict)
        incident = weighed(incident, verdict, history.now_s, self.config.eviction_cost_s)
        needed = 1 if verdict.settled else self._needed(verdict.kind)
        if incident.state is State.PENDING and sightings >= needed:
            incident = replace(
                moved(incident, history.now_s, State.FIRING, verdict.reason),
                milestones=replace(incident.milestones, firing_s=history.now_s),
            )
        self.incidents[incident.id] = incident
        return incident.id

    def _needed(self, kind: Kind) -> int:
        match kind:
            case Kind.DEAD:
                return self.config.dead_observations
            case Kind.NOT_ENTERED:
                return self.config.hang_sweeps
            case Kind.MISMATCH | Kind.DEADLOCK:
                return self.config.mismatch_sweeps
            case Kind.REPLICA_LAG | Kind.LIGHTHOUSE_AWAY | Kind.UNSEEN | Kind.BY_HAND:
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
        if incident.milestones.evict_asked_s is not None:
            gone = left(history, incident, None, self.config)
            if gone is not None:
                self._close(gone)
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
            why = why_over(history, incident, self.config)
        if why is not None:
            self._close(resolved(incident, history.now_s, why))

    def _close(self, incident: Incident) -> None:
        """Keep an incident that is resolved now."""
        self._restored.discard(incident.id)
        self._asked_s.pop(incident.id, None)
        self.cut_short.discard(incident.id)
        self.incidents[incident.id] = incident

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
            told = latest.get(incident.id)
            if told is not None and told.asked_s >= (incident.milestones.evict_asked_s or 0.0):
                self._take_eviction(incident, reported(history, incident, told, self.config))
            elif incident.state is State.EVICTING:  # an earlier, ended one says nothing of this one
                self._without_evictor(unattended(history, incident, self.config))

    def _take_eviction(self, before: Incident, incident: Incident) -> None:
        if incident.milestones.evict_asked_s != before.milestones.evict_asked_s:
            self._asked_s.pop(incident.id, None)
        if incident.open:
            self.incidents[incident.id] = incident
        else:
            self._close(incident)

    def _without_evictor(self, incident: Incident) -> None:
        if not incident.open:
            self._close(incident)
            return
        if incident.state is State.FIRING:
            self.cut_short.add(incident.id)
        self.incidents[incident.id] = incident

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
