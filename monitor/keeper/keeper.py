"""The loop: observe, decide, act, once per tick, in that order.

Any single part may crash: it is counted, logged when that is new, and the others go on. What a
crash leaves unknown is shown as unknown: without a sweep nothing is decided in that tick.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from monitor.audit.books import Books
from monitor.audit.by_hand import MANUAL, with_by_hand
from monitor.audit.review import Review
from monitor.chronicle import Chronicle
from monitor.config import KeeperConfig
from monitor.detectors.verdict import FAULTS
from monitor.evictors import Order
from monitor.incident import Incident
from monitor.journal.writer import Stats
from monitor.keeper.docket import Docket
from monitor.keeper.handover import Handover
from monitor.keeper.observed import rungs_for
from monitor.keeper.orders import order_for
from monitor.keeper.parts import Parts
from monitor.keeper.troubles import troubles
from monitor.lighthouse_log import LighthouseRecord
from monitor.names import GroupName, IncidentId, RankName
from monitor.notify import Known
from monitor.pipeline import TickResult
from monitor.policy import Decision, Evict, Hold
from monitor.poller import Sweep
from monitor.quarantine import offences
from monitor.snapshot import (
    NO_LIGHTHOUSE,
    Failure,
    LighthouseAway,
    LighthouseView,
    Snapshot,
    Unreachable,
    Vitals,
)
from monitor.store import DecisionRow, Remembered
from monitor.tempo import TempoBook
from monitor.view import NotPossible, View, groups_of

log = logging.getLogger(__package__)

_SWEEP_SHARE: Final = 0.8
"""Of a tick that the sweep may take: the rest is for deciding and writing."""
_SWEEP_LEAST_S: Final = 0.2
_SWEEP_MOST_S: Final = 3.0
_LOOP_LATE_S: Final = 2.0
"""A fetch loop that is later than this is broken: the tick goes on without it."""


class Keeper:
    """One monitor at work."""

    def __init__(self, parts: Parts, remembered: Remembered, notes: tuple[str, ...] = ()) -> None:
        self._parts = parts
        self._notes = notes
        self._chronicle = Chronicle(remembered)
        self._docket = Docket(parts.store, self._told)
        self._handover = Handover(parts, self._docket, self._show_stored)
        self._held: dict[IncidentId, str] = {}
        """Why an incident's eviction is held back."""
        self._deciding = threading.RLock()
        """A person decides in another thread than the tick."""
        self._tempos = TempoBook()
        self._lighthouse = LighthouseRecord()
        self._tick = 0
        self._wanted: tuple[RankName, ...] = ()
        self._past: tuple[RankName, ...] = ()
        self._result = TickResult(parts.clock.now_s(), incidents=self._chronicle.incidents())
        self._broken: dict[str, str] = {}
        self._view: View | None = None
        self._deadline_s = min(
            max(_SWEEP_SHARE * parts.config.tick_s, _SWEEP_LEAST_S), _SWEEP_MOST_S
        )

    @property
    def _config(self) -> KeeperConfig:
        """What holds now: a reload may have changed it."""
        rules = self._parts.rulebook
        return self._parts.config if rules is None else rules.current.config

    @property
    def view(self) -> View | None:
        """The latest view; None before the first tick is over."""
        return self._view

    def run(self, stop: threading.Event) -> None:
        """Tick on schedule until told to stop."""
        clock, tick_s = self._parts.clock, self._parts.config.tick_s
        planned_s = clock.now_s()
        while not stop.is_set():
            began_s = clock.now_s()
            lateness_s = max(0.0, began_s - planned_s)
            self.tick(lateness_s)
            planned_s = (planned_s if lateness_s < tick_s else began_s) + tick_s
            stop.wait(max(0.0, planned_s - clock.now_s()))

    def tick(self, lateness_s: float = 0.0) -> None:
        """Observe, decide, act, once. Never raises."""
        parts = self._parts
        began_s = parts.clock.now_s()
        self._tick += 1
        with self._part("policy"):
            self._reconfigure()
        with self._part("lease"):
            self.take_part()
        with self._part("targets"):
            self._refresh_targets()
        snapshot = None
        with self._part("sweep"):
            snapshot = self._observe(began_s, lateness_s)
        if snapshot is not None:
            result = self._decide(snapshot)
            if self._handover.leading:
                if evidence := self._parts.evidence:
                    with self._part("evidence"):
                        evidence.take(snapshot, result.incidents, result.changed)
                with self._part("act"):
                    self._act(result, snapshot)
                with self._part("notify"):
                    self._tell(snapshot)
            with self._part("view"):
                self._show(snapshot, result)
            with self._part("journal"):  # last, so that its thread works while this one sleeps
                if (journal := self._handover.deeds.journal) is not None:
                    journal.take(snapshot, result, self._broken.get("decide"))
        self._parts.instruments.lateness.set(lateness_s)
        self._parts.instruments.ticks.observe(self._parts.clock.now_s() - began_s)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Runs one part of the tick; a crash of it ends here."""
        try:
            yield
        except Exception as exc:
            self._parts.instruments.part_failures.labels(name).inc()
            problem = f"{type(exc).__name__}: {exc}"
            if self._broken.get(name) != problem:
                log.exception("%s failed", name)
            self._broken[name] = problem
        else:
            if self._broken.pop(name, None) is not None:
                log.info("%s works again", name)

    # -- who acts, and by which policy ----------------------------------------------------------

    def take_part(self) -> None:
        """Take over, or stand by, if that has changed.

        Raises:
            StoreError: the store cannot be read: tried again in the next tick.
        """
        with self._deciding:
            self._handover.check(self._tick)

    @property
    def journal_stats(self) -> Stats:
        """Of the journal, while this monitor keeps one."""
        journal = self._handover.deeds.journal
        return Stats() if journal is None else journal.stats

    def close(self) -> None:
        """End what only the active monitor has."""
        self._handover.close()

    def _show_stored(self, found: Remembered) -> None:
        self._chronicle = Chronicle(found)
        if self._parts.auditor is not None:
            self._parts.auditor.adopt(found)
        self._result = replace(self._result, incidents=self._chronicle.incidents())

    def _told(self, row: DecisionRow) -> None:
        self._chronicle.take_decision(row)
        if self._parts.auditor is not None:
            with self._part("audit"):
                self._parts.auditor.decided(row, self._chronicle.get(row.incident_id))

    def _reconfigure(self) -> None:
        """Take up a policy that was loaded since the last tick: in the pipeline, then on record."""
        parts = self._parts
        fresh = None if parts.rulebook is None else parts.rulebook.take()
        if fresh is None:
            return
        parts.judge.reconfigure(fresh.config, fresh.policy)
        journal = self._handover.deeds.journal
        if journal is not None:
            journal.reconfigure(
                fresh.config, fresh.policy, after_tick=self._tick - 1, now_s=parts.clock.now_s()
            )
        log.warning("from now on the policy of %s holds (load %d)", fresh.path, fresh.number)

    # -- observe ------------------------------------------------------------------------------

    def _refresh_targets(self) -> None:
        registry, listed = self._parts.registry, self._parts.targets_file
        for target in registry.expire():
            log.warning("%s is dropped: silent and its lease over", target.rank)
        if listed is not None and (urls := listed.changed()) is not None:
            registry.follow(urls)

    def _observe(self, now_s: float, lateness_s: float) -> Snapshot:
        parts = self._parts
        page = None if parts.lighthouse is None else parts.lighthouse.begin_look(self._deadline_s)
        sweep = parts.poller.sweep(
            parts.registry.targets(),
            deadline_s=self._deadline_s,
            wanted=self._wanted,
            unidentified=parts.registry.unidentified(),
            past=self._past,
        )
        lighthouse: LighthouseView | LighthouseAway = LighthouseAway(NO_LIGHTHOUSE)
        if page is not None:
            lighthouse = page.result(timeout=self._deadline_s + _LOOP_LATE_S)
        # a sweep that took much longer than it may was interrupted: what it saw is old
        overdue_s = parts.clock.now_s() - now_s - self._deadline_s - _LOOP_LATE_S
        self._learn(sweep)
        self._lighthouse = self._lighthouse.after(lighthouse, now_s)
        keeper = parts.gatekeeper
        if keeper is not None:
            keeper.saw(sweep.observations, self._born)
        parts.evictors.note(lighthouse)
        return Snapshot(
            now_s=now_s,
            tick=self._tick,
            lateness_s=max(lateness_s, overdue_s),
            observations=sweep.observations,
            lighthouse=lighthouse,
            records=sweep.records,
            evictions=parts.evictors.progress(),
            steps=sweep.steps,
            vitals=Vitals() if parts.vitals is None else parts.vitals.measure(),
            pause=None if parts.pause is None else parts.pause.current(),
            gate_up=keeper is not None and keeper.up,
        )

    def _born(self, rank: RankName) -> float | None:
        """When a rank attached, by its own account."""
        target = self._parts.registry.get(rank)
        return None if target is None else target.born_s

    def _learn(self, sweep: Sweep) -> None:
        """Tell the registry who answered."""
        registry = self._parts.registry
        registry.heard([one.rank for one in sweep.observations if one.report is not None])
        for one in sweep.observations:
            if isinstance(one.outcome, Unreachable):
                self._parts.instruments.poll_failures.labels(str(one.outcome.reason)).inc()
                target = registry.get(one.rank)
                if one.outcome.reason is Failure.STRANGER and target is not None:
                    registry.estrange(target)
        for url, identity in sweep.identified:
            registry.identify(url, identity)

    # -- decide -------------------------------------------------------------------------------

    def _decide(self, snapshot: Snapshot) -> TickResult:
        """The judge's result; when it crashes, the last incidents and no decision."""
        result = self._undecided(snapshot.now_s)
        with self._part("decide"):
            result = self._parts.judge.tick(snapshot)
        for detector in result.detector_failures:
            self._parts.instruments.detector_failures.labels(detector).inc()
        self._wanted, self._past = result.wants_records, result.wants_steps
        self._result = result
        return result

    def _undecided(self, now_s: float) -> TickResult:
        """A tick that nobody judged: every kind of fault is unknown."""
        last = self._result
        return TickResult(
            now_s,
            incidents=last.incidents,
            detectors=dict.fromkeys(last.detectors, False),
            unknown={kind.value: "the judgement of this tick crashed" for kind in FAULTS},
            health=last.health,
        )

    # -- act ----------------------------------------------------------------------------------

    def _act(self, result: TickResult, snapshot: Snapshot) -> None:
        """Write down what was decided, then carry it out."""
        parts = self._parts
        before = [self._chronicle.get(incident.id) for incident in result.changed]
        parts.instruments.count_incidents(result.changed, [one for one in before if one])
        parts.store.save_incidents(result.changed)
        self._chronicle.take_incidents(result.changed)
        with self._part("offences"):
            self._remember_offences(result, [one for one in before if one], snapshot)
        self._audit(snapshot, result, {one.id: one for one in before if one})
        with self._deciding:
            for decision in result.decisions:
                self._log(decision)
                if isinstance(decision, Evict):
                    self._held.pop(decision.incident_id, None)
                    self._decided(decision, snapshot)
                else:
                    self._held[decision.incident_id] = f"{decision.guard}: {decision.reason}"
                    rungs = rungs_for(decision, parts)
                    row = parts.store.save_decision(decision, snapshot.now_s, rungs=rungs)
                    self._told(row)
                    parts.instruments.holds.labels(str(decision.guard)).inc()
            patience_s = self._config.eviction_deadline_s
            for evict in self._docket.review(snapshot, self._chronicle.get, self._held, patience_s):
                self._decided(evict, snapshot)
            self._carry_out(snapshot)
        parts.store.flush()
        self._chronicle.take_evictions(parts.evictors.progress())
        self._count_evictions()

    def _remember_offences(
        self, result: TickResult, before: Sequence[Incident], snapshot: Snapshot
    ) -> None:
        """What this tick says about hosts: kept for weeks, and the evidence of a quarantine."""
        quarantine, known = self._parts.quarantine, {one.id: one for one in before}
        quarantine.take(offences.accusations(result.changed, known, snapshot))
        quarantine.take(offences.evictions(result.decisions, self._chronicle.get, snapshot))

    def _audit(
        self, snapshot: Snapshot, result: TickResult, before: Mapping[IncidentId, Incident]
    ) -> None:
        """Note what the account of an incident needs, before anything is carried out."""
        parts, chronicle = self._parts, self._chronicle
        if parts.auditor is not None:
            with self._part("audit"):
                parts.auditor.took_place(snapshot, result.changed, before)
                parts.auditor.count(self._accounted(), chronicle.decisions(), snapshot.now_s)

    def _decided(self, evict: Evict, snapshot: Snapshot, author: str = "lightkeeper") -> None:
        incident = self._chronicle.get(evict.incident_id)
        order = order_for(evict, snapshot, incident, author)
        self._docket.decide(evict, order, epoch=self._handover.epoch)

    def _carry_out(self, snapshot: Snapshot) -> None:
        """Hand over what is written, with a look at this tick's fleet; all else waits."""
        parts, docket = self._parts, self._docket
        for one in docket.ready(snapshot.now_s, self._config.eviction_ack_s):
            if parts.lease is not None and parts.lease.why_not() is not None:
                return
            incident = self._chronicle.get(one.evict.incident_id)
            order = docket.attempt(order_for(one.evict, snapshot, incident, one.author))
            docket.carried_out(one.evict.incident_id)
            if not parts.evictors.submit(self._witnessed(order)):
                docket.refused(one.evict.incident_id, snapshot.now_s)

    def _tell(self, snapshot: Snapshot) -> None:
        """What people should know now; the couriers see what is new."""
        office, chronicle = self._handover.deeds.notify, self._chronicle
        if office is not None:
            evictions = chronicle.evictions().values()
            known = (chronicle.incidents(), chronicle.decisions(), evictions)
            office.push(Known(snapshot.now_s, *known))

    def _log(self, decision: Decision) -> None:
        match decision:
            case Evict():
                log.warning("evict %s: %s", decision.group, decision.reason)
            case Hold():
                log.info("hold %s (%s): %s", decision.incident_id, decision.guard, decision.reason)

    def _witnessed(self, order: Order) -> Order:
        """With the evidence for which it waits; without, when that crashes."""
        evidence, evict = self._parts.evidence, order.evict
        if evidence is not None and order.refused is None:
            with self._part("witness"):
                incident = self._chronicle.get(evict.incident_id)
                ticket = evidence.before_eviction(evict, incident, order.author)
                if ticket is not None:
                    return replace(order, evidence=ticket.wait)
        return order

    def _count_evictions(self) -> None:
        for progress in self._parts.evictors.take_ended():
            self._docket.ended(progress, self._parts.clock.now_s())
            incident = self._chronicle.get(progress.incident_id)
            kind = "by_hand" if incident is None else str(incident.kind)
            outcome = "left" if progress.gone_s is None else "gone"
            if progress.failed is not None:
                outcome = "failed"
            self._parts.instruments.evictions.labels(kind, outcome).inc()

    # -- show ---------------------------------------------------------------------------------

    def _show(self, snapshot: Snapshot, result: TickResult) -> None:
        parts = self._parts
        tempos = self._tempos.push(snapshot)
        quarantine = parts.quarantine.active()
        parts.store.flush()
        incidents = self._accounted()
        rules = None if parts.rulebook is None else parts.rulebook.current
        self._view = View(
            snapshot=snapshot,
            result=result,
            observe=self._config.observe,
            rules=rules,
            incidents=incidents,
            decisions=self._chronicle.decisions(),
            evictions=self._chronicle.evictions(),
            bundles={} if parts.evidence is None else parts.evidence.views(i.id for i in incidents),
            evicting=frozenset(progress.group for progress in parts.evictors.active()),
            quarantine=quarantine,
            quarantine_groups=parts.quarantine.groups(),
            hosts=parts.quarantine.records(),
            tempos=tempos,
            books=Books() if parts.auditor is None else parts.auditor.books,
            troubles=(
                *self._notes,
                *troubles(parts, result, self._broken, self._handover.deeds),
                *self._docket.troubles(),
            ),
            standing=None if parts.lease is None else parts.lease.standing(),
            lighthouse=self._lighthouse,
        )

    def _accounted(self) -> tuple[Incident, ...]:
        """Incidents, and evictions by hand, which have an account too."""
        auditor, chronicle = self._parts.auditor, self._chronicle
        found = chronicle.incidents()
        if auditor is not None:
            with self._part("by hand"):
                found = with_by_hand(found, chronicle.decisions(), auditor.books)
        return found

    # -- said afterwards ----------------------------------------------------------------------

    def review(self, incident_id: IncidentId, said: Review) -> None:
        """A person judged an incident.

        Raises:
            NotPossible: there is no such incident, or nobody keeps books.
        """
        auditor = self._parts.auditor
        if auditor is None or all(one.id != incident_id for one in self._accounted()):
            raise NotPossible(f"no such incident: {incident_id}")
        auditor.review(incident_id, said)
        self._parts.store.flush()

    # -- by hand ------------------------------------------------------------------------------

    def evict_by_hand(self, group: GroupName, reason: str, author: str = "a person") -> IncidentId:
        """Evict a group because a person says so; no guard but the incarnation check applies.

        Raises:
            NotPossible: there is no such group, or it is being evicted already.
        """
        lease = self._parts.lease
        if lease is not None and not self._handover.leading:
            raise NotPossible(lease.standing().sentence())
        view = self._view
        found = [] if view is None else [one for one in groups_of(view) if one.group == group]
        if view is None or not found:
            raise NotPossible(f"no such group: {group}")
        if any(progress.group == group for progress in self._parts.evictors.active()):
            raise NotPossible(f"{group} is being evicted already")
        incident_id = IncidentId(f"{MANUAL}{group}-{view.snapshot.tick}-{int(view.snapshot.now_s)}")
        evict = Evict(incident_id, group, found[0].replica_id, (), reason)
        with self._deciding:
            if self._docket.going(group):
                raise NotPossible(f"{group} is being evicted already")
            self._decided(evict, view.snapshot, author=author)
            self._carry_out(view.snapshot)
        return incident_id
