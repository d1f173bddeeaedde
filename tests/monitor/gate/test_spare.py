"""Who stands by for the gate's worker, and is himself replaced."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from lightkeeper.monitor.gate.hot_restart import Spare


@dataclass
class FakeWorker:
    number: int
    killed: bool = False

    def ended(self) -> bool:
        return self.killed


@dataclass
class Bench:
    """Time, and all that were ever started."""

    now_s: float = 100.0
    started: list[FakeWorker] = field(default_factory=list)

    def start(self) -> FakeWorker:
        self.started.append(FakeWorker(len(self.started)))
        return self.started[-1]

    def pass_s(self, spare: Spare, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            self.now_s += 0.5
            spare.look()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_one_that_lives_is_left_alone(bench: Bench) -> None:
    spare = Spare(bench.start, lambda: bench.now_s)
    bench.pass_s(spare, 300)
    assert len(bench.started) == 1


def test_one_that_dies_after_long_is_replaced_at_the_next_look(bench: Bench) -> None:
    spare = Spare(bench.start, lambda: bench.now_s)
    bench.pass_s(spare, 300)
    bench.started[0].killed = True
    bench.pass_s(spare, 1)
    assert spare.worker is bench.started[1]


def test_those_that_cannot_stay_come_rarely(bench: Bench) -> None:
    spare = Spare(bench.start, lambda: bench.now_s)
    for _ in range(600):
        for worker in bench.started:
            worker.killed = True
        bench.pass_s(spare, 1)
    assert 55 <= len(bench.started) <= 61  # every 10 s of ten minutes


def test_the_one_that_is_taken_is_followed_by_another(bench: Bench) -> None:
    spare = Spare(bench.start, lambda: bench.now_s)
    assert spare.take() is bench.started[0]
    spare.look()
    assert spare.worker is bench.started[1]


def test_who_died_just_now_is_not_taken(bench: Bench) -> None:
    spare = Spare(bench.start, lambda: bench.now_s)
    bench.started[0].killed = True
    assert spare.take() is bench.started[1]
