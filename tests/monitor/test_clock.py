"""The monitor's clock never jumps; what it sends to others is by theirs."""

from __future__ import annotations

import time

import pytest

from lightkeeper.monitor.act.notices import Event, Message, Notice, NoticeEnding
from lightkeeper.monitor.clock import SteadyClock


@pytest.mark.parametrize(("set_by_s", "ahead_s"), [(3600.0, 3600.0), (-90.0, -90.0), (2.0, 0.0)])
def test_a_clock_that_ntp_sets_changes_no_age_and_is_known(monkeypatch, set_by_s, ahead_s) -> None:
    clock, wall = SteadyClock(), time.time
    before_s = clock.now_s()
    monkeypatch.setattr(time, "time", lambda: wall() + set_by_s)
    assert clock.now_s() - before_s < 60
    assert clock.ahead_s() == pytest.approx(ahead_s, abs=1.0)


def test_a_message_goes_out_by_the_receivers_clock() -> None:
    """An alert whose end lay an hour in the past was resolved as it came."""
    notice = Notice("k", Event.INCIDENT, "i", "critical", "title", "text", 1000.0)
    sent = Message(notice, 1010.0, NoticeEnding(1009.0, "over")).by_the_wall(3600.0)
    assert (sent.notice.since_s, sent.at_s, sent.ended.at_s) == (4600.0, 4610.0, 4609.0)
    assert sent.notice.key == notice.key
