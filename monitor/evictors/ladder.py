"""The rungs of one eviction. Runs in the evictors' worker thread."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import Final

from monitor.clock import Clock
from monitor.evictors.look import Life, Look, Looker
from monitor.evictors.order import Accused, Order, Patience
from monitor.fetch import Fetcher, FetchError, Question
from monitor.lighthouse import ANSWER_MAX_BYTES, Lighthouse, describe
from monitor.names import RankName
from monitor.quarantine import Quarantine
from monitor.snapshot import LighthouseAway, Rung, RungOutcome
from monitor.store import QuarantineEntry
from monitor.targets import Registry, Standing
from worker_server.wire import PATH_EVICT, split_rank_name

ASK_MARGIN_S: Final = 6.5
"""Beyond the grace: a WorkerServer looks for up to 5 s whether the process is gone."""


_LAST_WORD_S: Final = 0.3
"""For the answer of a kill that has already worked: it makes a better story, no more."""


def quarantine_hosts(
    order: Order, quarantine: Quarantine, clock: Clock, last_s: float | None
) -> RungOutcome | None:
    """The second rung: deny the hosts of the order to launchers; None when it names none."""
    evict, now_s = order.evict, clock.now_s()
    for host in evict.quarantine:
        quarantine.add(
            QuarantineEntry(
                name=host,
                reason=evict.reason,
                author=order.author,
                since_s=now_s,
                until_s=None if last_s is None else now_s + last_s,
                incident_id=evict.incident_id,
            )
        )
    if not evict.quarantine:
        return None
    detail = f"launchers are refused on {', '.join(evict.quarantine)}"
    return RungOutcome(Rung.QUARANTINE, now_s, clock.now_s(), detail)


def wait_for_evidence(order: Order, clock: Clock) -> RungOutcome | None:
    """What the group says is saved before it is gone; a crash of that stops no eviction."""
    if order.evidence is None:
        return None
    began_s = clock.now_s()
    try:
        said = order.evidence()
    except Exception as exc:  # noqa: BLE001 - evidence is worth less than the eviction
        said = f"failed: {type(exc).__name__}: {exc}"
    return RungOutcome(Rung.EVIDENCE, began_s, clock.now_s(), said)


class LighthouseKill:
    """The third rung: pressed once, in the background, if it can work at all."""

    def __init__(
        self, order: Order, lighthouse: Lighthouse | None, clock: Clock, patience: Patience
    ) -> None:
        self._order = order
        self._lighthouse = lighthouse
        self._clock = clock
        self._patience = patience
        self._answer: Future[str] | None = None
        self.outcome: RungOutcome | None = None
        self.skipped = False

    def climb(self, look: Look) -> None:
        """Ask, if not asked yet; else take note of an answer."""
        now_s = self._clock.now_s()
        if self.outcome is None:
            obstacle = self._obstacle(look)
            self.skipped = obstacle is not None
            if obstacle is None:
                self._press()
            self.outcome = RungOutcome(
                Rung.LIGHTHOUSE_KILL,
                now_s,
                now_s if obstacle else None,
                f"skipped: {obstacle}" if obstacle else "asked",
            )
        elif self._answer is not None and self._answer.done():
            self.outcome = RungOutcome(
                Rung.LIGHTHOUSE_KILL, self.outcome.started_s, now_s, self._answer.result()
            )
            self._answer = None

    def settle(self) -> None:
        """The eviction is over: take the answer if it is there, or say that none came."""
        if self._answer is None or self.outcome is None:
            return
        wait([self._answer], timeout=_LAST_WORD_S)
        said = self._answer.result() if self._answer.done() else "no answer so far"
        self.outcome = replace(self.outcome, finished_s=self._clock.now_s(), detail=said)
        self._answer = None

    def _press(self) -> None:
        replica_id = self._order.evict.replica_id
        if self._lighthouse is not None and replica_id is not None:
            self._answer = self._lighthouse.begin_kill(replica_id, self._patience.kill_s)

    def over(self) -> bool:
        """Whether there is nothing more to hope for from it."""
        if self.outcome is None:
            return False
        return self.skipped or self._clock.now_s() - self.outcome.started_s >= self._patience.kill_s

    def _obstacle(self, look: Look) -> str | None:
        replica_id = self._order.evict.replica_id
        if self._lighthouse is None or isinstance(look.lighthouse, LighthouseAway):
            return "no Lighthouse answers"
        if replica_id is None:
            return "the group never joined a quorum"
        if not look.in_quorum(replica_id):
            return "the Lighthouse kills members of its last quorum only"
        for one in self._order.accused:
            hosts_manager = split_rank_name(one.rank)[1] == 0
            if hosts_manager and look.lives[one.rank] in (Life.STUCK, Life.GONE):
                return f"{one.rank}, which hosts the manager: {look.details[one.rank]}"
        return None


class WorkerEvict:
    """The fourth rung: every WorkerServer of the group ends its own rank process."""

    def __init__(
        self,
        order: Order,
        *,
        fetcher: Fetcher,
        registry: Registry,
        clock: Clock,
        patience: Patience,
        token: str | None,
    ) -> None:
        self._order = order
        self._fetcher = fetcher
        self._registry = registry
        self._clock = clock
        self._patience = patience
        self._token = token
        self._began_s: float | None = None
        self._asks: dict[RankName, Future[str]] = {}
        self._asked_s: dict[RankName, float] = {}
        self._told: dict[RankName, str] = {}
        self.said_gone: set[RankName] = set()

    def climb(self, look: Look, *, everyone: bool) -> None:
        """Ask those still alive: all of them, or only the stuck ones."""
        now_s = self._clock.now_s()
        self._gather()
        for one in self._order.accused:
            due = everyone or look.lives[one.rank] is Life.STUCK
            asked_s = self._asked_s.get(one.rank)
            lately = asked_s is not None and now_s - asked_s < self._patience.ask_again_s
            if due and not lately and one.rank not in self._asks and self._may_ask(look, one):
                self._began_s = now_s if self._began_s is None else self._began_s
                self._asked_s[one.rank] = now_s
                self._asks[one.rank] = self._fetcher.submit(self._ask(one))

    def _may_ask(self, look: Look, one: Accused) -> bool:
        """A fresh look showed the accused incarnation alive, or shows nothing and no newer
        incarnation bears the name.
        """
        life = look.lives[one.rank]
        if life is Life.UNSEEN:
            return self._registry.standing(one.rank, one.incarnation) is Standing.CURRENT
        return life in (Life.ALIVE, Life.STUCK)

    async def _ask(self, one: Accused) -> str:
        question = Question(
            one.url + PATH_EVICT,
            timeout_s=self._patience.grace_s + ASK_MARGIN_S,
            max_bytes=ANSWER_MAX_BYTES,
            method="POST",
            json={
                "reason": self._order.evict.reason,
                "grace_s": self._patience.grace_s,
                "incarnation": one.incarnation,
            },
            token=self._token,
        )
        try:
            answer = await self._fetcher.fetch(question)
        except FetchError as exc:
            return str(exc)
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(answer.body)
            if answer.status == 200 and isinstance(said, dict) and said.get("gone") is True:
                self.said_gone.add(one.rank)
        return describe(answer)

    def _gather(self) -> None:
        for rank in [rank for rank, ask in self._asks.items() if ask.done()]:
            self._told[rank] = self._asks.pop(rank).result()

    def settle(self) -> None:
        """The eviction is over: take the answers that are there."""
        wait(self._asks.values(), timeout=_LAST_WORD_S)
        self._gather()

    def quiet(self) -> bool:
        """Whether everyone who could be asked has been, and has answered or run out of time."""
        return bool(self._asked_s or not self._order.accused) and not self._asks

    def outcome(self, *, ended: bool = False) -> RungOutcome | None:
        """What it did so far; None when it asked nobody."""
        if self._began_s is None:
            return None
        said = [f"{rank} {self._told.get(rank, 'asked')}" for rank in sorted(self._asked_s)]
        finished_s = self._clock.now_s() if ended else None
        return RungOutcome(Rung.WORKER_EVICT, self._began_s, finished_s, "; ".join(said))


class Ladder:
    """All rungs of one order, and when it has worked or failed."""

    def __init__(
        self,
        order: Order,
        *,
        looker: Looker,
        kill: LighthouseKill,
        worker: WorkerEvict,
        clock: Clock,
        patience: Patience,
    ) -> None:
        self._order = order
        self._looker = looker
        self._kill = kill
        self._worker = worker
        self._clock = clock
        self._patience = patience
        self._end_s = clock.now_s() + patience.confirm_s

    def look(self) -> Look:
        """A fresh look at the accused."""
        return self._looker.look(self._order.accused, self._worker.said_gone)

    def climb(self, look: Look, publish: Callable[[RungOutcome], None]) -> None:
        """Do what this look calls for."""
        self._kill.climb(look)
        everyone = self._kill.over() or bool(look.having(Life.GONE))
        self._worker.climb(look, everyone=everyone)
        self.publish(publish)

    def publish(self, publish: Callable[[RungOutcome], None], *, ended: bool = False) -> None:
        """Tell what the rungs did so far."""
        if ended:
            self._kill.settle()
            self._worker.settle()
        for outcome in (self._kill.outcome, self._worker.outcome(ended=ended)):
            if outcome is not None:
                publish(outcome)

    def left_unseen(self, look: Look) -> bool:
        """Whether those still not known to be gone are all out of sight, were asked, and the
        Lighthouse shows their group out: all that can be known when a host is lost.
        """
        replica_id = self._order.evict.replica_id
        if look.having(Life.ALIVE, Life.STUCK) or replica_id is None or not self._worker.quiet():
            return False
        age_s = look.heartbeat_age_s(replica_id)
        silent = age_s is not None and age_s > self._patience.heartbeat_dead_s
        return silent or look.in_quorum(replica_id) is False

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
        return f"not gone after {self._patience.confirm_s:.0f} s: {still}{said}"
