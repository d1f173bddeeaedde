"""The loop: observe, decide, act, once per tick, in that order.

Any single part may crash: it is counted, logged when that is new, and the others go on. What a
crash leaves unknown is shown as unknown: without a sweep nothing is decided in that tick.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from monitor.audit.books import Books
from monitor.config import KeeperConfig
from monitor.departures import DepartureBook
from monitor.detectors.verdict import FAULTS
from monitor.journal.writer import Stats
from monitor.keeper.acting import Acting
from monitor.keeper.bulkheads import Bulkheads
from monitor.keeper.handover import Handover
from monitor.keeper.observing import Observing
from monitor.keeper.parts import Parts
from monitor.keeper.troubles import troubles
from monitor.names import GroupName, IncidentId, RankName
from monitor.notify import Known
from monitor.pipeline import TickResult
from monitor.rank_seconds import RankSeconds, Spent
from monitor.snapshot import Snapshot
from monitor.store import Remembered
from monitor.tempo import TempoBook
from monitor.tokens import TokenBook
from monitor.view import NotPossible, View

log = logging.getLogger(__package__)

_LOOKS_BETWEEN: Final = 2
"""Ticks between two of the schedule, at most."""


class Keeper:
    """One monitor at work."""

    def __init__(self, parts: Parts, remembered: Remembered, notes: tuple[str, ...] = ()) -> None:
        self._parts = parts
        self._notes = notes
        self._bulkheads = Bulkheads(parts.instruments.part_failures)
        self._observing = Observing(parts)
        self._acting = Acting(parts, remembered, self._bulkheads, lambda: self._config)
        self._docket = self._acting.docket
        self._handover = Handover(parts, self._docket, self._show_stored)
        self._tempos, self._tokens = TempoBook(), TokenBook()
        self._departures = DepartureBook()
        self._rank_seconds, self._spent = RankSeconds(parts.config.tick_s), Spent()
        self._tallied: Mapping[GroupName, int] = {}
        self._tick = 0
        self._wanted: tuple[RankName, ...] = ()
        self._past: tuple[RankName, ...] = ()
        incidents = self._acting.chronicle.incidents()
        self._result = TickResult(parts.clock.now_s(), incidents=incidents)
        self._view: View | None = None
        self.idle = threading.Event()
        """Set but while a tick decides, acts and shows: who has much to do in another thread of
        this interpreter waits for it, a while."""
        self.idle.set()

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
        """Tick on schedule, and between where the judge asks for it, until told to stop."""
        clock, tick_s = self._parts.clock, self._parts.config.tick_s
        planned_s = due_s = clock.now_s()
        between = 0
        while not stop.is_set():
            began_s = clock.now_s()
            lateness_s = max(0.0, began_s - due_s)
            self.tick(lateness_s)
            between += 1
            if due_s >= planned_s:
                planned_s = (planned_s if lateness_s < tick_s else began_s) + tick_s
                between = 0
            now_s = clock.now_s()
            asked_s = self._result.look_again_s if between < _LOOKS_BETWEEN else planned_s
            due_s = min(planned_s, max(asked_s, now_s))
            stop.wait(max(0.0, due_s - now_s))

    def tick(self, lateness_s: float = 0.0) -> None:
        """Observe, decide, act, once. Never raises."""
        parts = self._parts
        began_s = parts.clock.now_s()
        self._tick += 1
        with self._bulkheads.part("policy"):
            self._reconfigure()
        with self._bulkheads.part("lease"):
            self.take_part()
        with self._bulkheads.part("targets"):
            self._observing.refresh_targets()
        snapshot = None
        with self._bulkheads.part("sweep"):
            snapshot = self._observing.look(
                self._tick, began_s, lateness_s, wanted=self._wanted, past=self._past,
                watched=self._result.watches,
            )  # fmt: skip
        self.idle.clear()
        if snapshot is not None:
            result = self._decide(snapshot)
            if self._handover.leading:
                if evidence := self._parts.evidence:
                    with self._bulkheads.part("evidence"):
                        evidence.take(snapshot, result.incidents, result.changed)
                with self._bulkheads.part("act"):
                    self._acting.act(result, snapshot, self._handover.epoch)
                with self._bulkheads.part("notify"):
                    self._tell(snapshot)
            with self._bulkheads.part("goodput"):
                self._spent = self._rank_seconds.push(snapshot, result)
                self._tallied = self._tokens.push(snapshot)
            with self._bulkheads.part("view"):
                self._show(snapshot, result)
            # last, so that its thread works while this one sleeps
            with self._bulkheads.part("journal"):
                if (journal := self._handover.deeds.journal) is not None:
                    journal.take(snapshot, result, self._bulkheads.broken.get("decide"))
        self.idle.set()
        self._parts.instruments.lateness.set(lateness_s)
        self._parts.instruments.ticks.observe(self._parts.clock.now_s() - began_s)

    # -- who acts, and by which policy ----------------------------------------------------------

    def take_part(self) -> None:
        """Take over, or stand by, if that has changed.

        Raises:
            StoreError: the store cannot be read: tried again in the next tick.
        """
        with self._acting.deciding:
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
        self._acting.adopt(found)
        self._result = replace(self._result, incidents=self._acting.chronicle.incidents())

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

    # -- decide -------------------------------------------------------------------------------

    def _decide(self, snapshot: Snapshot) -> TickResult:
        """The judge's result; when it crashes, the last incidents and no decision."""
        result = self._undecided(snapshot.now_s)
        with self._bulkheads.part("decide"):
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

    # -- tell and show -----------------------------------------------------------------------

    def _tell(self, snapshot: Snapshot) -> None:
        """What people should know now; the couriers see what is new."""
        office, chronicle = self._handover.deeds.notify, self._acting.chronicle
        if office is not None:
            evictions = chronicle.evictions().values()
            known = (chronicle.incidents(), chronicle.decisions(), evictions)
            office.push(Known(snapshot.now_s, *known))

    def _show(self, snapshot: Snapshot, result: TickResult) -> None:
        parts = self._parts
        tempos = self._tempos.push(snapshot)
        quarantine = parts.quarantine.active()
        parts.store.flush()
        fresh = {one.id: one for one in result.incidents}  # their sentences follow the time
        incidents = tuple(fresh.get(one.id, one) for one in self._acting.accounted())
        rules = None if parts.rulebook is None else parts.rulebook.current
        self._view = View(
            snapshot=snapshot,
            result=result,
            observe=self._config.observe,
            rules=rules,
            incidents=incidents,
            decisions=self._acting.chronicle.decisions(),
            evictions=self._acting.chronicle.evictions(),
            bundles={} if parts.evidence is None else parts.evidence.views(i.id for i in incidents),
            evicting=frozenset(progress.group for progress in parts.evictors.active()),
            quarantine=quarantine,
            quarantine_groups=parts.quarantine.groups(),
            hosts=parts.quarantine.records(),
            tempos=tempos,
            departures=self._departures.push(snapshot),
            spent=self._spent,
            tokens=self._tallied,
            books=Books() if parts.auditor is None else parts.auditor.books,
            troubles=(
                *self._notes,
                *troubles(parts, result, self._bulkheads.broken, self._handover.deeds),
                *self._docket.troubles(),
            ),
            standing=None if parts.lease is None else parts.lease.standing(),
            lighthouse=self._observing.lighthouse,
        )

    # -- by hand ------------------------------------------------------------------------------

    def evict_by_hand(self, group: GroupName, reason: str, author: str = "a person") -> IncidentId:
        """Evict a group because a person says so; no guard but the incarnation check applies.

        Raises:
            NotPossible: another monitor acts, there is no such group, or it is being evicted
                already.
        """
        lease = self._parts.lease
        with self._acting.deciding:  # no handover in between
            if lease is not None and not self._handover.leading:
                raise NotPossible(lease.standing().sentence())
            return self._acting.by_hand(group, reason, author, self._view, self._handover.epoch)
