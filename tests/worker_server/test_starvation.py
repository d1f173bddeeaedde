"""How long a rank was ready to run and got no core, as the kernel counts it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.worker_server.ranks import eventually
from worker_server.sidecar.starvation import Starvation


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def seen(monkeypatch):
    """A process of two threads, of which one waits for 0.3 s in each second."""
    clock = Clock()
    made = Starvation(os.getpid(), clock)
    monkeypatch.setattr(made, "_waited_s", lambda: {"1": 0.01 * clock(), "2": 0.3 * clock()})

    def at(now_s):
        clock.now_s = now_s
        return made.share()

    return at


def test_it_is_the_share_of_the_last_seconds_of_the_thread_that_waited_most(seen):
    assert [seen(at) for at in (0.0, 0.1, 3.0)] == [None] * 3
    assert [seen(at) for at in (5.0, 7.5, 60.0, 65.0)] == pytest.approx([0.3] * 4)


def test_few_looks_are_kept_however_often_it_is_asked(seen):
    for n in range(10_000):
        share = seen(n / 100)
        assert share == (None if n < 550 and share is None else pytest.approx(0.3))


def test_a_thread_that_came_or_went_meanwhile_counts_for_nothing(monkeypatch):
    clock = Clock()
    made = Starvation(os.getpid(), clock)
    looks = iter([{"1": 50.0, "2": 9.0}, {"2": 9.5, "3": 70.0}, {}])
    monkeypatch.setattr(made, "_waited_s", lambda: next(looks))
    shares = []
    for now_s in (0.0, 5.0, 10.0):
        clock.now_s = now_s
        shares.append(made.share())
    assert shares == [None, pytest.approx(0.1), None]


def test_of_a_process_that_is_gone_nothing_is_known():
    assert Starvation(2**22 + 1, Clock())._waited_s() == {}


@pytest.mark.integration
def test_two_that_share_one_core_wait_for_it_in_turn():
    core = {min(os.sched_getaffinity(0))}
    spin = "import os, sys\nos.sched_setaffinity(0, eval(sys.argv[1]))\nwhile True: pass"
    busy = [subprocess.Popen([sys.executable, "-c", spin, str(core)]) for _ in range(2)]
    try:
        made = Starvation(busy[0].pid, time.monotonic)
        share = eventually(made.share, "a share", within_s=30)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    assert 0.2 < share <= 1.0
