"""The thread that carries orders out, one at a time, and publishes how far it came."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from monitor.clock import Clock
from monitor.evictors.cases import Case, Cases
from monitor.evictors.ladder import Ladder
from monitor.evictors.means import Means
from monitor.evictors.order import AUTHOR, Order, Patience
from monitor.evictors.proof import beats_on, shown_out
from monitor.evictors.rungs import quarantine_hosts, wait_for_evidence
from monitor.evictors.rungs.gate import Refuser
from monitor.fetch import Fetcher
from monitor.lighthouse import Lighthouse
from monitor.names import RankName
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

ASKING: Final = frozenset({Rung.GATE, Rung.LIGHTHOUSE_KILL, Rung.WORKER_EVICT, Rung.SCHEDULER})
"""Rungs that ask somebody to put the group out."""

RECOVERED: Final = "it moves again: nobody is evicted"
"""Found by a last look at those who had stood still, after their evidence was saved."""


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
        self._patience = patience or Patience()
        self._means = Means(
            clock=clock,
            fetcher=fetcher,
            registry=registry,
            lighthouse=lighthouse,
            token=token,
            patience=self._patience,
            gate=gate,
            schedulers=tuple(schedulers),
        )
        self._quarantine = quarantine
        self._permit = permit
        self._durable = durable
        self._paused = paused
        self._told = tuple(told)
        self._cases = Cases(clock, record)
        self._queue: queue.SimpleQueue[Case | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="evict", daemon=True)
        self._thread.start()

    def restore(self, evictions: Sequence[EvictionProgress]) -> tuple[EvictionProgress, ...]:
        """Take over what an earlier monitor recorded; returned is what is of the last hour."""
        return self._cases.restore(evictions)

    def follow(self, evictions: Sequence[EvictionProgress]) -> None:
        """Nothing is under way here any more; show what the active monitor recorded."""
        self._cases.follow(evictions)

    def submit(self, order: Order) -> bool:
        """Take an order; False when this incident's, or group's, eviction is under way already."""
        case = self._cases.open(order)
        if case is not None:
            self._queue.put(case)
        return case is not None

    def progress(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way and those of the last hour, oldest first."""
        return self._cases.progress()

    def active(self) -> tuple[EvictionProgress, ...]:
        """Evictions under way."""
        return self._cases.active()

    def take_ended(self) -> tuple[EvictionProgress, ...]:
        """Evictions that ended since this was last asked."""
        return self._cases.take_ended()

    def note(self, view: LighthouseView | LighthouseAway) -> None:
        """What a look at the Lighthouse shows: a group may leave long after it is gone."""
        for case in self._cases.not_seen_out():
            self._follow(case, view)

    def _follow(self, case: Case, view: LighthouseView | LighthouseAway) -> None:
        replica_id, gone_s = case.progress.replica_id, case.progress.gone_s
        if replica_id is None:
            return
        now_s, patience = self._clock.now_s(), self._patience
        refused_s = self._means.refused_for_s(replica_id)
        out = shown_out(replica_id, view, refused_s, patience.heartbeat_dead_s)
        if out is not None:
            self._cases.update(case, left_quorum_s=now_s, how=out)
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
            self._cases.end(case)

    def _carry_out(self, case: Case) -> str | None:
        """Put the accused out; the reason when that has not worked, or nobody was asked."""
        if case.order.refused is not None:
            return case.order.refused
        if not self._cleared(case):
            return "it could not be written down in time, so nobody was asked"
        witnessed = wait_for_evidence(case.order, self._clock)
        if witnessed is not None:
            self._cases.update(case, rung=witnessed)
        ladder = self._means.ladder(case.order)
        if case.order.stood and ladder.look().moving(case.order.stood):
            return RECOVERED
        if (halted := self._halted(case.order)) is not None:
            return halted
        denied = quarantine_hosts(
            case.order, self._quarantine, self._clock, self._patience.quarantine_s
        )
        if denied is not None:
            self._cases.update(case, rung=denied)
        return self._climb(case, ladder)

    def _climb(self, case: Case, ladder: Ladder) -> str | None:
        """Look and climb until the accused are gone; the reason when they are not."""

        def publish(outcome: RungOutcome) -> None:
            self._cases.update(case, rung=outcome)

        ended = partial(self._cases.update, case)
        while not (self._stop.is_set() or case.dropped):
            look = ladder.look()
            self.note(look.lighthouse)
            if look.all_gone:
                ladder.settle(look, publish)
                how = f"every known process of it is gone ({_by(look.details)})"
                ended(gone_s=self._clock.now_s(), how=how)
                log.info("eviction of %s: every accused process is gone", case.progress.group)
                return None
            unseen = ladder.out_of_sight(look)
            if unseen is not None:
                ladder.settle(look, publish)
                ended(unseen_s=self._clock.now_s(), how=unseen)
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

    def _cleared(self, case: Case) -> bool:
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

    def _fail(self, case: Case, why: str) -> None:
        """The eviction failed: a person is needed, unless nobody has been asked to do anything."""
        if any(one.rung in ASKING for one in case.progress.rungs):
            now_s, told = self._clock.now_s(), ", ".join(self._told)
            page = RungOutcome(
                Rung.PAGE,
                now_s,
                now_s,
                f"handed to {told}" if told else "nobody is told: no --notify sink",
                RungResult.WORKED if told else RungResult.SKIPPED,
            )
            self._cases.update(case, rung=page)
        self._cases.update(case, failed=why)
        log.warning("eviction of %s failed: %s", case.progress.group, why)


def _by(details: Mapping[RankName, str]) -> str:
    """How each was seen gone, in short."""
    return "; ".join(f"{rank} {details[rank]}" for rank in sorted(details)[:8])
