"""How the commands print: JSON, lines of text, tables, or a live screen."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import FrameType
from typing import Any, Final

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from lightkeeper.monitor.commands.command import DONE, FAILED, CommandError
from lightkeeper.monitor.model.units import clean, utc
from lightkeeper.monitor.show.terminal.tables import Column, table
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
        show_table(console(), "", [*next(iter(checks), ())], [[*row.values()] for row in checks])
    return DONE if all(row["ok"] for row in checks) else FAILED


def show_table(
    out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """Its title only on a terminal. States and healths are coloured."""
    named = [Column(name, itemgetter(at)) for at, name in enumerate(columns)]
    show_lines(out, [*([title, ""] if title and out.is_terminal else []), *table(named, rows)])


def text(value: str, style: str = "") -> Text:
    """A line; text from ranks and hosts is no markup, and cannot control the terminal."""
    return Text(clean(value), style=style)


# -- `top`: a live screen on a terminal -----------------------------------------------------------

_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The screen is restored."""
_BUDGET: Final = 0.05
"""Largest share of one core for a live screen: with many ranks it updates less often."""


def show_live(ask: Callable[[int, int], list[str]], every_s: float) -> None:
    """Full screen until Ctrl-C. Without an answer the last look stays, below since when and why.

    Args:
        ask: the screen's lines, for so many columns and rows.

    Raises:
        CommandError: the first look failed.
    """
    console = Console()
    lines: list[str] = []
    at_s = time.time()
    ends: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ends.append(number)  # a library may swallow the exception
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in _ENDS}
    unraisable = sys.unraisablehook  # the exception may be raised in a callback: no error then
    sys.unraisablehook = lambda unraised: None if ends else unraisable(unraised)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as screen:
            while not ends:
                used_s, away = time.process_time(), Text()
                # an exported COLUMNS would keep an old size
                size = os.get_terminal_size(sys.stdout.fileno())
                console.size = ConsoleDimensions(*size)
                try:
                    lines, at_s = ask(*size), time.time()
                except CommandError as exc:
                    if not lines:
                        raise
                    away = _away(at_s, str(exc))
                screen.update(Group(away, painted(lines)) if away else painted(lines), refresh=True)
                used_s = time.process_time() - used_s
                time.sleep(max(every_s, used_s / _BUDGET))
    except KeyboardInterrupt:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = unraisable
    if ends and ends[0] != signal.SIGINT:  # the exception was swallowed
        raise SystemExit(128 + ends[0])


def _away(at_s: float, why: str) -> Text:
    """That the screen is old, since when and why."""
    ago_s = max(0.0, time.time() - at_s)
    since = f" NO ANSWER since {utc(at_s)} ({ago_s:.0f} s); below is what was seen last "
    parts = ((since, "bold white on red"), (f"\n {clean(why)}", "red"))
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")
