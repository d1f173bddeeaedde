"""Known words in colours; a live screen: how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import weakref

import pytest
from rich.console import Console

from lightkeeper.monitor.commands import printing


def test_answers_and_healths_have_colours_and_other_words_have_none() -> None:
    lines = [
        "training      no  no commit by dead-1",
        "held back by  named  rg_1 is dead",
        "",
        "host",
    ]
    styles = [(text, str(style)) for text, style, _ in printing.painted(lines).segments if text]
    assert ("no", "bold red") in styles
    assert ("  no commit by dead-1", "bold") in styles
    assert ("named", "bold red") in styles
    assert ("dead", "red") in styles
    assert ("host", "bold") in styles


def test_a_line_longer_than_the_terminal_is_whole() -> None:
    out = Console(file=io.StringIO(), width=20, force_terminal=True)
    url = f"http://head:8470/{'x' * 40}"
    printing.show_lines(out, ["training  yes", url])
    assert url in out.file.getvalue()


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
        printing.show_live(ask, 0.2)
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
        printing.show_live(ask, 0.01)
    assert ended.value.code == 128 + signal.SIGTERM
    assert "Traceback" not in capsys.readouterr().err
