"""A live screen: how it ends."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from monitor.commands import printing


@pytest.mark.parametrize(("number", "status"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_as_that_signal_even_where_a_library_swallows_the_exception(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, status: int
) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _fd: os.terminal_size((80, 24)))
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        if len(asked) == 2:
            with contextlib.suppress(SystemExit):
                signal.raise_signal(number)
        return len(asked)

    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended:
        printing.live(ask, 0.2, lambda _look, _width, _height: [])
    assert ended.value.code == status
    assert signal.getsignal(number) is before
