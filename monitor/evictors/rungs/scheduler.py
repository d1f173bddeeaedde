"""The scheduler removes what runs the group: the pod, or the job step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from monitor.clock import Clock
from monitor.evictors.look import Look
from monitor.evictors.order import Order, Patience
from monitor.schedulers.protocol import Outcome, Place, Scheduler
from monitor.snapshot import Rung, RungOutcome, RungResult
from monitor.targets import Registry, Standing


class SchedulerRemoves:
    """Asks every scheduler, each in a thread of its own: what hangs there holds nobody up."""

    rung = Rung.SCHEDULER

    def __init__(
        self,
        order: Order,
        schedulers: Sequence[Scheduler],
        *,
        registry: Registry,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._order = order
        self._schedulers = tuple(schedulers)
        self._registry = registry
        self._clock = clock
        self._patience = patience
        self._asks: dict[str, Future[Outcome]] = {}
        self._asked_s: dict[str, float] = {}
        self._told: dict[str, Outcome] = {}
        self._outcome: RungOutcome | None = None

    def climb(self, look: Look) -> None:  # noqa: ARG002 - it asks by what is registered
        """Ask those who have not done it; one that refused is asked again after a while."""
        now_s = self._clock.now_s()
        obstacle = self._obstacle()
        if obstacle is not None:
            if self._outcome is None or self._outcome.result is None:
                self._tell(f"skipped: {obstacle}", RungResult.SKIPPED)
            return
        self._gather()
        for scheduler in self._schedulers:
            told, asked_s = self._told.get(scheduler.name), self._asked_s.get(scheduler.name)
            lately = asked_s is not None and now_s - asked_s < self._patience.schedule_again_s
            if scheduler.name in self._asks or lately or (told is not None and told.done):
                continue
            if not self._late():
                self._asked_s[scheduler.name] = now_s
                self._asks[scheduler.name] = self._ask(scheduler)
        self._tell(self._said(), None)
        if self.over():
            self._tell(self._said(), self._result())

    def over(self) -> bool:
        """Whether all are done, or had their time."""
        done = [told.done for told in self._told.values()]
        skipped = self._outcome is not None and self._outcome.result is RungResult.SKIPPED
        return skipped or self._late() or (all(done) and len(done) == len(self._schedulers))

    def settle(self, look: Look) -> None:  # noqa: ARG002 - its own answer tells
        """Say how far they came."""
        if self._outcome is not None and self._outcome.result is None:
            self._gather()
            self._tell(self._said(), self._result())

    def outcome(self) -> RungOutcome | None:
        """What it did so far; None while it was not its turn."""
        return self._outcome

    def _obstacle(self) -> str | None:
        """A scheduler ends whatever runs there: never a group that has restarted meanwhile."""
        for one in self._order.accused:
            standing = self._registry.standing(one.rank, one.incarnation)
            if standing is Standing.SUPERSEDED:
                return f"{one.rank} is another process by now"
        return None

    def _ask(self, scheduler: Scheduler) -> Future[Outcome]:
        evict = self._order.evict
        places = [Place(one.rank, one.host, one.place) for one in self._order.accused]
        answer: Future[Outcome] = Future()

        def ask() -> None:
            try:
                told = scheduler.remove(
                    evict.group,
                    places,
                    evict.reason,
                    evict.incident_id,
                    self._patience.scheduler_s,
                )
            except Exception as exc:  # noqa: BLE001 - a driver that breaks its promise has failed
                told = Outcome(done=False, detail=f"crashed: {type(exc).__name__}: {exc}")
            answer.set_result(told)

        threading.Thread(target=ask, name=f"remove by {scheduler.name}", daemon=True).start()
        return answer

    def _gather(self) -> None:
        for name in [name for name, ask in self._asks.items() if ask.done()]:
            self._told[name] = self._asks.pop(name).result()

    def _late(self) -> bool:
        told = self._outcome
        return (
            told is not None and self._clock.now_s() - told.started_s >= self._patience.scheduler_s
        )

    def _said(self) -> str:
        told = ((one.name, self._told.get(one.name)) for one in self._schedulers)
        return "; ".join(f"{name}: {'asked' if one is None else one.detail}" for name, one in told)

    def _result(self) -> RungResult:
        done = any(told.done for told in self._told.values())
        failed = self._told and not self._asks
        if done:
            return RungResult.WORKED
        return RungResult.FAILED if failed else RungResult.UNKNOWN

    def _tell(self, detail: str, result: RungResult | None) -> None:
        now_s = self._clock.now_s()
        before = self._outcome
        if before is None:
            before = RungOutcome(self.rung, now_s, None, detail, None, self._patience.scheduler_s)
        elif before.result is not None:
            return
        finished_s = None if result is None else now_s
        self._outcome = replace(before, detail=detail, result=result, finished_s=finished_s)
