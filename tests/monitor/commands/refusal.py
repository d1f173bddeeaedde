"""What a command says to input that it cannot use: one line on stderr, and status 2."""

from __future__ import annotations

import pytest

from monitor.cli import main


def assert_refused(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: ")
    assert line in said.err
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err
