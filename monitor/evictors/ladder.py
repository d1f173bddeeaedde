"""The rungs of one eviction in their order, and when it has worked or failed.

Runs in the evictors' worker thread.
"""

from __future__ import annotations

from collections.abc import Callable

from monitor.clock import Clock
from monitor.evictors.look import Life, Look, Looker
from monitor.evictors.order import Order, Patience
from monitor.evictors.proof import silent
from monitor.evictors.rungs import Careful, Climber, LighthouseKill, WorkerEvict
from monitor.evictors.rungs.gate import Refuser
from monitor.snapshot import RungOutcome


class Ladder:
    """All rungs of one order. `gate` and `scheduler` are None where there is none."""

    def __init__(
        self,
        order: Order,
        *,
        looker: Looker,
        kill: LighthouseKill,
        worker: WorkerEvict,
        clock: Clock,
        patience: Patience,
        refuser: Refuser | None = None,
        gate: Climber | None = None,
        scheduler: Climber | None = None,
    ) -> None:
        self._order = order
        self._looker = looker
        self._worker = worker
        self._refuser = refuser
        self._first = [Careful(one, clock) for one in (gate, kill) if one is not None]
        self._then = Careful(worker, clock)
        self._last = None if scheduler is None else Careful(scheduler, clock)
        self._clock = clock
        self._patience = patience
        given_s = patience.confirm_s + (0.0 if scheduler is None else patience.scheduler_s)
        self._given_s, self._end_s = given_s, clock.now_s() + given_s

    def look(self) -> Look:
        """A fresh look at the accused."""
        return self._looker.look(self._order.accused, self._worker.said_gone)

    def climb(self, look: Look, publish: Callable[[RungOutcome], None]) -> None:
        """Do what this look calls for."""
        for rung in (*self._first, self._then):
            rung.climb(look)
        if self._last is not None and self._then.over():
            self._last.climb(look)
        self._publish(publish)

    def settle(self, look: Look, publish: Callable[[RungOutcome], None]) -> None:
        """Tell how the rungs ended; this was the last look."""
        for rung in self._rungs():
            rung.settle(look)
        self._publish(publish)

    def _rungs(self) -> tuple[Careful, ...]:
        last = () if self._last is None else (self._last,)
        return (*self._first, self._then, *last)

    def _publish(self, publish: Callable[[RungOutcome], None]) -> None:
        for rung in self._rungs():
            outcome = rung.outcome()
            if outcome is not None:
                publish(outcome)

    def out_of_sight(self, look: Look) -> str | None:
        """Why those not seen dead may be let go: they are all out of sight and were asked, and the
        heartbeat of their group is dead. More cannot be known of a lost host.
        """
        replica_id, dead_s = self._order.evict.replica_id, self._patience.heartbeat_dead_s
        if look.having(Life.ALIVE, Life.STUCK) or replica_id is None:
            return None
        if not silent(replica_id, look.lighthouse, self._refused_for_s(), dead_s):
            return None
        if not self._order.accused:
            return "its heartbeat ended; no WorkerServer of it is known"
        unseen = look.having(Life.UNSEEN)
        if not unseen or not self._worker.quiet():
            return None
        return f"host out of sight, its heartbeat is dead ({', '.join(unseen)} not seen)"

    def failure(self, look: Look) -> str | None:
        """Why it is time to give up; None while it is not."""
        if self._clock.now_s() < self._end_s:
            return None
        still = "; ".join(
            f"{rank} {look.details[rank]}"
            for rank in sorted(look.lives)
            if look.lives[rank] is not Life.GONE
        )
        outcome = self._worker.outcome()
        said = "" if outcome is None else f" (asked: {outcome.detail})"
        return f"not gone after {self._given_s:.0f} s: {still}{said}"

    def _refused_for_s(self) -> float | None:
        replica_id = self._order.evict.replica_id
        if self._refuser is None or replica_id is None:
            return None
        return self._refuser.refusing_for_s(replica_id)
