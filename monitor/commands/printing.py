"""How the commands print: JSON, lines of text, tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from lightkeeper.monitor.commands.command import DONE, FAILED
from lightkeeper.worker_server.plain_text import escaped

_STYLES: Final = {
    **dict.fromkeys(("healthy", "resolved"), "green"),
    **dict.fromkeys(("waiting", "late", "pending", "warning"), "yellow"),
    **dict.fromkeys(("slow", "evicting"), "bold yellow"),
    **dict.fromkeys(("stalled", "corrupt", "firing", "critical"), "bold red"),
    **dict.fromkeys(("unreachable", "unknown"), "magenta"),
    **dict.fromkeys(("-", "ended", "finished"), "dim"),
    "dead": "red", "traced": "bold magenta", "starting": "blue", "info": "cyan",
}  # fmt: skip
"""Colours of healths, and of incidents' states and severities."""
_ANSWERS: Final = {
    **dict.fromkeys(("yes", "finished", "nobody", "acting", "trusted"), "green"),
    **dict.fromkeys(("disturbed", "pausing", "stopped", "suspected"), "yellow"),
    **dict.fromkeys(("standby", "doubtful"), "yellow"),
    **dict.fromkeys(("no", "stalling", "ended", "named", "unknown", "paused"), "bold red"),
    "starting": "blue", "observing": "bold cyan", "watching": "cyan",
}  # fmt: skip
"""Colours of the answers of `status`."""
_WORDS: Final = re.compile(
    r"(?:\b(?:training|held back by|keeper|monitor) +)(?P<answer>[a-z]+)(?=  |$)"
    rf"|(?<![\w.-])(?P<state>{'|'.join(map(re.escape, _STYLES))})(?![\w.-])"
)


def painted(lines: Iterable[str]) -> Segments:
    """Text with known words in colours; the first line, and one after an empty line, is a heading.

    As segments, not as Text: fast enough for ten thousand ranks.
    """
    segments: list[Segment] = []
    before = ""
    for line in map(escaped, lines):
        plain, at = Style.parse("" if before else "bold"), 0
        for word in _WORDS.finditer(line):
            kind = word.lastgroup or ""
            colour = (_STYLES if kind == "state" else _ANSWERS).get(word[kind], "")
            segments += (
                Segment(line[at : word.start(kind)], plain),
                Segment(word[kind], Style.parse(colour)),
            )
            at = word.end()
        segments += Segment(line[at:], plain), Segment.line()
        before = line
    return Segments(segments)


def show_lines(console: Console, lines: Iterable[str]) -> None:
    if console.is_terminal:
        console.print(painted(lines), end="", crop=False)  # the terminal folds what is longer
        return
    for line in lines:
        console.file.write(escaped(line) + "\n")


def line_width(console: Console) -> int:
    """Columns that a line may fill; 0: no limit."""
    return console.width if console.is_terminal else 0


def console() -> Console:
    """Standard output; in a pipe without line folding, and coloured only with FORCE_COLOR."""
    return Console(soft_wrap=not sys.stdout.isatty())


def print_json(body: Any) -> None:
    sys.stdout.write(json.dumps(body, indent=2) + "\n")


def show_checks(name: str, checks: Sequence[Mapping[str, Any]], *, as_json: bool) -> int:
    """Print checks, each with `ok`, under the names of their fields; the exit status."""
    if as_json:
        print_json({"schema": 1, name: checks})
    else:
        show_table(console(), [*next(iter(checks), ())], [[*row.values()] for row in checks])
    return DONE if all(row["ok"] for row in checks) else FAILED


def show_table(out: Console, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """States and healths are coloured."""
    # most commands print lines that the monitor laid out
    from lightkeeper.monitor.show.terminal.tables import Column, table  # noqa: PLC0415

    named = [Column(name, itemgetter(at)) for at, name in enumerate(columns)]
    show_lines(out, table(named, rows))


def text(value: str, style: str = "") -> Text:
    """A line; text from ranks and hosts is no markup, and cannot control the terminal."""
    return Text(escaped(value), style=style)
