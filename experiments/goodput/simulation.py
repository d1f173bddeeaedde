"""A job with its groups, faults, stalls, spares and evictions, event by event. Pure.

Theory of operation. Faults come as a Poisson process of 1 / MTBF over all ranks; one that hits a
group that is away hits nobody. A fail-stop or a hang stalls all until it is detected, its group is
gone and the others have a quorum. The group is away until its processes are up and healed; when it
comes back all stand for the first step. Stalls that overlap are one stall. Whatever the closed
forms leave out (a group away while another fails, a slow rank that is evicted for something else)
happens here.

Speed between two events is constant: nothing while stalled, else the share of the groups that are
in, at a slow rank's pace while there is one.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from experiments.goodput.forecast import DAY_S, Response, Scenario

BATCHES: Final = 20
"""Stretches of simulated time whose scatter gives the error."""


class Draw(Protocol):
    """What is needed of a generator of random numbers; `random.Random` has it."""

    def random(self) -> float:
        """Uniform in [0, 1)."""
        ...


@dataclass(frozen=True, slots=True)
class Simulated:
    """What came out."""

    goodput: float
    error: float
    """Two standard errors, from batches."""
    days: float
    faults: int
    """That hit somebody."""
    evictions: int
    """Groups put out, rightly or not, and restarts of the whole job."""


class _Event(IntEnum):
    FAULT = 0
    FALSE = 1
    RECOVERED = 2
    """A slow rank is itself again."""
    FOUND = 3
    """A slow rank is found."""
    BACK = 4
    BATCH = 5


def simulate(scenario: Scenario, draw: Draw, faults: int = 4000) -> Simulated:
    """As long as so many faults take on average."""
    return _Run(scenario, draw).run(faults * scenario.job.mtbf_s)


class _Run:
    """The state of one simulated job."""

    def __init__(self, scenario: Scenario, draw: Draw) -> None:
        groups = scenario.job.groups
        self.scenario, self.draw = scenario, draw
        self.now_s, self.stalled_until_s, self.trained_s = 0.0, 0.0, 0.0
        self.up = [True] * groups
        self.slow = [False] * groups
        self.lives = [0] * groups
        """How often a group was put out: what was planned for an earlier life is void."""
        self.n_up, self.n_slow = groups, 0
        self.events: list[tuple[float, int, _Event, int, int]] = []
        self.planned = 0
        self.faults, self.evictions = 0, 0

    def run(self, length_s: float) -> Simulated:
        """From all healthy to the end."""
        self._plan_next(_Event.FAULT, self.scenario.job.mtbf_s)
        false = self.scenario.handling.false_per_day
        if false > 0.0:
            self._plan_next(_Event.FALSE, DAY_S / false)
        for number in range(1, BATCHES + 1):
            self._plan(length_s * number / BATCHES, _Event.BATCH)
        batches: list[float] = []
        seen_s = 0.0
        while len(batches) < BATCHES:
            at_s, _, event, group, life = heapq.heappop(self.events)
            self._advance(at_s)
            if event is _Event.BATCH:
                batches.append((self.trained_s - seen_s) * BATCHES / length_s)
                seen_s = self.trained_s
            else:
                self._happen(event, group, life)
        mean = sum(batches) / BATCHES
        spread = sum((batch - mean) ** 2 for batch in batches) / (BATCHES - 1)
        return Simulated(
            goodput=mean,
            error=2.0 * math.sqrt(spread / BATCHES),
            days=length_s / DAY_S,
            faults=self.faults,
            evictions=self.evictions,
        )

    def _advance(self, to_s: float) -> None:
        span_s = to_s - max(self.now_s, self.stalled_until_s)
        if span_s > 0.0:
            speed = self.n_up / len(self.up)
            if self.n_slow:
                speed /= self.scenario.mix.slowdown
            self.trained_s += span_s * speed
        self.now_s = to_s

    def _happen(self, event: _Event, group: int, life: int) -> None:
        match event:
            case _Event.FAULT:
                self._plan_next(_Event.FAULT, self.scenario.job.mtbf_s)
                self._fault(self._any_group())
            case _Event.FALSE:
                self._plan_next(_Event.FALSE, DAY_S / self.scenario.handling.false_per_day)
                group = self._any_group()
                if self.up[group]:
                    self._put_out(group, 0.0, alive=True)
            case _Event.RECOVERED:
                if self.lives[group] == life:
                    self._quick_again(group)
            case _Event.FOUND:
                if self.lives[group] == life and self.slow[group]:
                    self._answer(group, "slow", 0.0)
            case _Event.BACK:
                self.up[group] = True
                self.n_up += 1
                self._stall(self.scenario.times.first_step_s)
            case _Event.BATCH:
                pass

    def _fault(self, group: int) -> None:
        mix, luck = self.scenario.mix, self.draw.random()
        if not self.up[group]:
            return
        if luck >= mix.stop + mix.hang and mix.slow > 0.0:
            self._slow_down(group)
            return
        self.faults += 1
        kind = "stop" if luck < mix.stop else "hang"
        self._answer(group, kind, self._response(kind).after_s or 0.0)

    def _slow_down(self, group: int) -> None:
        if self.slow[group]:
            return
        self.faults += 1
        self.slow[group] = True
        self.n_slow += 1
        life = self.lives[group]
        lasts_s = self._exponential(self.scenario.mix.slow_lasts_s)
        self._plan(self.now_s + lasts_s, _Event.RECOVERED, group, life)
        after_s = self.scenario.handling.slow.after_s
        if after_s is not None:
            self._plan(self.now_s + after_s, _Event.FOUND, group, life)

    def _quick_again(self, group: int) -> None:
        if self.slow[group]:
            self.slow[group] = False
            self.n_slow -= 1
        self.lives[group] += 1

    def _answer(self, group: int, kind: str, detect_s: float) -> None:
        if self._response(kind).takes_job:
            self._restart_job(detect_s)
            if kind == "slow":
                self._quick_again(group)
        else:
            self._put_out(group, detect_s, alive=kind != "stop")

    def _response(self, kind: str) -> Response:
        response: Response = getattr(self.scenario.handling, kind)
        return response

    def _restart_job(self, detect_s: float) -> None:
        self.evictions += 1
        self._stall(detect_s + self.scenario.times.job_restart_s)

    def _put_out(self, group: int, detect_s: float, *, alive: bool) -> None:
        times = self.scenario.times
        self.evictions += 1
        self._quick_again(group)
        self.up[group] = False
        self.n_up -= 1
        gone_s = self.now_s + detect_s + (times.evict_s if alive else 0.0)
        together_s = gone_s + times.requorum_s + times.step_s / 2.0
        self._stall(together_s - self.now_s)
        ready_s = gone_s + times.restart_s + times.heal_s
        self._plan(max(together_s, ready_s), _Event.BACK, group)

    def _stall(self, for_s: float) -> None:
        self.stalled_until_s = max(self.stalled_until_s, self.now_s + for_s)

    def _any_group(self) -> int:
        return int(self.draw.random() * len(self.up))

    def _exponential(self, mean_s: float) -> float:
        return -math.log(1.0 - self.draw.random()) * mean_s

    def _plan_next(self, event: _Event, mean_s: float) -> None:
        self._plan(self.now_s + self._exponential(mean_s), event)

    def _plan(self, at_s: float, event: _Event, group: int = 0, life: int = 0) -> None:
        self.planned += 1
        heapq.heappush(self.events, (at_s, self.planned, event, group, life))
