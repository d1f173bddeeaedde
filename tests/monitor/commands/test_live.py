"""`top` on a real terminal (a pty), and where there is none."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.monitor.bodies import ServedView, hung, trains
from tests.monitor.commands.terminal import terminal
from tests.monitor.process import lightkeeper
from tests.waiting import wait_for

pytestmark = pytest.mark.integration


@pytest.fixture
def monitor() -> Iterator[ServedView]:
    made = ServedView(hung())
    yield made
    made.close()


def test_top_follows_the_window_and_puts_all_back(monitor: ServedView) -> None:
    with terminal("top", "--every", "0.2", "--monitor", monitor.url) as screen:
        screen.until("4 of 4 ranks by busy")
        screen.resize(60, 9)
        small = screen.until("2 of 4 ranks")
        assert max(len(line) for line in small.splitlines()) <= 60
        assert len(small.splitlines()) <= 9
        monitor.view = trains()
        screen.until("training yes")
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == 0
        assert screen.put_back()


def test_a_monitor_that_goes_away_is_said_and_what_was_seen_stays(monitor: ServedView) -> None:
    with terminal("top", "--every", "0.2", "--monitor", monitor.url) as screen:
        screen.until("rg_1.1 stands still")
        monitor.refuse = True
        gone = screen.until("NO ANSWER since ")
        assert "the database is away" in gone
        assert "rg_1.1 stands still" in gone
        screen.until("(1 s); below is what was seen last")  # it counts on
        monitor.refuse = False
        wait_for(lambda: "NO ANSWER" not in screen.screen, within_s=10, what="an answer again")
        screen.process.send_signal(signal.SIGINT)
        assert screen.ended() == 0
        assert screen.put_back()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["Ctrl-C", "SIGTERM", "SIGHUP"],
)
def test_however_it_ends_the_terminal_is_put_back(
    number: signal.Signals, status: int, monitor: ServedView
) -> None:
    with terminal("top", "--monitor", monitor.url) as screen:
        screen.until("4 of 4 ranks by busy")
        screen.process.send_signal(number)
        assert screen.ended() == status
        assert screen.put_back()
        assert "Traceback" not in screen.raw


def test_no_colour_where_nobody_wants_any(monitor: ServedView) -> None:
    with terminal("status", "--monitor", monitor.url, NO_COLOR="1") as screen:
        assert screen.ended() == 0
        wait_for(lambda: "ranks" in screen.raw, within_s=5, what="the answer")
        assert not any(f"\x1b[{colour}m" in screen.raw for colour in ("31", "32", "1;31"))
    with terminal("status", "--monitor", monitor.url) as screen:
        assert screen.ended() == 0
        wait_for(lambda: "\x1b[1;31m" in screen.raw, within_s=5, what="a colour")


def test_a_pipe_gets_no_screen(monitor: ServedView) -> None:
    refused = lightkeeper("top", "--monitor", monitor.url)
    assert (refused.returncode, refused.stdout) == (2, "")
    plain = lightkeeper("status", "--monitor", monitor.url)
    assert plain.returncode == 0
    assert plain.stdout.isascii()
    assert "\x1b" not in plain.stdout
