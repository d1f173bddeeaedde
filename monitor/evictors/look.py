"""Fresh looks at the accused: what confirms an eviction, and what each rung is checked by."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from monitor.evictors.order import Accused, Patience
from monitor.fetch import Fetcher, FetchError, Question
from monitor.lighthouse import Lighthouse
from monitor.names import RankName
from monitor.poller import STATE_MAX_BYTES
from monitor.snapshot import LighthouseAway, LighthouseView
from monitor.targets import Registry, Standing
from worker_server.wire import PATH_STATE, Process, StateReport, parse_state

_LOOP_LATE_S: Final = 3.0
"""A fetch loop that is later than this does not run: the eviction fails and says so."""


class Life(StrEnum):
    """What one look says of one accused incarnation."""

    ALIVE = "alive"
    STUCK = "stuck"  # alive, and nothing that needs its cooperation can work
    GONE = "gone"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Look:
    """One fresh look at the accused and the Lighthouse."""

    lives: Mapping[RankName, Life]
    details: Mapping[RankName, str]
    lighthouse: LighthouseView | LighthouseAway
    progress: Mapping[RankName, int] = field(default_factory=dict)
    """Phase changes of those that report steps."""

    def moving(self, stood: Mapping[RankName, int]) -> bool:
        """Whether all of those who stood still have moved since: there is nothing to evict."""
        return bool(stood) and all(
            self.lives.get(rank) is Life.ALIVE and self.progress.get(rank, -1) > before
            for rank, before in stood.items()
        )

    def having(self, *lives: Life) -> tuple[RankName, ...]:
        """Accused ranks in one of these conditions, sorted."""
        return tuple(sorted(rank for rank, life in self.lives.items() if life in lives))

    @property
    def all_gone(self) -> bool:
        """Whether every accused incarnation is gone; never when none is known."""
        return bool(self.lives) and all(life is Life.GONE for life in self.lives.values())


class Looker:
    """Looks, at all accused at once, each within `Patience.look_s`."""

    def __init__(
        self,
        fetcher: Fetcher,
        registry: Registry,
        lighthouse: Lighthouse | None,
        patience: Patience,
        token: str | None = None,
    ) -> None:
        self._fetcher = fetcher
        self._registry = registry
        self._lighthouse = lighthouse
        self._patience = patience
        self._token = token

    def look(self, accused: Collection[Accused], said_gone: Collection[RankName]) -> Look:
        """One look. `said_gone`: ranks whose WorkerServer said that their process is gone; when
        such a WorkerServer is silent afterwards, it has ended too and is believed.
        """
        lighthouse = self._lighthouse
        page = None if lighthouse is None else lighthouse.begin_look(self._patience.look_s)
        late_s = self._patience.look_s + _LOOP_LATE_S
        states = [(one, self._fetcher.submit(self._state(one))) for one in accused]
        lives: dict[RankName, Life] = {}
        details: dict[RankName, str] = {}
        progress: dict[RankName, int] = {}
        for one, state in states:
            told, seen = one.rank in said_gone, state.result(late_s)
            lives[one.rank], details[one.rank] = self._judge(one, seen, told)
            if isinstance(seen, StateReport) and seen.step is not None:
                progress[one.rank] = seen.step.progress
        view = LighthouseAway("none configured") if page is None else page.result(late_s)
        return Look(lives, details, view, progress)

    async def _state(self, accused: Accused) -> StateReport | str:
        question = Question(
            accused.url + PATH_STATE, self._patience.look_s, STATE_MAX_BYTES, token=self._token
        )
        try:
            answer = await self._fetcher.fetch(question)
            if answer.status != 200:
                return f"its WorkerServer answers {answer.status}"
            return parse_state(json.loads(answer.body))
        except FetchError as exc:
            return f"its WorkerServer gives no answer ({exc})"
        except (ValueError, OverflowError, RecursionError) as exc:
            return f"its WorkerServer answers garbage ({exc})"[:200]

    def _judge(self, one: Accused, state: StateReport | str, told: bool) -> tuple[Life, str]:
        if isinstance(state, str):
            standing = self._registry.standing(one.rank, one.incarnation)
            if standing in (Standing.SUPERSEDED, Standing.LEFT):
                return Life.GONE, f"{standing}"
            if told:
                return Life.GONE, "its WorkerServer said gone, and ended"
            return Life.UNSEEN, state
        identity, process = state.identity, state.process
        if (identity.rank, identity.incarnation) != (one.rank, one.incarnation):
            return Life.GONE, f"another process answers (pid {identity.pid})"
        if not process.alive:
            return Life.GONE, "its process is gone"
        return self._condition(process)

    def _condition(self, process: Process) -> tuple[Life, str]:
        silent_s = process.interpreter_age_s
        if process.stopped and not process.traced:  # one that is traced for long runs no Python
            return Life.STUCK, f"stopped (state {process.state})"
        if silent_s is not None and silent_s > self._patience.interpreter_stuck_s:
            return Life.STUCK, f"stuck: its interpreter has not run for {silent_s:.1f} s"
        return Life.ALIVE, f"alive (state {process.state or 'unknown'})"
