"""Conformance: every rung passes one suite, on a clock that is moved by hand.

A rig is one rung with whom it asks: a kind that does what it is asked, one that refuses, one that
never answers, one that crashes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from monitor.evictors.look import Life, Look
from monitor.evictors.order import Accused, Order, Patience
from monitor.evictors.rungs import (
    Careful,
    Climber,
    GateRefuses,
    LighthouseKill,
    SchedulerRemoves,
    WorkerEvict,
)
from monitor.names import GroupName, Host, IncidentId, RankName, ReplicaId
from monitor.policy import Evict
from monitor.schedulers.protocol import Outcome
from monitor.snapshot import LighthouseAway, LighthouseView, Member, Rung, RungResult
from monitor.targets import Registry
from tests.monitor.shell.doubles import HandClock, Memory
from tests.monitor.shell.fakes import identity, wait_until
from worker_server.wire import Registration

ID = ReplicaId("rg_1:a")
RANKS = (RankName("rg_1.0"), RankName("rg_1.1"))
PATIENCE = Patience()
VIEW = LighthouseView(3, (Member(ID, 5), Member(ReplicaId("rg_0:x"), 5)), {ID: 0.1}, "")
KINDS = ("does it", "refuses", "never answers", "crashes")


class Rig:
    """What all rungs need, and what is asked of the world by one of them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.clock = HandClock()
        self.registry = Registry(self.clock, Memory())
        self.lives = dict.fromkeys(RANKS, Life.ALIVE)
        self.lighthouse: LighthouseView | LighthouseAway = VIEW
        for number in (0, 1):
            self.register(number, "one")
        self.asked: list[str] = []
        self.over = threading.Event()
        evict = Evict(IncidentId("inc-1"), GroupName("rg_1"), ID, (Host("node1"),), "hung")
        accused = tuple(
            Accused(rank, "one", f"http://h/{rank}", Host("node1"), {"pod": "p"}) for rank in RANKS
        )
        self.order = Order(evict, accused, self.clock.now_s())

    def register(self, number: int, incarnation: str) -> None:
        who = identity("rg_1", number, world_size=2, incarnation=incarnation)
        self.registry.register(Registration(who, f"http://h/{number}", 1000.0))

    def look(self) -> Look:
        return Look(
            dict(self.lives), {rank: str(self.lives[rank]) for rank in RANKS}, self.lighthouse
        )

    def restarted(self) -> None:
        """The group is another: its old processes are gone, its name and places are taken."""
        self.lives = dict.fromkeys(RANKS, Life.GONE)
        self.lighthouse = replace(VIEW, members=(Member(ReplicaId("rg_1:b"), 5),))
        for number in (0, 1):
            self.register(number, "two")

    def ask(self, whom: str) -> None:
        self.asked.append(whom)
        if self.kind == "crashes":
            raise RuntimeError("boom")
        if self.kind == "does it":
            self.lives = dict.fromkeys(RANKS, Life.GONE)

    def answer(self, said: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.kind != "never answers":
            future.set_result(said)
        return future

    # -- whom the rungs talk to -------------------------------------------------------------

    def begin_kill(self, replica_id: str, _: float) -> Future[str]:
        self.ask(replica_id)
        return self.answer("answered 500: transport error")

    def submit(self, request: Any) -> Future[Any]:
        request.close()
        self.ask("worker")
        return self.answer("answered 200")

    name = "slurm"

    def remove(self, group: str, places: Any, *_: Any) -> Outcome:
        self.ask(group)
        if self.kind == "never answers":
            self.over.wait(30)
        return Outcome(self.kind == "does it", f"{len(places)} places")

    def kick(self) -> None:
        self.ask(ID)

    def refusing_for_s(self, replica_id: str) -> float | None:
        assert replica_id == ID  # never another's
        return 1.0 if self.kind == "does it" and self.asked else None

    def trouble(self) -> str | None:
        return "the gate is away"


def gate(rig: Rig) -> Climber:
    return GateRefuses(rig.order, rig, rig.clock, PATIENCE)


def kill(rig: Rig) -> Climber:
    return LighthouseKill(rig.order, rig, rig.clock, PATIENCE)  # type: ignore[arg-type]


def worker(rig: Rig) -> Climber:
    return WorkerEvict(
        rig.order, fetcher=rig, registry=rig.registry, clock=rig.clock,  # type: ignore[arg-type]
        patience=PATIENCE, token="secret",
    )  # fmt: skip


def scheduler(rig: Rig) -> Climber:
    return SchedulerRemoves(
        rig.order, [rig], registry=rig.registry, clock=rig.clock, patience=PATIENCE  # type: ignore[list-item]
    )  # fmt: skip


RUNGS: dict[Rung, tuple[Callable[[Rig], Climber], float, float, int]] = {
    Rung.GATE: (gate, PATIENCE.gate_s, PATIENCE.ask_again_s, 1),
    Rung.LIGHTHOUSE_KILL: (kill, PATIENCE.kill_s, 1e9, 1),
    Rung.WORKER_EVICT: (worker, PATIENCE.worker_s, PATIENCE.ask_again_s, len(RANKS)),
    Rung.SCHEDULER: (scheduler, PATIENCE.scheduler_s, PATIENCE.schedule_again_s, 1),
}
"""How it is made, its deadline, how long it does not ask again, and how many one asking asks."""


@pytest.fixture(params=RUNGS, ids=str)
def rung(request: pytest.FixtureRequest) -> Rung:
    return request.param


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(request.param)
    yield made
    made.over.set()


def climbed(rig: Rig, climber: Climber, for_s: float, step_s: float = 0.25) -> None:
    """As the ladder climbs: look, climb, wait, until the rungs settle at the end."""
    end_s = rig.clock.now_s() + for_s
    while rig.clock.now_s() < end_s - 1e-9:
        climber.climb(rig.look())
        for thread in threading.enumerate():
            if thread.name.startswith("remove by") and rig.kind != "never answers":
                thread.join(5)
        rig.clock.advance(step_s)


def made(rung: Rung, rig: Rig) -> Climber:
    return Careful(RUNGS[rung][0](rig), rig.clock)


def test_it_asks_once_and_not_again_for_some_seconds(rung: Rung, rig: Rig) -> None:
    _, _, again_s, once = RUNGS[rung]
    climbed(rig, made(rung, rig), min(again_s - 0.3, 20.0))
    assert 1 <= len(rig.asked) <= once


def test_it_has_a_deadline_and_keeps_it(rung: Rung, rig: Rig) -> None:
    deadline_s = RUNGS[rung][1]
    climber = made(rung, rig)
    assert not climber.over()
    climbed(rig, climber, deadline_s - 0.5)
    if rig.kind == "never answers":
        assert not climber.over()
    climbed(rig, climber, 1.5)
    assert climber.over() or rung is Rung.WORKER_EVICT
    told = climber.outcome()
    assert told is not None
    assert told.deadline_s == deadline_s or rig.kind == "crashes"


def test_it_records_how_it_ended(rung: Rung, rig: Rig) -> None:
    climber = made(rung, rig)
    assert climber.outcome() is None
    climber.climb(rig.look())
    began = climber.outcome()
    assert began is not None
    assert began.rung is rung
    climbed(rig, climber, RUNGS[rung][1] + 1.0)
    climber.settle(rig.look())
    told = climber.outcome()
    assert told is not None
    assert told.started_s <= (told.finished_s or 0.0) <= rig.clock.now_s()
    assert told.result is not None
    assert (told.result is RungResult.WORKED) is (rig.kind == "does it")
    climber.settle(rig.look())
    assert climber.outcome().result is told.result


def test_it_never_waits_for_an_answer(rung: Rung) -> None:
    rig = Rig("never answers")
    climber, began = made(rung, rig), time.monotonic()
    for _ in range(20):
        climber.climb(rig.look())
        rig.clock.advance(0.05)
    assert time.monotonic() - began < 0.5
    climber.settle(rig.look())
    assert time.monotonic() - began < 1.5
    rig.over.set()


def test_its_crash_is_its_own_failure(rung: Rung) -> None:
    rig = Rig("crashes")
    climber = made(rung, rig)
    climbed(rig, climber, 1.0)
    climbed(rig, climber, RUNGS[rung][1])
    climber.settle(rig.look())
    told = climber.outcome()
    assert told is not None
    assert told.result is RungResult.FAILED
    assert "crashed: RuntimeError: boom" in told.detail
    assert climber.over()


def test_it_asks_nothing_of_a_group_that_has_restarted(rung: Rung, rig: Rig) -> None:
    climber = made(rung, rig)
    rig.restarted()
    climbed(rig, climber, RUNGS[rung][1] + 1.0)
    assert rig.asked == [] or (rung is Rung.GATE and set(rig.asked) == {ID})
    told = climber.outcome()
    assert told is None or told.result is RungResult.SKIPPED or rung is Rung.GATE


def test_a_scheduler_that_refuses_is_asked_again_within_its_time() -> None:
    rig = Rig("refuses")
    climber = made(Rung.SCHEDULER, rig)
    climbed(rig, climber, PATIENCE.scheduler_s + 20)
    assert len(rig.asked) == 3  # every 10 s for 30 s
    assert climber.outcome().detail == "slurm: 2 places"


def test_a_gate_that_was_away_is_still_asked_after_its_deadline_and_may_work_late() -> None:
    rig = Rig("refuses")
    climber = made(Rung.GATE, rig)
    climbed(rig, climber, 10.0)
    assert climber.outcome().result is RungResult.FAILED
    assert climber.outcome().detail == "the gate is away"
    rig.kind = "does it"
    climbed(rig, climber, 4.0)
    assert climber.outcome().result is RungResult.WORKED


def test_stuck_ranks_are_asked_before_it_is_everyones_turn() -> None:
    rig = Rig("does it")
    rig.lives[RANKS[1]] = Life.STUCK
    climber = WorkerEvict(
        rig.order, fetcher=rig, registry=rig.registry, clock=rig.clock,  # type: ignore[arg-type]
        patience=PATIENCE, token=None, everyone=lambda _: False,
    )  # fmt: skip
    climber.climb(rig.look())
    assert len(rig.asked) == 1
    rig.clock.advance(100.0)
    assert not climber.over()  # the others' turn never came


def test_a_rank_out_of_sight_is_asked_unless_another_bears_its_name() -> None:
    rig = Rig("refuses")
    rig.lives = dict.fromkeys(RANKS, Life.UNSEEN)
    rig.register(1, "two")
    climber = made(Rung.WORKER_EVICT, rig)
    climber.climb(rig.look())
    assert len(rig.asked) == 1
    climber.settle(rig.look())
    assert climber.outcome().result is RungResult.UNKNOWN


def test_the_threads_of_schedulers_end() -> None:
    rig = Rig("does it")
    made(Rung.SCHEDULER, rig).climb(rig.look())
    wait_until(
        lambda: not any(t.name.startswith("remove by") for t in threading.enumerate()),
        what="the thread ends",
    )
