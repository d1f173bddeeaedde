"""The thread that carries orders out, one at a time, and publishes how far it came."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from monitor.clock import Clock
from monitor.evictors.ladder import Ladder
from monitor.evictors.look import Life, Looker
from monitor.evictors.order import AUTHOR, Order, Patience
from monitor.evictors.proof import beats_on, shown_out
from monitor.evictors.rungs import (
    GateRefuses,
    LighthouseKill,
    SchedulerRemoves,
    WorkerEvict,
    quarantine_hosts,
    wait_for_evidence,
)
from monitor.evictors.rungs.gate import Refuser
from monitor.fetch import Fetcher
from monitor.lighthouse import Lighthouse
from monitor.names import IncidentId, RankName
from monitor.quarantine import Quarantine
from monitor.schedulers.protocol import Scheduler
from monitor.snapshot import (
    EvictionProgress,
    LighthouseAway,
    LighthouseView,
    Rung,
    RungOutcome,
    RungResult,
)
from monitor.targets import Registry

log = logging.getLogger(__name__)

PROGRESS_KEPT_S: Final = 3600.0
"""Ended evictions stay in snapshots for so long: the policy's budget counts an hour."""


ASKING: Final = frozenset({Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER})
"""Rungs that ask somebody to put the group out."""

RECOVERED: Final = "it moves again: nobody is evicted"
"""Found by a last look at those who had stood still, after their evidence was saved."""


@dataclass(slots=True)
class _Case:
    order: Order
    progress: EvictionProgress
    ended: bool = False
    dropped: bool = False
    """Another monitor goes on with it: nothing more is done or recorded here."""
    shown: tuple[str, ...] = ()
    """What shows that it is out, so far."""


class Evictors:
    """Takes orders from any thread. Close it when done."""

    def __init__(
        self,
        *,
        clock: Clock,
        fetcher: Fetcher,
        registry: Registry,
        quarantine: Quarantine,
        lighthouse: Lighthouse | None,
        token: str | None,
        record: Callable[[EvictionProgress], None],
        patience: Patience | None = None,
        permit: Callable[[], str | None] = lambda: None,
        durable: Callable[[], bool] = lambda: True,
        paused: Callable[[], str | None] = lambda: None,
        gate: Refuser | None = None,
        schedulers: Sequence[Scheduler] = (),
        told: Sequence[str] = (),
    ) -> None:
        """`permit` says why nothing may be done at this moment, or None; `durable` writes to disk
        what was recorded, and says whether that worked. `gate`: who keeps the gate's list; `told`:
        names of those whom a failure is told to.
        """
        self._clock = clock
        self._fetcher = fetcher
        self._registry = registry
        self._quarantine = quarantine
        self._lighthouse = lighthouse
        self._token = token
        self._record = record
        self._patience = patience or Patience()
        self._permit = permit
        self._durable = durable
        self._paused = paused
        self._gate = gate
        self._schedulers = tuple(schedulers)
        self._told = tuple(told)
        self._lock = threading.Lock()
        self._cases: dict[IncidentId, _Case] = {}
        self._past: list[EvictionProgress] = []
        self._news: list[EvictionProgress] = []
        self._queue: queue.SimpleQueue[_Case | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="evict", daemon=True)
        self._thread.start()

    def restore(self, evictions: Sequence[EvictionProgress]) -> tuple[EvictionProgress, ...]:
        """Take over what an earlier monitor recorded; returned is what is of the last hour.

        What it left without an end is not under way here: it is asked again, or abandoned, by
        who decides (`keeper.unfinished`).
        """
        lately = self._of_the_last_hour(evictions)
        with self._lock:
            self._past = [one for one in lately if not one.interrupted]
        return lately

    def follow(self, evictions: Sequence[EvictionProgress]) -> None:
        """Nothing is under way here any more; show what the active monitor recorded."""
        lately = self._of_the_last_hour(evictions)
        with self._lock:
            for case in self._cases.values():
                case.dropped = case.ended = True
            self._cases, self._news, self._past = {}, [], list(lately)

    def _of_the_last_hour(
        self, evictions: Sequence[EvictionProgress]
    ) -> tuple[EvictionProgress, ...]:
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        return tuple(one for one in evictions if one.asked_s >= since_s)

    def submit(self, order: Order) -> bool:
        """Take an order; False when this incident's, or group's, eviction is under way already."""
        evict = order.evict
        progress = EvictionProgress(
            incident_id=evict.incident_id,
            group=evict.group,
            replica_id=evict.replica_id,
            asked_s=order.asked_s,
            rungs=order.before,
            decided_s=order.decided_s,
            attempt=order.attempt,
        )
        with self._lock:
            if any(c.progress.group == evict.group for c in self._cases.values() if not c.ended):
                return False
            before = self._cases.get(evict.incident_id)
            if before is not None:
                self._past.append(before.progress)
            case = self._cases[evict.incident_id] = _Case(order, progress)
        self._record(progress)
        self._queue.put(case)
        return True

    def progress(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way and those of the last hour, oldest first."""
        since_s = self._clock.now_s() - PROGRESS_KEPT_S
        with self._lock:
            self._past = [past for past in self._past if past.asked_s >= since_s]
            for incident_id, case in list(self._cases.items()):
                if case.ended and case.progress.asked_s < since_s:
                    del self._cases[incident_id]
            known = [*self._past, *(case.progress for case in self._cases.values())]
        return tuple(sorted(known, key=lambda one: (one.asked_s, one.incident_id)))

    def active(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way."""
        with self._lock:
            return tuple(case.progress for case in self._cases.values() if not case.ended)

    def take_ended(self) -> tuple[EvictionProgress, ...]:
        """Evictions that ended since this was last asked."""
        with self._lock:
            news, self._news = tuple(self._news), []
        return news

    def note(self, view: LighthouseView | LighthouseAway) -> None:
        """What a look at the Lighthouse shows: a group may leave long after it is gone."""
        with self._lock:
            cases = [
                case
                for case in self._cases.values()
                if case.progress.left_quorum_s is None and case.progress.replica_id is not None
            ]
        for case in cases:
            self._follow(case, view)

    def _follow(self, case: _Case, view: LighthouseView | LighthouseAway) -> None:
        replica_id, gone_s = case.progress.replica_id, case.progress.gone_s
        if replica_id is None:
            return
        now_s, patience = self._clock.now_s(), self._patience
        refused_s = None if self._gate is None else self._gate.refusing_for_s(replica_id)
        out = shown_out(replica_id, view, refused_s, patience.heartbeat_dead_s)
        if out is not None:
            self._update(case, left_quorum_s=now_s, how=out)
            return
        gone_for_s = 0.0 if gone_s is None else now_s - gone_s
        if case.progress.failed is None and beats_on(
            replica_id, view, gone_for_s, patience.leave_s
        ):
            who = "a process of which no WorkerServer tells hosts its manager"
            self._fail(case, f"its processes are gone, yet {replica_id} still beats: {who}")

    def close(self, timeout_s: float = 2.0) -> None:
        """Stop; an eviction under way is left as it is, for whoever goes on."""
        self._stop.set()
        self._queue.put(None)
        self._thread.join(timeout_s)

    # -- the worker thread --------------------------------------------------------------------

    def _work(self) -> None:
        while (case := self._queue.get()) is not None:
            try:
                failed = self._carry_out(case)
            except Exception as exc:
                log.exception("eviction of %s crashed", case.progress.group)
                failed = f"the evictor crashed: {type(exc).__name__}: {exc}"
            if case.dropped or self._stop.is_set():
                continue
            if failed is not None:
                self._fail(case, failed)
            self._update(case, ended_s=self._clock.now_s())
            with self._lock:
                case.ended = True
                self._news.append(case.progress)

    def _carry_out(self, case: _Case) -> str | None:  # noqa: C901, PLR0911 - one step after the other
        """Climb until the accused are gone; the reason when they are not."""
        if case.order.refused is not None:
            return case.order.refused
        if not self._cleared(case):
            return "it could not be written down in time, so nobody was asked"

        def publish(outcome: RungOutcome) -> None:
            self._update(case, rung=outcome)

        witnessed = wait_for_evidence(case.order, self._clock)
        if witnessed is not None:
            publish(witnessed)
        ladder = self._ladder(case.order)
        if case.order.stood and ladder.look().moving(case.order.stood):
            return RECOVERED
        if (halted := self._halted(case.order)) is not None:
            return halted
        denied = quarantine_hosts(
            case.order, self._quarantine, self._clock, self._patience.quarantine_s
        )
        if denied is not None:
            publish(denied)
        while not (self._stop.is_set() or case.dropped):
            look = ladder.look()
            self.note(look.lighthouse)
            if look.all_gone:
                ladder.settle(look, publish)
                how = f"every known process of it is gone ({_by(look.details)})"
                self._update(case, gone_s=self._clock.now_s(), how=how)
                log.info("eviction of %s: every accused process is gone", case.progress.group)
                return None
            unseen = ladder.out_of_sight(look)
            if unseen is not None:
                ladder.settle(look, publish)
                self._update(case, unseen_s=self._clock.now_s(), how=unseen)
                log.warning("eviction of %s: %s", case.progress.group, unseen)
                return None
            failure = ladder.failure(look) or self._halted(case.order)
            if failure is not None:
                ladder.settle(look, publish)
                return failure
            if self._permit() is None:
                ladder.climb(look, publish)
            self._stop.wait(self._patience.pause_s)
        return None  # left to whoever goes on with it

    def _cleared(self, case: _Case) -> bool:
        """Waits until it is on disk that it begins now, and this monitor may act."""
        end_s = self._clock.now_s() + self._patience.confirm_s
        while not (self._stop.is_set() or case.dropped):
            if self._durable() and self._permit() is None:
                return True
            if self._clock.now_s() >= end_s:
                return False
            self._stop.wait(self._patience.pause_s)
        return False

    def _halted(self, order: Order) -> str | None:
        """Why no further rung may be climbed: a pause stops what the monitor decided."""
        why = self._paused() if order.author == AUTHOR else None
        return None if why is None else f"{why}: its other rungs are not climbed"

    def _ladder(self, order: Order) -> Ladder:
        looker = Looker(
            self._fetcher, self._registry, self._lighthouse, self._patience, self._token
        )
        kill = LighthouseKill(order, self._lighthouse, self._clock, self._patience)
        worker = WorkerEvict(
            order,
            fetcher=self._fetcher,
            registry=self._registry,
            clock=self._clock,
            patience=self._patience,
            token=self._token,
            everyone=lambda look: kill.over() or bool(look.having(Life.GONE)),
        )
        gate = scheduler = None
        if self._gate is not None:
            gate = GateRefuses(order, self._gate, self._clock, self._patience)
        if self._schedulers:
            scheduler = SchedulerRemoves(
                order,
                self._schedulers,
                registry=self._registry,
                clock=self._clock,
                patience=self._patience,
            )
        return Ladder(
            order,
            looker=looker,
            kill=kill,
            worker=worker,
            clock=self._clock,
            patience=self._patience,
            refuser=self._gate,
            gate=gate,
            scheduler=scheduler,
        )

    def _fail(self, case: _Case, why: str) -> None:
        """The eviction failed: a person is needed, unless nobody has been asked to do anything."""
        if any(one.rung in ASKING for one in case.progress.rungs):
            now_s, told = self._clock.now_s(), ", ".join(self._told)
            self._update(
                case,
                rung=RungOutcome(
                    Rung.PAGE,
                    now_s,
                    now_s,
                    f"handed to {told}" if told else "nobody is told: no --notify sink",
                    RungResult.WORKED if told else RungResult.SKIPPED,
                ),
            )
        self._update(case, failed=why)
        log.warning("eviction of %s failed: %s", case.progress.group, why)

    def _update(
        self,
        case: _Case,
        *,
        rung: RungOutcome | None = None,
        gone_s: float | None = None,
        left_quorum_s: float | None = None,
        failed: str | None = None,
        ended_s: float | None = None,
        unseen_s: float | None = None,
        how: str = "",
    ) -> None:
        with self._lock:
            old = case.progress
            rungs = old.rungs
            if rung is not None:
                rungs = (*(one for one in rungs if one.rung is not rung.rung), rung)
            case.progress = progress = replace(
                old,
                rungs=rungs,
                gone_s=old.gone_s if gone_s is None else gone_s,
                left_quorum_s=old.left_quorum_s if left_quorum_s is None else left_quorum_s,
                failed=old.failed if failed is None else failed,
                ended_s=old.ended_s if ended_s is None else ended_s,
                unseen_s=old.unseen_s if unseen_s is None else unseen_s,
            )
            if how:
                case.shown = (*case.shown, how)
            if progress.out and old.confirmed is None:
                case.progress = progress = replace(progress, confirmed="; ".join(case.shown))
        if progress != old and not case.dropped:
            self._record(progress)


def _by(details: Mapping[RankName, str]) -> str:
    """How each was seen gone, in short."""
    return "; ".join(f"{rank} {details[rank]}" for rank in sorted(details)[:8])
