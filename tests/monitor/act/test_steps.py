"""Whom an eviction asks: in the background, and a crash is an answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from lightkeeper.monitor.act.evictor import Asker, Parties, eviction_words, probe, save_evidence
from lightkeeper.monitor.act.quarantine import Quarantine
from lightkeeper.monitor.act.schedulers.base import Outcome, Why
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.model.escalation import Answered, Liveness
from lightkeeper.monitor.model.eviction import Rung
from tests.monitor.decide.escalations import ID, RANKS, fresh
from tests.monitor.doubles import HandClock, Memory
from tests.monitor.fakes import FakeRank, identity, wait_until

WHOM = {
    Rung.GATE: "",
    Rung.LIGHTHOUSE_KILL: "",
    Rung.WORKER_EVICT: RANKS[1],
    Rung.SCHEDULER: "slurm",
}


@dataclass
class World:
    """A gate, a Lighthouse, WorkerServers and a scheduler in one."""

    kind: str
    over: threading.Event = field(default_factory=threading.Event)
    asked: list[str] = field(default_factory=list)
    name: str = "slurm"

    def ask(self, whom: str) -> Future[Any]:
        self.asked.append(whom)
        if self.kind == "crashes":
            raise RuntimeError("boom")
        return Future()

    def wake(self) -> None:
        self.ask("gate")

    def begin_kill(self, replica_id: str, _: float) -> Future[str]:
        return self.ask(replica_id)

    def submit(self, request: Any) -> Future[Any]:
        request.close()
        return self.ask("worker")

    def remove(self, group: str, places: Any, why: Why, _: float) -> Outcome:
        assert why.lost is None
        self.asked.append(group)
        if self.kind == "crashes":
            raise RuntimeError("boom")
        if self.kind == "never answers":
            self.over.wait(30)
        return Outcome(True, f"{len(places)} places")

    def asker(self) -> Asker:
        clock, it = HandClock(), self
        registry, quarantine = Registry(clock, Memory()), Quarantine(clock, Memory())
        parties = Parties(clock, it, registry, quarantine, it, it, (it,))  # type: ignore[arg-type]
        return Asker(parties, lambda _: None)


@pytest.fixture
def silent() -> Iterator[World]:
    world = World("never answers")
    yield world
    world.over.set()


def test_nobody_is_waited_for(silent: World) -> None:
    asker, began = silent.asker(), time.monotonic()
    for rung, whom in WHOM.items():
        assert asker.ask(fresh(), rung, whom) is None
    assert list(asker.answers()) == []
    assert time.monotonic() - began < 20  # and not the 30 s of one that never answers
    wait_until(lambda: len(silent.asked) == len(WHOM), what="all are asked")
    assert set(silent.asked) == {"gate", ID, "worker", "rg_1"}


@pytest.mark.parametrize("rung", WHOM, ids=str)
def test_a_crash_of_whoever_is_asked_counts_as_its_answer(rung: Rung) -> None:
    asker = World("crashes").asker()
    at_once = asker.ask(fresh(), rung, WHOM[rung])
    answers = [at_once] if at_once is not None else list(asker.answers(wait_s=5.0))
    assert answers == [Answered(rung, WHOM[rung], "crashed: RuntimeError: boom", done=False)]


@pytest.mark.parametrize(
    ("rank", "life", "detail"),
    [
        ({}, Liveness.ALIVE, "alive (state S)"),
        ({"process_state": "T"}, Liveness.STUCK, "stopped (state T)"),
        ({"interpreter_age_s": 30.0}, Liveness.STUCK, "interpreter has not run for 30.0 s"),
        ({"alive": False}, Liveness.GONE, "its process is gone"),
    ],
    ids=["alive", "stopped", "GIL held", "dead"],
)
def test_a_look_says_how_each_of_the_accused_is(rank: dict, life: Liveness, detail: str) -> None:
    answer: Future[Any] = Future()
    answer.set_result(FakeRank(identity("rg_1", 0), **rank).report())

    class Answers:
        def submit(self, request: Any) -> Future[Any]:
            request.close()
            return answer

    clock = HandClock()
    registry, quarantine = Registry(clock, Memory()), Quarantine(clock, Memory())
    seen = probe(Parties(clock, Answers(), registry, quarantine), fresh())  # type: ignore[arg-type]
    assert (seen.lives[RANKS[0]], detail in seen.details[RANKS[0]]) == (life, True)
    assert seen.lives[RANKS[1]] is Liveness.GONE, "another process answers in its place"


def test_evidence_that_crashes_stops_no_eviction() -> None:
    def crash() -> str:
        raise RuntimeError("a bug")

    answer = Answered(Rung.EVIDENCE, "", "RuntimeError: a bug", done=False)
    assert save_evidence(crash) == answer


@pytest.mark.parametrize("rung", WHOM, ids=str)
def test_nobody_is_asked_once_the_lease_is_lost(rung: Rung) -> None:
    world = World("does it")
    answer = world.asker().ask(fresh(), rung, WHOM[rung], "the lease is lost")
    assert answer == Answered(rung, WHOM[rung], "not asked: the lease is lost")
    assert world.asked == []


def test_the_threads_of_schedulers_end_and_tell() -> None:
    asker = World("does it").asker()
    asker.ask(fresh(), Rung.SCHEDULER, "slurm")
    (answer,) = asker.answers(wait_s=5.0)
    assert answer == Answered(Rung.SCHEDULER, "slurm", "2 places", done=True)
    wait_until(
        lambda: not any(t.name.startswith("remove by") for t in threading.enumerate()),
        what="the thread ends",
    )


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (200, {"signalled": ["SIGKILL"], "gone": True}, "got SIGKILL and is gone"),
        (200, {"signalled": ["SIGTERM", "SIGKILL"], "gone": False},
         "got SIGTERM and then SIGKILL and is not gone yet"),
        (200, {"signalled": ["SIGKILL"], "gone": True, "started_gone": 2},
         "got SIGKILL and is gone, with 2 of its own"),
        (200, {"signalled": ["SIGTERM"], "gone": True, "way": "parked between\ntwo steps"},
         "parked between two steps, then got SIGTERM and is gone"),
        (200, {"signalled": ["SIGTERM"], "gone": True, "way": 7}, "got SIGTERM and is gone"),
        (200, {"signalled": [], "gone": True}, "was gone already"),
        (409, {"error": "another incarnation"}, "refused (409): another incarnation"),
        (200, {"gone": "<b>"}, ""),
        (200, {}, ""),
    ],
    ids=["gone", "twice", "with others", "gently", "odd way", "gone before", "refused",
         "another schema", "no JSON"],
)  # fmt: skip
def test_answers_of_worker_servers_are_told_in_words(status: int, said: Any, words: str) -> None:
    assert eviction_words(status, said) == words
