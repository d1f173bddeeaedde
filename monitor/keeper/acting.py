"""The last third of a tick: what was decided is written down, then carried out.

Two threads decide: the tick, and a person's request. `Acting.deciding` is held while one does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from monitor.audit.by_hand import with_by_hand
from monitor.chronicle import Chronicle
from monitor.config import KeeperConfig
from monitor.evictors import Order
from monitor.evictors.order import AUTHOR
from monitor.incident import Incident, State
from monitor.keeper.bulkheads import Bulkheads
from monitor.keeper.docket import Docket
from monitor.keeper.observed import rungs_for
from monitor.keeper.orders import order_for
from monitor.keeper.parts import Parts
from monitor.names import MANUAL, GroupName, IncidentId, may_be_of
from monitor.pipeline import TickResult
from monitor.policy import Decision, Evict, Hold
from monitor.quarantine import offences
from monitor.snapshot import Snapshot
from monitor.store import DecisionRow, Remembered
from monitor.view import NotPossible, View, groups_of

log = logging.getLogger(__package__)


class Acting:
    """Writes down and carries out.

    Args:
        parts: what the loop drives.
        remembered: what the store holds.
        bulkheads: around what may crash alone.
        config: what holds now.
    """

    def __init__(
        self,
        parts: Parts,
        remembered: Remembered,
        bulkheads: Bulkheads,
        config: Callable[[], KeeperConfig],
    ) -> None:
        self._parts = parts
        self._bulkheads = bulkheads
        self._config = config
        self.chronicle = Chronicle(remembered)
        self.docket = Docket(parts.store, self._told)
        self._held: dict[IncidentId, str] = {}
        """Why an incident's eviction is held back."""
        self.deciding = threading.RLock()

    def adopt(self, found: Remembered) -> None:
        """Go on from what the store holds."""
        self.chronicle = Chronicle(found)
        if self._parts.auditor is not None:
            self._parts.auditor.adopt(found)

    def _told(self, row: DecisionRow) -> None:
        self.chronicle.take_decision(row)
        if self._parts.auditor is not None:
            with self._bulkheads.part("audit"):
                self._parts.auditor.decided(row, self.chronicle.get(row.incident_id))

    def act(self, result: TickResult, snapshot: Snapshot, epoch: int) -> None:
        """Write down what was decided, then carry it out."""
        parts = self._parts
        known = (self.chronicle.get(incident.id) for incident in result.changed)
        before = {one.id: one for one in known if one is not None}
        parts.instruments.count_incidents(result.changed, tuple(before.values()))
        parts.store.save_incidents(result.changed)
        self.chronicle.take_incidents(result.changed)
        with self._bulkheads.part("offences"):
            self._remember_offences(result, before, snapshot)
        self._audit(snapshot, result, before)
        for incident in result.changed:
            _log(incident, before.get(incident.id))
        with self.deciding:
            for decision in result.decisions:
                self._take(decision, snapshot, epoch)
            patience_s = self._config().eviction_deadline_s
            for evict in self.docket.review(snapshot, self.chronicle.get, self._held, patience_s):
                self._decided(evict, snapshot, epoch)
            self._carry_out(snapshot)
        parts.store.flush()
        self.chronicle.take_evictions(parts.evictors.progress())
        with self.deciding:
            self._count_evictions()

    def _take(self, decision: Decision, snapshot: Snapshot, epoch: int) -> None:
        """Log it, and write it down."""
        parts = self._parts
        match decision:
            case Evict():
                log.warning("evict %s: %s", decision.group, decision.reason)
                self._held.pop(decision.incident_id, None)
                self._decided(decision, snapshot, epoch)
            case Hold():
                told = (decision.incident_id, decision.guard, decision.reason, decision.release)
                log.warning("nobody is evicted for %s (%s): %s. %s", *told)
                self._held[decision.incident_id] = f"{decision.guard}: {decision.reason}"
                rungs = rungs_for(decision, parts)
                self._told(parts.store.save_decision(decision, snapshot.now_s, rungs=rungs))
                parts.instruments.holds.labels(str(decision.guard)).inc()

    def _remember_offences(
        self, result: TickResult, before: Mapping[IncidentId, Incident], snapshot: Snapshot
    ) -> None:
        """What this tick says about hosts: kept for weeks, and the evidence of a quarantine."""
        quarantine = self._parts.quarantine
        quarantine.take(offences.accusations(result.changed, before, snapshot))
        quarantine.take(offences.evictions(result.decisions, self.chronicle.get, snapshot))

    def _audit(
        self, snapshot: Snapshot, result: TickResult, before: Mapping[IncidentId, Incident]
    ) -> None:
        """Note what the account of an incident needs, before anything is carried out."""
        parts, chronicle = self._parts, self.chronicle
        if parts.auditor is not None:
            with self._bulkheads.part("audit"):
                parts.auditor.took_place(snapshot, result.changed, before)
                parts.auditor.count(self.accounted(), chronicle.decisions(), snapshot.now_s)

    def _decided(self, evict: Evict, snapshot: Snapshot, epoch: int, author: str = AUTHOR) -> None:
        incident = self.chronicle.get(evict.incident_id)
        order = order_for(evict, snapshot, incident, author)
        self.docket.decide(evict, order, epoch=epoch)

    def _carry_out(self, snapshot: Snapshot) -> None:
        """Hand over what is written, with a look at this tick's fleet; all else waits."""
        parts, docket = self._parts, self.docket
        for one in docket.ready(snapshot.now_s, self._config().eviction_ack_s):
            if parts.lease is not None and parts.lease.why_not() is not None:
                return
            incident = self.chronicle.get(one.evict.incident_id)
            order = docket.attempt(order_for(one.evict, snapshot, incident, one.author))
            docket.carried_out(one.evict.incident_id)
            if not parts.evictors.submit(self._witnessed(order)):
                docket.refused(one.evict.incident_id, snapshot.now_s)

    def _witnessed(self, order: Order) -> Order:
        """With the evidence for which it waits; without, when that crashes."""
        evidence, evict = self._parts.evidence, order.evict
        if evidence is not None and order.refused is None:
            with self._bulkheads.part("witness"):
                incident = self.chronicle.get(evict.incident_id)
                ticket = evidence.before_eviction(evict, incident, order.author)
                if ticket is not None:
                    return replace(order, evidence=ticket.wait)
        return order

    def _count_evictions(self) -> None:
        for progress in self._parts.evictors.take_ended():
            self.docket.ended(progress, self._parts.clock.now_s())
            incident = self.chronicle.get(progress.incident_id)
            kind = "by_hand" if incident is None else str(incident.kind)
            outcome = "left" if progress.gone_s is None else "gone"
            if progress.failed is not None:
                outcome = "failed"
            self._parts.instruments.evictions.labels(kind, outcome).inc()

    # -- by hand ------------------------------------------------------------------------------

    def accounted(self) -> tuple[Incident, ...]:
        """Incidents, and evictions by hand, which have an account too."""
        auditor, chronicle = self._parts.auditor, self.chronicle
        found = chronicle.incidents()
        if auditor is not None:
            with self._bulkheads.part("by hand"):
                found = with_by_hand(found, chronicle.decisions(), auditor.books)
        return found

    def by_hand(
        self, group: GroupName, reason: str, author: str, view: View | None, epoch: int
    ) -> IncidentId:
        """Evict a group because a person says so; no guard but the incarnation check applies.

        Raises:
            NotPossible: there is no such group, or it is being evicted already.
        """
        groups = () if view is None else groups_of(view)
        found = [one for one in groups if one.group == group]
        if view is None or not found:
            raise NotPossible(f"no such group: {group}")
        incident_id = IncidentId(f"{MANUAL}{group}-{view.snapshot.tick}-{int(view.snapshot.now_s)}")
        replica_id, told = found[0].replica_id, [one.replica_id for one in groups]
        if told.count(replica_id) > 1 or (replica_id and not may_be_of(replica_id, group)):
            replica_id = None  # it may be another group's, whom the Lighthouse would kill
        evict = Evict(incident_id, group, replica_id, (), reason)
        with self.deciding:
            active = self._parts.evictors.active()
            if self.docket.going(group) or any(one.group == group for one in active):
                raise NotPossible(f"{group} is being evicted already")
            self._decided(evict, view.snapshot, epoch, author=author)
            self._carry_out(view.snapshot)
        return incident_id


def _log(incident: Incident, before: Incident | None) -> None:
    """An incident that has fired, is being evicted or is over; who never fired is no news."""
    state, fired = incident.state, incident.milestones.firing_s is not None
    if not fired or (before is not None and before.state is state):
        return
    match state:
        case State.FIRING:
            said = (incident.severity, incident.id, incident.verdict.reason)
            log.warning("%s incident %s: %s", *said)
        case State.EVICTING:
            log.info("%s: %s is being evicted", incident.id, ", ".join(incident.groups))
        case State.RESOLVED:
            log.info("%s is over: %s", incident.id, incident.resolution)
        case State.PENDING:
            pass
