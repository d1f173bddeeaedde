"""Looking again and again, at a monitor that may go away."""

from __future__ import annotations

import threading

import pytest

from monitor.commands.errors import FAILED, CommandError
from monitor.commands.looking import looking
from tests.waiting import wait_for


class Monitor:
    def __init__(self) -> None:
        self.looks = 0
        self.away = False
        self.slow = threading.Event()
        self.slow.set()

    def __call__(self) -> int:
        self.looks += 1
        self.slow.wait(10)
        if self.away:
            raise CommandError("nobody listens there", FAILED)
        return self.looks


def test_it_says_since_when_and_comes_back() -> None:
    monitor = Monitor()
    with looking(monitor, 0.01, None) as looks:
        wait_for(lambda: looks.latest.seen > 1, within_s=5, what="a second look")
        monitor.away = True
        away = wait_for(lambda: looks.latest.away, within_s=5, what="away")
        assert away.why == "nobody listens there"
        seen = monitor.looks
        wait_for(lambda: monitor.looks > seen + 2, within_s=5, what="more looks")
        assert looks.latest.away is not None
        assert looks.latest.away.since_s == away.since_s == looks.latest.at_s
        monitor.away = False
        wait_for(lambda: looks.latest.away is None, within_s=5, what="back")


def test_the_first_failure_is_raised() -> None:
    monitor = Monitor()
    monitor.away = True
    with pytest.raises(CommandError, match="nobody listens"), looking(monitor, 0.01, None):
        pass


def test_leaving_does_not_wait_for_a_slow_answer() -> None:
    monitor = Monitor()
    with looking(monitor, 0.01, None):
        monitor.slow.clear()
        wait_for(lambda: monitor.looks > 1, within_s=5, what="a look under way")
    assert not monitor.slow.is_set()
    monitor.slow.set()
