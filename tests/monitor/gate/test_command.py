"""What `lightkeeper gate` says to input that it cannot use."""

from __future__ import annotations

import pytest

from tests.monitor.shell.refusal import assert_refused

GOOD = ["--lighthouse", "http://127.0.0.1:1", "--bind", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--lighthouse", "head:29510"], "--lighthouse is 'head:29510', expected http://HOST:PORT"),
        (["--lighthouse", "https://head:1"], "expected http://HOST:PORT"),
        (["--lighthouse", "http://head"], "expected http://HOST:PORT"),
        (["--bind", "29511"], "--bind is '29511', expected HOST:PORT"),
        (["--admin", "x"], "--admin is 'x', expected HOST:PORT"),
        (["--token-file", "/nowhere"], "cannot read token file /nowhere"),
    ],
)
def test_wrong_options_are_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_refused(["gate", *GOOD, *words], line, capsys)
