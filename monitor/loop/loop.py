"""The loop: observe, decide, act, once per tick, in that order.

Any single part may crash: the crash is counted, logged when new, and the other parts continue. What
it leaves unknown is shown as unknown: without a sweep nothing is decided in that tick.

Which monitor acts is settled at the start of a tick, so no handover happens while a tick decides.
The lease is renewed in its own thread, and checked again right before every action.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from lightkeeper.monitor.act.notices import NoticeFacts
from lightkeeper.monitor.act.poller import Sweep
from lightkeeper.monitor.act.quarantine import SWITCH
from lightkeeper.monitor.decide.links import LinkTemplates
from lightkeeper.monitor.decide.pipeline import TickResult
from lightkeeper.monitor.decide.rank_seconds import RankSeconds, Spent
from lightkeeper.monitor.decide.tempo import TempoBook, TrendBook
from lightkeeper.monitor.decide.view import DepartureBook, NotPossible, RecentIncidents, View
from lightkeeper.monitor.journal.writer import Stats
from lightkeeper.monitor.loop.components import (
    Components,
    ErrorBoundary,
    LeaderComponents,
    troubles,
)
from lightkeeper.monitor.loop.evictions import Acting
from lightkeeper.monitor.metric import HEALTH, TICK_BUCKETS
from lightkeeper.monitor.model.eviction import Fence, Remembered
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName
from lightkeeper.monitor.model.observation import (
    NO_LIGHTHOUSE,
    Failure,
    LighthouseAway,
    LighthouseRecord,
    LighthouseView,
    Snapshot,
)
from lightkeeper.monitor.model.run import Run, TrendPoint
from lightkeeper.monitor.model.verdict import FAULTS, Kind
from lightkeeper.monitor.model.work import WorkAction, WorkRow
from lightkeeper.worker_server.wire import Identity, StateReport

log = logging.getLogger(__package__)

TICKS: Final = HEALTH.histogram("tick_duration_seconds",
    "Seconds from the start of a tick to its end.", buckets=TICK_BUCKETS, series="13")  # fmt: skip
LATENESS: Final = HEALTH.gauge("tick_lateness_seconds",
    "How much later than planned the last tick began.")  # fmt: skip
POLL_FAILURES: Final = HEALTH.counter("poll_failures",
    "Polls of a rank that gave no report, by reason.", ("reason",), series="≤ 6",
    absent="none since the start")  # fmt: skip
DETECTOR_FAILURES: Final = HEALTH.counter("detector_failures",
    "Crashes of a detector; its kind of fault is unknown meanwhile.", ("detector",),
    series="≤ 1 a detector", absent="it never crashed")  # fmt: skip

# -- observe -------------------------------------------------------------------------------------

_SWEEP_SHARE: Final = 0.8
"""Share of a tick that the sweep may take: the rest is for deciding and writing."""
_SWEEP_LEAST_S: Final = 0.2
_SWEEP_MOST_S: Final = 3.0
_SWEEP_A_RANK_S: Final = 1e-4
"""Time to read one rank's state on a busy core (docs/scale.md): tens of thousands of ranks take
longer than `_SWEEP_MOST_S`."""
_COLLECT_AFTER: Final = 50_000
_OBJECTS_A_RANK: Final = 20
"""Allocations minus frees after which the garbage collector runs: a rank's report is ten objects,
and a sweep's are made before those of the previous one are freed. With Python's default of 700 it
took a third of the monitor's time at 5,000 ranks, with 50,000 a tenth at 10,000 (docs/scale.md)."""
_GONE: Final = frozenset({Failure.REFUSED, Failure.UNRESOLVED, Failure.STRANGER})
"""Nobody, or somebody else, listens at the address."""
_LOOP_LATE_S: Final = 2.0
"""A fetch loop later than this is broken: the tick continues without it."""


class Observing:
    """Takes snapshots of all ranks and the Lighthouse; shows the registry which ranks answered."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self.lighthouse = LighthouseRecord()
        """What is known about the Lighthouse over all ticks."""

    def look(
        self, tick: int, now_s: float, lateness_s: float, before: TickResult, *, again: bool
    ) -> Snapshot:
        """The snapshot of the tick that began at `now_s`, so much later than planned, with what the
        tick before asked for. `again`: it is one between two planned ones.
        """
        components, targets = self._components, self._components.registry.targets()
        most_s = max(_SWEEP_MOST_S, _SWEEP_A_RANK_S * len(targets))
        deadline_s = min(max(_SWEEP_SHARE * self._components.config.tick_s, _SWEEP_LEAST_S), most_s)
        collect_after = max(_COLLECT_AFTER, _OBJECTS_A_RANK * len(targets))
        gc.set_threshold(collect_after, *gc.get_threshold()[1:])
        page = (
            None if components.lighthouse is None else components.lighthouse.begin_look(deadline_s)
        )
        sweep = components.poller.sweep(
            targets,
            deadline_s=deadline_s,
            wanted=before.wants_records,
            past=before.wants_steps,
            watched=before.watches,
            again=again,
        )
        lighthouse: LighthouseView | LighthouseAway = LighthouseAway(NO_LIGHTHOUSE)
        if page is not None:
            lighthouse = page.result(timeout=deadline_s + _LOOP_LATE_S)
        # a sweep far beyond its deadline was interrupted: what it saw is old
        overdue_s = components.clock.now_s() - now_s - deadline_s - _LOOP_LATE_S
        self._learn(sweep)
        self.lighthouse = self.lighthouse.after(lighthouse, now_s)
        keeper = components.gatekeeper
        if keeper is not None:
            keeper.saw(sweep.observations, components.registry.get)
        components.evictors.note(lighthouse)
        observations, run = components.registry.current(sweep.observations)
        return Snapshot(
            now_s=now_s,
            tick=tick,
            lateness_s=max(lateness_s, overdue_s),
            observations=observations,
            lighthouse=lighthouse,
            records=sweep.records,
            records_asked_s={rank: now_s - ago_s for rank, ago_s in sweep.asked_ago_s.items()},
            evictions=components.evictors.log.progress(),
            steps=sweep.steps,
            vitals=components.vitals.measure(),
            pause=components.pause.current(),
            run=run,
            gate_up=keeper is not None and keeper.up,
            schedulers=bool(components.schedulers),
            gate_began_s=None if keeper is None else keeper.began_s,
            cluster={} if components.cluster is None else components.cluster.current(now_s),
            ends={} if components.ends is None else components.ends.note(observations, now_s),
        )

    def _learn(self, sweep: Sweep) -> None:
        failures = POLL_FAILURES.on(self._components.metrics)
        reports, gone = dict[RankName, StateReport](), list[Identity]()
        for seen in sweep.observations:
            if isinstance(seen.outcome, StateReport):
                reports[seen.identity.rank] = seen.outcome
                continue
            failures.labels(str(seen.outcome.reason)).inc()
            if seen.outcome.reason in _GONE:
                gone.append(seen.identity)
        self._components.registry.heard(reports)
        self._components.registry.gone(gone)


# -- who acts ------------------------------------------------------------------------------------

_UNREAD: Final = -1
"""Nothing read yet; differs from every `Lease.writes`, even None."""
_READ_SHARE: Final = 10.0
"""A standby spends at most a tenth of its time reading a store with thousands of incidents."""


class Leadership:
    """Knows if this monitor acts, and has what only the active one has. A standby shows what the
    active one writes.

    Args:
        show: called with what the store holds, to show it on this monitor.
    """

    def __init__(self, components: Components, show: Callable[[Remembered], None]) -> None:
        self._components = components
        self._show = show
        self._fence: Fence | None = None
        """The fence under which this monitor acts; None on standby."""
        self._read: int | None = _UNREAD
        """The store's write count when a standby last read it."""
        self._next_s = 0.0
        self.components = LeaderComponents()

    @property
    def leading(self) -> bool:
        """True if this monitor decides and acts, even while the lease forbids it for a moment."""
        return self._fence is not None

    @property
    def epoch(self) -> int:
        """Epoch of the lease that this monitor holds; 0: none."""
        return 0 if self._fence is None else self._fence.epoch

    def check(self, tick: int) -> None:
        """Take over or stand by if that has changed; a standby reads what the active one wrote.

        Raises:
            StoreError: the store cannot be read; the next tick tries again.
        """
        fence = self._components.lease.fence()
        if fence is None:
            if self._fence is not None:
                self._stand_by()
            self._look_on()
        elif fence != self._fence:
            self._stand_by()
            self._lead(fence, tick)

    def _stand_by(self) -> None:
        components, was = self._components, self._fence
        self._fence, self._read = None, _UNREAD
        dropped = components.store.follow()
        components.evictors.log.follow(())
        self.components.close()
        self.components = LeaderComponents()
        if was is not None:
            log.warning("this monitor stands by from now on; %d writes are dropped", dropped)

    def _look_on(self) -> None:
        """Take over what the active monitor wrote since the last call."""
        components, began_s = self._components, self._components.clock.now_s()
        writes = components.lease.writes()
        unreadable = components.lease.standing().problem is not None  # which is shown
        if writes == self._read or began_s < self._next_s or unreadable:
            return
        remembered = components.store.remembered()
        components.evictors.log.follow(remembered.evictions)
        progress = components.evictors.log.progress()
        components.judge.go_on(remembered.incidents, progress)
        self._adopt(remembered)
        self._read = writes
        now_s = components.clock.now_s()
        self._next_s = now_s + _READ_SHARE * (now_s - began_s)

    def _lead(self, fence: Fence, tick: int) -> None:
        components = self._components
        remembered = components.store.lead(fence)
        evictions = components.evictors.log.take_over(remembered.evictions)
        components.judge.go_on(remembered.incidents, evictions)
        self._adopt(remembered)
        components.registry.save_all(remembered.targets)
        components.evidence.look_again()
        self.components = components.begin(components, remembered, evictions, tick)
        self._fence = fence
        log.info("this monitor acts from now on (epoch %d)", fence.epoch)

    def _adopt(self, remembered: Remembered) -> None:
        self._components.quarantine.take_over(remembered.quarantine, remembered.quarantine_events)
        self._components.registry.restore(remembered.targets, next(iter(remembered.runs), None))
        self._components.pause.take_over(remembered.switches.get(SWITCH))
        self._components.work.take_over(remembered.work)
        if self._components.gatekeeper is not None:
            self._components.gatekeeper.remember(remembered.evictions)
        self._show(remembered)


# -- one tick after the other --------------------------------------------------------------------

RUNS_KEPT: Final = 50
POINTS_KEPT: Final = 120
_RUN_SAVED_S: Final = 30.0
_WORK_MOST: Final = 200
"""Entries of one incident, and silences that hold."""
_LOOKS_BETWEEN: Final = 2
"""Extra ticks between two scheduled ones, at most."""


class Keeper:
    def __init__(self, components: Components, *, tokenless: bool = False) -> None:
        self._components = components
        self._tokenless = tokenless
        self._errors = ErrorBoundary(components.metrics)
        self._ticks, self._lateness = TICKS.on(components.metrics), LATENESS.on(components.metrics)
        self._observing = Observing(components)
        self._acting = Acting(components, self._errors)
        self._leadership = Leadership(components, self._show_stored)
        self._tempos = TempoBook()
        self._trend = TrendBook()
        self._departures = DepartureBook()
        self._rank_seconds, self._spent = RankSeconds(components.config.tick_s), Spent()
        self._tick = 0
        self._runs: tuple[Run, ...] = ()
        """Newest first; the first is that of the ranks."""
        self._result = TickResult(components.clock.now_s())
        self.view: View | None = None
        """The latest view; None before the first tick is over."""
        self.idle = threading.Event()
        """Cleared while a tick decides, acts and shows. Heavy work in another thread of this
        interpreter waits for it, for a limited time."""
        self.idle.set()

    def run(self, stop: threading.Event) -> None:
        """Tick on schedule, and in between where the judge asks for it, until `stop` is set, or
        the host's clock was.
        """
        clock, tick_s = self._components.clock, self._components.config.tick_s
        planned_s = due_s = clock.now_s()
        between = 0
        while not stop.is_set():
            began_s = clock.now_s()
            lateness_s = max(0.0, began_s - due_s)
            self.tick(lateness_s, again=due_s < planned_s)
            between += 1
            if due_s >= planned_s:
                planned_s = (planned_s if lateness_s < tick_s else began_s) + tick_s
                between = 0
            now_s = clock.now_s()
            asked_s = self._result.look_again_s if between < _LOOKS_BETWEEN else planned_s
            due_s = min(planned_s, max(asked_s, now_s))
            stop.wait(max(0.0, due_s - now_s))
            if clock.ahead_s():
                return

    def tick(self, lateness_s: float = 0.0, *, again: bool = False) -> None:
        """Observe, decide, act, once. Never raises."""
        components = self._components
        began_s = components.clock.now_s()
        self._tick += 1
        with self._errors.part("policy"):
            self._reconfigure()
        with self._errors.part("lease"):
            self.take_part()
        with self._errors.part("targets"):
            for target in components.registry.expire():
                about = {"group": target.identity.group, "rank": target.rank}
                log.warning("%s is dropped: silent and its lease over", target.rank, extra=about)
        with self._errors.part("journal file"):
            if (journal := self._leadership.components.journal) is not None:
                journal.before_tick(began_s)
        snapshot = None
        with self._errors.part("sweep"):
            snapshot = self._observing.look(
                self._tick, began_s, lateness_s, self._result, again=again
            )
        self.idle.clear()
        if snapshot is not None:
            result = self._decide(snapshot)
            if self._leadership.leading:
                with self._errors.part("evidence"):
                    self._components.evidence.take(snapshot, result.incidents, result.changed)
                with self._errors.part("act"):
                    self._acting.act(result, snapshot, self._leadership.epoch)
                with self._errors.part("notify"):
                    self._tell(snapshot)
            self._turn_to(snapshot.run)
            with self._errors.part("goodput"):
                self._spent = self._rank_seconds.push(snapshot, result)
            with self._errors.part("view"):
                self._show(snapshot, result)
            # last, so that its thread works while this one sleeps
            with self._errors.part("journal"):
                if (journal := self._leadership.components.journal) is not None:
                    journal.take(snapshot, result, self._errors.broken.get("decide"))
        self.idle.set()
        self._lateness.set(lateness_s)
        self._ticks.observe(self._components.clock.now_s() - began_s)

    # -- who acts, and by which policy ----------------------------------------------------------

    def take_part(self) -> None:
        """Take over or stand by if that has changed.

        Raises:
            StoreError: the store cannot be read; the next tick tries again.
        """
        with self._acting.deciding:
            self._leadership.check(self._tick)

    @property
    def journal_stats(self) -> Stats:
        """Counters of the journal; zeros while this monitor writes none."""
        journal = self._leadership.components.journal
        return Stats() if journal is None else journal.stats

    def close(self) -> None:
        if self._runs and self._leadership.leading:
            self._components.store.save_run(self._runs[0])
        self._leadership.components.close()

    def _show_stored(self, remembered: Remembered) -> None:
        self._acting.recent = RecentIncidents(remembered)
        self._trend.take_over(remembered.trend)
        if not self._runs and remembered.runs:
            self._runs = remembered.runs[:RUNS_KEPT]
            self._rank_seconds.lost_to = dict(self._runs[0].lost)
        self._result = replace(self._result, incidents=self._acting.recent.incidents())

    def _reconfigure(self) -> None:
        """Take up a policy loaded since the last tick: first the pipeline, then the journal."""
        components = self._components
        fresh = components.rulebook.take()
        if fresh is None:
            return
        components.judge.reconfigure(fresh.config, fresh.policy)
        journal = self._leadership.components.journal
        if journal is not None:
            journal.reconfigure(fresh.config, fresh.policy, now_s=components.clock.now_s())
        log.warning("from now on the policy of %s holds (load %d)", fresh.path, fresh.number)

    # -- decide -------------------------------------------------------------------------------

    def _decide(self, snapshot: Snapshot) -> TickResult:
        """The judge's result; if it crashes, the last incidents and no decision: every kind of
        fault is unknown.
        """
        last = self._result
        result = TickResult(
            snapshot.now_s,
            incidents=last.incidents,
            detectors=dict.fromkeys(last.detectors, False),
            unknown={kind.value: "the judgement of this tick crashed" for kind in FAULTS},
            health=last.health,
        )
        with self._errors.part("decide"):
            result = self._components.judge.tick(snapshot)
        for detector in result.detector_failures:
            DETECTOR_FAILURES.on(self._components.metrics).labels(detector).inc()
        self._result = result
        return result

    # -- notify and show ---------------------------------------------------------------------

    def _tell(self, snapshot: Snapshot) -> None:
        """Pass on the state that people are notified of; each sink's worker picks what is new."""
        notifier, recent = self._leadership.components.notify, self._acting.recent
        if notifier is not None:
            faults = [i for i in recent.incidents() if i.kind is not Kind.BY_HAND]
            ahead_s, work = self._components.clock.ahead_s(), self._components.work.now
            links = LinkTemplates(
                self._components.rulebook.current.policy.links, snapshot
            ).of_incident
            notifier.push(NoticeFacts(
                snapshot.now_s, faults, recent.decisions(), ahead_s, work, links,
            ))  # fmt: skip

    def _turn_to(self, run: Run | None) -> None:
        """Forget what the ranks of the last run did, if this is another."""
        latest = next(iter(self._runs), None)
        if run is None or (latest is not None and latest.id == run.id):
            return
        if latest is not None:
            self._components.store.save_run(latest)
        self._departures = DepartureBook()
        self._rank_seconds.turn()
        self._runs = (run, *self._runs)[:RUNS_KEPT]

    def _note_run(self, snapshot: Snapshot, points: Sequence[TrendPoint]) -> None:
        """Keep what is known of the run, for when it is over."""
        if not self._runs:
            return
        before, *past = self._runs
        trend = [point for point in points if point.at_s >= before.began_s]
        run = replace(before, lost=self._spent.lost_to)
        alive = [seen for seen in snapshot.reports.values() if seen.process.alive]
        if alive:
            steps = (seen.step.step for seen in alive if seen.step is not None)
            every = -(-len(trend) // POINTS_KEPT) or 1
            run = replace(
                run, seen_s=snapshot.now_s, ranks=max(before.ranks, len(alive)),
                step=max(steps, default=before.step), trend=tuple(trend[::every]),
            )  # fmt: skip
        if before.seen_s // _RUN_SAVED_S != run.seen_s // _RUN_SAVED_S:
            self._components.store.save_run(run)
        self._runs = (run, *past)

    def _show(self, snapshot: Snapshot, result: TickResult) -> None:
        components = self._components
        tempos = self._tempos.push(snapshot)
        for point in self._trend.push(snapshot, tempos):
            components.store.save_trend(*point)
        trend = self._trend.points()
        self._note_run(snapshot, trend["1h"])
        quarantine = components.quarantine.active()
        components.store.flush()
        # sentences of open incidents change with time
        fresh = {incident.id: incident for incident in result.incidents}
        incidents = tuple(
            fresh.get(incident.id, incident) for incident in self._acting.recent.incidents()
        )
        self.view = View(
            snapshot=snapshot,
            result=result,
            observe=self._components.in_force.observe,
            rules=components.rulebook.current,
            incidents=incidents,
            decisions=self._acting.recent.decisions(),
            bundles=components.evidence.views(incident.id for incident in incidents),
            evicting=frozenset(progress.group for progress in components.evictors.active()),
            quarantine=quarantine,
            quarantine_groups=components.quarantine.groups(),
            hosts=components.quarantine.records(),
            tempos=tempos,
            trend=trend,
            runs=self._runs,
            departures=self._departures.push(snapshot),
            work=components.work.now,
            spent=self._spent,
            tokens=self._tempos.tokens,
            troubles=(
                *troubles(components, result, self._errors.broken, self._leadership.components),
                *self._acting.troubles(),
            ),
            standing=components.lease.standing(),
            lighthouse=self._observing.lighthouse,
            tokenless=self._tokenless,
        )

    # -- by hand ------------------------------------------------------------------------------

    def work(self, row: WorkRow) -> WorkRow:
        """Keep what a person did about an incident; it is shown at once. That a group will not come
        back, or lost progress is accepted, only a person knows: to resolve that ends the incident.

        Raises:
            NotPossible: another monitor acts, or as much is kept of it as may be.
        """
        components = self._components
        with self._acting.deciding:
            if not self._leadership.leading:
                raise NotPossible(components.lease.standing().sentence())
            work = components.work.now
            rows = work.about(row.about) if row.about else work.silences(row.at_s)
            if len(rows) >= _WORK_MOST:
                raise NotPossible(f"there are {_WORK_MOST} already: no more are kept")
            row = components.work.add(row)
            if row.action is WorkAction.RESOLVE:
                components.judge.close(IncidentId(row.about), row.author, row.text)
        if self.view is not None:
            self.view = replace(self.view, work=components.work.now)
        return row

    def evict_by_hand(self, group: GroupName, reason: str, author: str = "a person") -> IncidentId:
        """Evict a group on a person's request; no guard but the incarnation check applies.

        Raises:
            NotPossible: another monitor acts, there is no such group, or it is already being
                evicted.
        """
        with self._acting.deciding:  # no handover in between
            if not self._leadership.leading:
                raise NotPossible(self._components.lease.standing().sentence())
            return self._acting.by_hand(group, reason, author, self.view, self._leadership.epoch)
