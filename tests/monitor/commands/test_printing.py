"""Known words in colours."""

from __future__ import annotations

import io

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
