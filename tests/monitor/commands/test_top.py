"""The live screen of `top`: how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import weakref

import pytest

from lightkeeper.monitor.commands import status as offered
from lightkeeper.monitor.commands.top import show_live
from lightkeeper.monitor.show.terminal import tables


@pytest.mark.parametrize(("number", "status"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_as_that_signal_even_where_a_library_swallows_the_exception(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((80, 24)))
    asked: list[int] = []

    def ask(_width: int, _height: int) -> list[str]:
        asked.append(1)
        if len(asked) == 2:
            with contextlib.suppress(SystemExit):
                signal.raise_signal(number)
        return ["seen"]

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        show_live(ask, 0.2)
    assert ended.value.code == status
    assert signal.getsignal(number) is before


# -- where the exception is lost -------------------------------------------------------------------


class Answer:
    """Something that can be watched."""


def test_a_signal_in_a_callback_ends_the_screen_and_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
    monkeypatch.setattr("sys.stdout.fileno", lambda: 1, raising=False)
    watches = []

    def gone(_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # the handler runs in here, and what it raises goes nowhere
            pass

    def ask(_width: int, _height: int) -> list[str]:
        answer = Answer()
        watches.append(weakref.ref(answer, gone if watches else None))
        return ["seen"]

    with pytest.raises(SystemExit) as ended:
        show_live(ask, 0.01)
    assert ended.value.code == 128 + signal.SIGTERM
    assert "Traceback" not in capsys.readouterr().err


def test_the_client_offers_the_orders_that_the_monitor_knows() -> None:
    """It has its own list, to load nothing that lays out rows."""
    assert offered.RANK_ORDERS == tables.RANK_ORDERS
    assert offered.GROUP_ORDERS == tables.GROUP_ORDERS
