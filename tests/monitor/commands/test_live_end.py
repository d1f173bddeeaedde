"""A live screen's end where its exception is lost: in this process, without a terminal."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from monitor.commands.printing import live


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

    def ask() -> int:
        answer = Answer()
        watches.append(weakref.ref(answer, gone if watches else None))
        return 1

    with pytest.raises(SystemExit) as ended:
        live(ask, 0.01, lambda *_: [])
    assert ended.value.code == 128 + signal.SIGTERM
    assert "Traceback" not in capsys.readouterr().err
