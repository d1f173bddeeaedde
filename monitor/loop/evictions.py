"""The last third of a tick: a decision is written to disk, then handed to the evictor.

Nothing is done before the decision is on disk. While it cannot be written it waits, for as long as
the pipeline itself waits for it (`eviction_ack_s`), and is shown as a trouble. Two threads decide:
the tick, and a person's request. Each holds `Acting.deciding` while it does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act import quarantine as offences
from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.view import GroupView, NotPossible, RecentIncidents, View
from lightkeeper.monitor.loop.components import Components, ErrorBoundary
from lightkeeper.monitor.metric import EVICTIONS, INCIDENTS
from lightkeeper.monitor.model.escalation import DecidedAgain, HandedOver, Reviewed, Revoked
from lightkeeper.monitor.model.eviction import (
    Accused,
    Decision,
    EndManner,
    Eviction,
    EvictionState,
    Guard,
    Hold,
    Release,
    Remembered,
)
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, ReplicaId, may_be_of
from lightkeeper.monitor.model.observation import LighthouseView, Snapshot
from lightkeeper.monitor.model.verdict import FAULTS, Kind
from lightkeeper.monitor.model.wording import bring_back
from lightkeeper.worker_server.wire import Identity

log = logging.getLogger(__package__)

# -- whom a decision accuses ---------------------------------------------------------------------

_STANDSTILLS: Final = frozenset({Kind.NOT_ENTERED, Kind.MISMATCH, Kind.DEADLOCK})
"""Kinds whose culprits make no progress: a culprit that does has recovered."""


def accused_in(group: GroupName, snapshot: Snapshot) -> tuple[Accused, ...]:
    seen_of = (seen for seen in snapshot.observations if seen.identity.group == group)
    return tuple(_accused(seen.identity, seen.url) for seen in seen_of)


def _accused(who: Identity, url: str) -> Accused:
    return Accused(who.rank, who.incarnation, url, who.host, who.place)


def handed_over(eviction: Eviction, snapshot: Snapshot, incident: Incident | None) -> HandedOver:
    """What the evictor gets; `incident` is None when a person decided."""
    return HandedOver(
        asked_s=snapshot.now_s,
        accused=accused_in(eviction.group, snapshot) or eviction.accused,
        stood=_stood(snapshot, incident),
        refused=_restarted(eviction, snapshot, incident),
    )


def _stood(snapshot: Snapshot, incident: Incident | None) -> dict[RankName, int]:
    """Culprit of a standstill -> its phase changes up to this tick."""
    if incident is None or incident.kind not in _STANDSTILLS:
        return {}
    reports = {seen.rank: seen.report for seen in snapshot.observations if seen.report is not None}
    steps = {rank: reports[rank].step for rank in incident.culprits if rank in reports}
    stood = {rank: step.progress for rank, step in steps.items() if step is not None}
    return stood if len(stood) == len(incident.culprits) else {}


def _restarted(eviction: Eviction, snapshot: Snapshot, incident: Incident | None) -> str | None:
    """Why this group is no longer the one that was accused; None: it still is."""
    for seen in snapshot.observations:
        if seen.identity.group != eviction.group:
            continue
        is_culprit = incident is not None and seen.rank in incident.culprits
        accused = incident.incarnations if incident is not None and is_culprit else ()
        if accused and seen.identity.incarnation not in accused:
            return f"{seen.rank} has restarted since it was accused"
        step = None if seen.report is None else seen.report.step
        replica_id = None if step is None else step.replica_id
        if None not in (replica_id, eviction.replica_id) and replica_id != eviction.replica_id:
            return f"{seen.rank} runs as {replica_id} now, not as {eviction.replica_id}"
    return None


# -- what is counted -----------------------------------------------------------------------------

TRANSITIONS: Final = INCIDENTS.counter("incident_transitions", "Incidents that entered a state.",
    ("kind", "to"), series=f"≤ {len(FAULTS)} x 10",
    absent="none since the start")  # fmt: skip
STAGES: Final = INCIDENTS.histogram("incident_stage_seconds",
    "Seconds of each stage of an incident: detect (first seen to firing), decide (to the order), "
    "leave (from there until the group is out), recover (to the survivors' next commit), rejoin "
    "(to the group's return).", ("stage",), series="≤ 5 x 17",
    absent="none came so far since the start",
    buckets=(0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0,
             600.0))  # fmt: skip
ENDED: Final = EVICTIONS.counter("evictions", "Evictions that ended, by incident kind and outcome: "
    "left (the quorum), gone (its processes too), failed.", ("kind", "outcome"),
    series="≤ 9 x 3", absent="none since the start")  # fmt: skip
HOLDS: Final = EVICTIONS.counter("holds",
    "Evictions held back, by guard; a guard that keeps holding counts once.", ("guard",),
    series=f"≤ {len(Guard)}", absent="none since the start")  # fmt: skip


def count_incidents(
    metrics: CollectorRegistry,
    incidents: Sequence[Incident],
    before: Mapping[IncidentId, Incident],
) -> None:
    """Count the transitions and stages that are new."""
    for incident in incidents:
        old = before.get(incident.id)
        counted = set() if old is None else {(line.at_s, line.to) for line in old.story}
        for line in incident.story:
            if (line.at_s, line.to) not in counted:
                TRANSITIONS.on(metrics).labels(str(incident.kind), line.to).inc()
        had = {} if old is None else old.milestones.stages()
        for stage, (start_s, end_s) in incident.milestones.stages().items():
            if stage not in had:
                STAGES.on(metrics).labels(stage).observe(max(0.0, end_s - start_s))


# -- acting --------------------------------------------------------------------------------------


class Acting:
    def __init__(self, components: Components, errors: ErrorBoundary) -> None:
        self._components, self._evictions = components, components.evictors.log
        self._errors = errors
        self.recent = RecentIncidents(Remembered())
        """Those of the store after a takeover."""
        self._hosts_known = False
        """True if the number of the job's hosts is known."""
        self.deciding = threading.RLock()

    def act(self, result: TickResult, snapshot: Snapshot, epoch: int) -> None:
        """Record the decisions, then hand them over."""
        components = self._components
        earlier = (self.recent.get(incident.id) for incident in result.changed)
        before = {incident.id: incident for incident in earlier if incident is not None}
        faults = [i for i in result.changed if i.kind is not Kind.BY_HAND]
        count_incidents(components.metrics, faults, before)
        if components.telemetry is not None:
            with self._errors.part("otlp"):
                components.telemetry.take(result.changed, before, components.clock.ahead_s())
        components.store.save_incidents(result.changed)
        self.recent.take_incidents(result.changed)
        with self._errors.part("offences"):
            quarantine = components.quarantine  # kept for weeks, as evidence
            quarantine.take(offences.accusations(result.changed, before, snapshot.now_s))
            evicted = offences.evictions(result.decisions, self.recent.get, snapshot.now_s)
            quarantine.take(evicted)
        for incident in result.changed:
            _log(incident, before.get(incident.id))
        self._warn_of_one_host(snapshot)
        with self.deciding:
            for decision in result.decisions:
                self._take(decision, snapshot, epoch)
            self._review(snapshot)
            for release in components.releaser.finished():
                self._note(release)
            self._tell_changes()
            self._hand_over(snapshot)
        components.store.flush()
        with self.deciding:
            self._tell_changes()

    def _warn_of_one_host(self, snapshot: Snapshot) -> None:
        """Warn once, before any eviction, that a job on one host may lose that host."""
        seen = snapshot.lighthouse
        if (
            self._hosts_known
            or self._components.in_force.observe
            or not isinstance(seen, LighthouseView)
        ):
            return
        groups = {seen.identity.group for seen in snapshot.observations}
        if len(groups) < 2 or len(groups) < len(seen.members):
            return  # not all are here
        self._hosts_known = True
        hosts = {seen.identity.host for seen in snapshot.observations}
        if len(hosts) == 1:
            log.warning(
                "all %d groups run on host %s: an eviction that blames the host (a straggler, a "
                "wait in the kernel) puts it in quarantine, and nothing may start there until "
                "`lightkeeper quarantine release %s`",
                len(groups), *hosts, *hosts,
            )  # fmt: skip

    def _take(self, decision: Decision, snapshot: Snapshot, epoch: int) -> None:
        components = self._components
        about = {"incident": decision.incident_id, "group": getattr(decision, "group", "")}
        match decision:
            case Eviction():
                log.warning("evict %s: %s", decision.group, decision.reason, extra=about)
                self._decided(decision, snapshot, epoch)
            case Hold():
                words = (decision.incident_id, decision.guard, decision.reason, decision.release)
                if decision.guard is not Guard.WATCH_ONLY:
                    log.warning("nobody is evicted for %s (%s): %s. %s", *words, extra=about)
                    HOLDS.on(components.metrics).labels(str(decision.guard)).inc()
                self._note(replace(decision, at_s=snapshot.now_s, epoch=epoch))
            case Release():
                ranks = ", ".join(survivor.rank for survivor in decision.survivors)
                log.warning("released %s: %s", ranks, decision.reason, extra=about)
                self._note(components.releaser.begin(decision, epoch))

    def _note(self, row: Hold | Release) -> None:
        self._components.store.save_decision(row)
        self.recent.take_decision(row)

    def _decided(self, evict: Eviction, snapshot: Snapshot, epoch: int) -> None:
        """Add an eviction, or decide the incident's open eviction again."""
        accused = accused_in(evict.group, snapshot) or evict.accused
        now_s = snapshot.now_s
        evict = replace(evict, accused=accused, epoch=epoch, asked_s=now_s, decided_s=now_s)
        about = (e for e in self._evictions.all() if e.incident_id == evict.incident_id)
        if (going := next((e for e in about if e.open), None)) is None:
            self._evictions.add(evict)
        else:
            self._evictions.post(going.key, DecidedAgain(evict))
        self._tell_changes()

    def _review(self, snapshot: Snapshot) -> None:
        """Review evictions not handed over: another monitor left them, or the disk failed."""
        config = self._components.in_force
        times_s = (config.eviction_deadline_s, config.eviction_ack_s)
        for eviction in self._evictions.all():
            incident = self.recent.get(eviction.incident_id)
            last = self.recent.latest(eviction.incident_id)
            hold = f"{last.guard}: {last.reason}" if isinstance(last, Hold) else None
            self._evictions.post(eviction.key, Reviewed(snapshot, incident, hold, *times_s))

    def _hand_over(self, snapshot: Snapshot) -> None:
        """Submit the decisions that are on disk, with facts of this tick; others wait."""
        components = self._components
        waiting = self._waiting()
        if not waiting or not components.store.flush():
            return
        for eviction in waiting:
            if components.lease.why_not() is not None:
                return
            incident = self.recent.get(eviction.incident_id)
            event = handed_over(eviction, snapshot, incident)
            ticket = None
            if event.refused is None:
                with self._errors.part("witness"):
                    ticket = components.evidence.before_eviction(eviction, incident)
            evidence = None if ticket is None else ticket.wait
            components.evictors.submit(eviction.key, event, evidence)
        self._tell_changes()

    def _waiting(self) -> list[Eviction]:
        return [e for e in self._evictions.all() if e.state is EvictionState.DECIDED]

    def _tell_changes(self) -> None:
        """Count, log and show the changes of evictions."""
        for before, after in self._evictions.take_changes():
            self.recent.take_decision(after)
            ends = before is not None and before.under_way and not after.open
            if ends and self._components.lighthouse is not None:
                incident = self.recent.get(after.incident_id)
                kind = "by_hand" if incident is None else str(incident.kind)
                outcome = "left" if after.gone_s is None else "gone"
                if after.failed is not None:
                    outcome = "failed"
                ENDED.on(self._components.metrics).labels(kind, outcome).inc()

    def troubles(self) -> Iterator[str]:
        """Decisions that wait for the disk."""
        for eviction in self._waiting():
            why = self._components.store.last_error or "not on disk yet"
            yield f"eviction of {eviction.group} waits: its decision is not written ({why})"

    # -- by hand ------------------------------------------------------------------------------

    def by_hand(
        self, group: GroupName, reason: str, author: str, view: View | None, epoch: int
    ) -> IncidentId:
        """Evict a group on a person's request; no guard but the incarnation check applies.

        Raises:
            NotPossible: there is no such group, it is already being evicted, or the decision
                cannot be stored.
        """
        groups = () if view is None else view.groups
        group_views = [view for view in groups if view.group == group]
        lapsed = () if group_views else self._lapsed(group)
        if view is None or not (group_views or lapsed):
            raise NotPossible(f"no such group: {group}")
        now_s = view.snapshot.now_s
        evict = Eviction(
            incident_id=IncidentId(f"{Kind.BY_HAND}-{group}-{int(now_s * 1000)}"),
            group=group,
            replica_id=self._id_of(group, groups),
            asked_s=now_s,
            decided_s=now_s,
            state=EvictionState.DECIDED,
            taken_up=False,
            reason=reason,
            author=author,
            manner=EndManner("", self._components.in_force.gentle_end_s, grace_s=5.0),
            lost={each.host: False for each in lapsed or self._unseen(group, view.snapshot)},
            accused=lapsed,
        )
        with self.deciding:
            if any(eviction.group == group and eviction.open for eviction in self._evictions.all()):
                raise NotPossible(f"{group} is being evicted already")
            self._decided(evict, view.snapshot, epoch)
            self._hand_over(view.snapshot)
            for waits in self._waiting():
                if waits.incident_id == evict.incident_id:
                    raise NotPossible(f"{group} is not evicted: {self._called_off(waits)}")
        return evict.incident_id

    def _unseen(self, group: GroupName, snapshot: Snapshot) -> Iterator[Accused]:
        """Ranks of a group that only a scheduler could end, if there is one."""
        for accused in accused_in(group, snapshot) if self._components.schedulers else ():
            if snapshot.by_rank[accused.rank].report is None:
                yield accused

    def _lapsed(self, group: GroupName) -> tuple[Accused, ...]:
        """The ranks of a group that is gone and not back, as they were last registered.

        Raises:
            NotPossible: no scheduler could end them, and they are out of reach of anybody else.
        """
        ranks = self._components.registry.lapsed(group)
        if ranks and not self._components.schedulers:
            by_person = bring_back(group, [target.identity.place for target in ranks])
            raise NotPossible(f"{group} is gone, and there is no scheduler to end it. {by_person}")
        return tuple(_accused(target.identity, target.url) for target in ranks)

    def _id_of(self, group: GroupName, groups: Sequence[GroupView]) -> ReplicaId | None:
        """Its replica id, of a group that is gone by its last incident; None: not known, or it may
        be another group's, which the Lighthouse would kill.
        """
        views = {view.group: view.replica_id for view in groups}
        incidents = (i.replica_ids for i in self.recent.incidents() if i.groups == (group,))
        last = next((ids[0] for ids in incidents if ids), None)
        replica_id = views.get(group, last)
        shared = [view.replica_id for view in groups].count(replica_id) > 1
        return None if shared or not replica_id or not may_be_of(replica_id, group) else replica_id

    def _called_off(self, waits: Eviction) -> str:
        """Call an eviction off that was not handed over; returns why it was not."""
        store, lease = self._components.store, self._components.lease
        why = f"the store {store.place} takes no writes: {store.last_error}"
        if store.last_error is None:
            why = lease.why_not() or "it was not taken up"
        self._evictions.post(waits.key, Revoked(f"not carried out: {why}"))
        return why


def _log(incident: Incident, before: Incident | None) -> None:
    """Log an incident when it fires, is evicted or ends; one that never fired is not logged."""
    state, fired = incident.state, incident.milestones.firing_s is not None
    if not fired or (before is not None and before.state is state):
        return
    about = incident.about()
    match state:
        case State.FIRING:
            words = (incident.severity, incident.id, incident.verdict.reason)
            log.warning("%s incident %s: %s", *words, extra=about)
        case State.EVICTING:
            log.info("%s: %s is being evicted", incident.id, about["group"], extra=about)
        case State.RESOLVED:
            log.info("%s is over: %s", incident.id, incident.resolution, extra=about)
        case State.PENDING:
            pass
