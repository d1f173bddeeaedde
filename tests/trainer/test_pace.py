import pytest

from lightkeeper.trainer.injector import WorkStretcher

pytestmark = pytest.mark.integration  # torch


class Clock:
    """Time that passes only by sleeping or by working."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(pytest.approx(seconds))
        self.now += seconds


def steps(pace, clock, work_s, count, factor=1.0):
    pace.slowness = factor
    for _ in range(count):
        pace.begin_work()
        clock.now += work_s
        pace.end_work()


def test_a_step_faster_than_the_minimum_is_padded_to_it():
    clock = Clock()
    steps(WorkStretcher(0.2, clock=clock, sleep=clock.sleep), clock, 0.03, 3)

    assert clock.slept == [0.2, 0.17, 0.17]


def test_a_step_slower_than_the_minimum_is_left_alone():
    clock = Clock()
    steps(WorkStretcher(0.02, clock=clock, sleep=clock.sleep), clock, 0.03, 3)

    assert clock.slept == [0.02]


def test_a_slow_rank_sleeps_the_rest_of_its_measured_work_times_the_factor():
    clock = Clock()
    pace = WorkStretcher(clock=clock, sleep=clock.sleep)
    steps(pace, clock, 0.03, 2)
    steps(pace, clock, 0.03, 2, factor=5.0)

    assert clock.slept == [0.12, 0.12]


def test_a_slow_rank_with_a_minimum_takes_the_factor_times_the_minimum():
    clock = Clock()
    pace = WorkStretcher(0.2, clock=clock, sleep=clock.sleep)
    steps(pace, clock, 0.05, 1, factor=5.0)
    steps(pace, clock, 0.05, 1, factor=5.0)

    assert clock.slept == [1.0, 0.95]


def test_one_hiccup_is_not_multiplied():
    clock = Clock()
    pace = WorkStretcher(clock=clock, sleep=clock.sleep)
    steps(pace, clock, 0.03, 4)
    steps(pace, clock, 2.0, 1)
    steps(pace, clock, 0.03, 1, factor=5.0)

    assert clock.slept == [0.12]
