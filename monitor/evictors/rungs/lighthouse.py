"""The Lighthouse's kill button: pressed once, in the background, if it can work at all."""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Final

from monitor.clock import Clock
from monitor.evictors.look import Life, Look
from monitor.evictors.order import Accused, Order, Patience
from monitor.lighthouse import Lighthouse
from monitor.snapshot import LighthouseAway, Rung, RungOutcome, RungResult
from worker_server.wire import split_rank_name

LAST_WORD_S: Final = 0.3
"""For the answer of a kill that has already worked: it makes a better story, no more."""


class LighthouseKill:
    """Asks by replica id, once: a second press of a button that hangs hangs too."""

    rung = Rung.LIGHTHOUSE_KILL

    def __init__(
        self, order: Order, lighthouse: Lighthouse | None, clock: Clock, patience: Patience
    ) -> None:
        self._order = order
        self._lighthouse = lighthouse
        self._clock = clock
        self._patience = patience
        self._answer: Future[str] | None = None
        self._outcome: RungOutcome | None = None

    def climb(self, look: Look) -> None:
        """Ask, if not asked yet; else take note of an answer."""
        now_s = self._clock.now_s()
        if self._outcome is None:
            obstacle = self._obstacle(look)
            if obstacle is None:
                self._press()
            self._outcome = RungOutcome(
                self.rung,
                now_s,
                now_s if obstacle else None,
                f"skipped: {obstacle}" if obstacle else "asked",
                RungResult.SKIPPED if obstacle else None,
                self._patience.kill_s,
            )
            return
        if self._answer is not None and self._answer.done():
            self._outcome = replace(self._outcome, finished_s=now_s, detail=self._answer.result())
            self._answer = None
        if self._outcome.result is None and self.over():
            self._outcome = replace(self._outcome, result=self._result(look))

    def settle(self, look: Look) -> None:
        """Take the answer if it is there, or say that none came."""
        if self._outcome is None or self._outcome.result is RungResult.SKIPPED:
            return
        if self._answer is not None:
            wait([self._answer], timeout=LAST_WORD_S)
            said = self._answer.result() if self._answer.done() else "no answer so far"
            self._outcome = replace(self._outcome, finished_s=self._clock.now_s(), detail=said)
            self._answer = None
        if self._outcome.result is None:
            self._outcome = replace(self._outcome, result=self._result(look))

    def over(self) -> bool:
        """Whether there is nothing more to hope for from it."""
        told = self._outcome
        if told is None:
            return False
        late = self._clock.now_s() - told.started_s >= self._patience.kill_s
        return told.result is not None or late

    def outcome(self) -> RungOutcome | None:
        """What it did so far."""
        return self._outcome

    def _press(self) -> None:
        replica_id = self._order.evict.replica_id
        if self._lighthouse is not None and replica_id is not None:
            self._answer = self._lighthouse.begin_kill(replica_id, self._patience.kill_s)

    def _managers(self) -> tuple[Accused, ...]:
        """It reaches the manager, which lives in group rank 0, and no other process."""
        return tuple(one for one in self._order.accused if split_rank_name(one.rank)[1] == 0)

    def _result(self, look: Look) -> RungResult:
        """By looking: an answer 500 is what a kill that worked says, and others too."""
        lives = [look.lives[one.rank] for one in self._managers()]
        if not lives or Life.UNSEEN in lives:
            return RungResult.UNKNOWN
        gone = all(life is Life.GONE for life in lives)
        return RungResult.WORKED if gone else RungResult.FAILED

    def _obstacle(self, look: Look) -> str | None:
        replica_id = self._order.evict.replica_id
        if self._lighthouse is None or isinstance(look.lighthouse, LighthouseAway):
            return "no Lighthouse answers"
        if replica_id is None:
            return "the group never joined a quorum"
        if replica_id not in look.lighthouse.ids:
            return "the Lighthouse kills members of its last quorum only"
        for one in self._managers():
            if look.lives[one.rank] in (Life.STUCK, Life.GONE):
                return f"{one.rank}, which hosts the manager: {look.details[one.rank]}"
        return None
