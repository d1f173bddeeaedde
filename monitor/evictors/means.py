"""With what an eviction is carried out: whom it asks, and the ladder made of them."""

from __future__ import annotations

from dataclasses import dataclass

from monitor.clock import Clock
from monitor.evictors.ladder import Ladder
from monitor.evictors.look import Life, Looker
from monitor.evictors.order import Order, Patience
from monitor.evictors.rungs import GateRefuses, LighthouseKill, SchedulerRemoves, WorkerEvict
from monitor.evictors.rungs.gate import Refuser
from monitor.fetch import Fetcher
from monitor.lighthouse import Lighthouse
from monitor.names import ReplicaId
from monitor.schedulers.protocol import Scheduler
from monitor.targets import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The same for every eviction; None where there is no such thing."""

    clock: Clock
    fetcher: Fetcher
    registry: Registry
    lighthouse: Lighthouse | None
    token: str | None
    patience: Patience
    gate: Refuser | None
    """Who keeps the gate's list."""
    schedulers: tuple[Scheduler, ...]

    def refused_for_s(self, replica_id: ReplicaId) -> float | None:
        """For how long the gate has refused it; None: it does not."""
        return None if self.gate is None else self.gate.refusing_for_s(replica_id)

    def ladder(self, order: Order) -> Ladder:
        """Every rung that there is, for one order; its time begins now."""
        kill = LighthouseKill(order, self.lighthouse, self.clock, self.patience)
        return Ladder(
            order,
            looker=Looker(self.fetcher, self.registry, self.lighthouse, self.patience, self.token),
            kill=kill,
            worker=self._worker(order, kill),
            clock=self.clock,
            patience=self.patience,
            refuser=self.gate,
            gate=None
            if self.gate is None
            else GateRefuses(order, self.gate, self.clock, self.patience),
            scheduler=self._scheduler(order),
        )

    def _worker(self, order: Order, kill: LighthouseKill) -> WorkerEvict:
        return WorkerEvict(
            order,
            fetcher=self.fetcher,
            registry=self.registry,
            clock=self.clock,
            patience=self.patience,
            token=self.token,
            everyone=lambda look: kill.over() or bool(look.having(Life.GONE)),
        )

    def _scheduler(self, order: Order) -> SchedulerRemoves | None:
        if not self.schedulers:
            return None
        return SchedulerRemoves(
            order,
            self.schedulers,
            registry=self.registry,
            clock=self.clock,
            patience=self.patience,
        )
