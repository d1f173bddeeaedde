"""`POST /v1/evict`: every WorkerServer of the group ends its own rank process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

from monitor.clock import Clock
from monitor.evictors.look import Life, Look
from monitor.evictors.order import Accused, Order, Patience
from monitor.evictors.rungs.lighthouse import LAST_WORD_S
from monitor.fetch import Fetcher, FetchError, Question
from monitor.lighthouse import ANSWER_MAX_BYTES
from monitor.names import RankName
from monitor.snapshot import Rung, RungOutcome, RungResult
from monitor.targets import Registry, Standing
from worker_server.wire import PATH_EVICT

ASK_MARGIN_S: Final = 6.5
"""Beyond the grace: a WorkerServer looks for up to 5 s whether the process is gone."""


class WorkerEvict:
    """Asks those still alive, in parallel: all of them, or only the stuck ones, as `everyone` says
    of a look; each again every `ask_again_s`, and by its incarnation.
    """

    rung = Rung.WORKER_EVICT

    def __init__(
        self,
        order: Order,
        *,
        fetcher: Fetcher,
        registry: Registry,
        clock: Clock,
        patience: Patience,
        token: str | None,
        everyone: Callable[[Look], bool] = lambda _: True,
    ) -> None:
        self._order = order
        self._fetcher = fetcher
        self._registry = registry
        self._clock = clock
        self._patience = patience
        self._token = token
        self._everyone = everyone
        self._turn_s: float | None = None
        self._began_s: float | None = None
        self._ended: tuple[float, RungResult] | None = None
        self._asks: dict[RankName, Future[str]] = {}
        self._asked_s: dict[RankName, float] = {}
        self._told: dict[RankName, str] = {}
        self.said_gone: set[RankName] = set()

    def climb(self, look: Look) -> None:
        """Ask whom it is time to ask."""
        now_s, everyone = self._clock.now_s(), self._everyone(look)
        self._gather()
        if everyone and self._turn_s is None:
            self._turn_s = now_s
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
        return answer.summary

    def _gather(self) -> None:
        for rank in [rank for rank, ask in self._asks.items() if ask.done()]:
            self._told[rank] = self._asks.pop(rank).result()

    def over(self) -> bool:
        """Whether all had the time in which a WorkerServer ends a process, and to spare."""
        return (
            self._turn_s is not None
            and self._clock.now_s() - self._turn_s >= self._patience.worker_s
        )

    def settle(self, look: Look) -> None:
        """Take the answers that are there; what they achieved, the look says."""
        if self._began_s is None:
            return
        wait(self._asks.values(), timeout=LAST_WORD_S)
        self._gather()
        lives = [look.lives[rank] for rank in self._asked_s]
        if all(life is Life.GONE for life in lives):
            result = RungResult.WORKED
        else:
            unseen = all(life in (Life.GONE, Life.UNSEEN) for life in lives)
            result = RungResult.UNKNOWN if unseen else RungResult.FAILED
        self._ended = self._clock.now_s(), result

    def quiet(self) -> bool:
        """Whether everyone who could be asked has been, and has answered or run out of time."""
        return bool(self._asked_s or not self._order.accused) and not self._asks

    def outcome(self) -> RungOutcome | None:
        """What it did so far; None when it asked nobody."""
        if self._began_s is None:
            return None
        said = [f"{rank} {self._told.get(rank, 'asked')}" for rank in sorted(self._asked_s)]
        finished_s, result = (None, None) if self._ended is None else self._ended
        return RungOutcome(
            self.rung,
            self._began_s,
            finished_s,
            "; ".join(said),
            result,
            self._patience.worker_s,
        )
