"""How the commands print: JSON, tables, or a live screen."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Final, TypeVar

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from lightkeeper.monitor.commands.command import CommandError
from lightkeeper.monitor.show.terminal import (
    STYLES,
    Column,
    Line,
    cut,
    lines_of,
    moment,
    show,
    text_of,
)
from lightkeeper.monitor.show.wording import clean
from lightkeeper.worker_server.plain_text import escaped

# Lines of (text, style) on a console: coloured on a terminal, plain in a pipe.


def painted(lines: Iterable[Line]) -> Segments:
    """For rich, as segments, not as Text: fast enough for ten thousand ranks."""
    end = Segment("\n", Style.parse(""))
    return Segments(
        segment
        for line in lines
        for segment in (*(Segment(escaped(text), Style.parse(style)) for text, style in line), end)
    )


def show_lines(console: Console, lines: Iterable[Line]) -> None:
    """Print lines; in a pipe without trailing spaces."""
    if console.is_terminal:
        console.print(painted(lines), end="")
        return
    for line in lines:
        console.file.write(text_of(line) + "\n")


def room(console: Console) -> int | None:
    """Columns that a line may fill; None: no limit."""
    return console.width if console.is_terminal else None


def console() -> Console:
    """Standard output; in a pipe without line folding, and coloured only with FORCE_COLOR."""
    return Console(soft_wrap=not sys.stdout.isatty())


def print_json(body: Any) -> None:
    sys.stdout.write(json.dumps(body, indent=2) + "\n")


def show_checks(
    title: str, name: str, checks: Sequence[Mapping[str, Any]], columns: Mapping[str, str],
    *, as_json: bool,
) -> None:  # fmt: skip
    """Print checks, each with `ok`; `columns`: keys and their headings."""
    if as_json:
        print_json({"schema": 1, name: checks})
    else:
        rows = [[row[key] for key in columns] for row in checks]
        show_table(console(), title, tuple(columns.values()), rows)


def show_table(
    out: Console, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]
) -> None:
    """With borders on a terminal, without in a pipe. States and healths are coloured."""
    cells = [[_cell(value) for value in row] for row in rows]
    if not out.is_terminal:
        texts = [[cell.plain for cell in row] for row in cells]
        show_lines(out, lines_of([Column(name) for name in columns], texts))
        return
    table = Table(title=text(title), title_justify="left", header_style="bold", expand=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        table.add_row(*row)
    out.print(table)


def _cell(value: object) -> Text:
    said = show(value)
    return value if isinstance(value, Text) else text(said, STYLES.get(said, ""))


def text(value: str, style: str = "") -> Text:
    """A line; text from ranks and hosts is no markup, and cannot control the terminal."""
    return Text(clean(value), style=style)


# -- `top`: a live screen on a terminal -----------------------------------------------------------

T = TypeVar("T")
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The screen is restored."""
_BUDGET: Final = 0.05
"""Largest share of one core for a live screen: with many ranks it updates less often."""


Draw = Callable[[T, int, int], list[Line]]
"""The screen's lines, from the latest look, for so many columns and rows."""


def live(ask: Callable[[], T], every_s: float, draw: Draw[T]) -> None:
    """Full screen until Ctrl-C. Without an answer the last look stays, below since when and why.

    Raises:
        CommandError: the first look failed.
    """
    console = Console()
    look, at_s, why = ask(), time.time(), ""
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
                used_s = time.process_time()
                # an exported COLUMNS would keep an old size
                width, height = os.get_terminal_size(sys.stdout.fileno())
                console.size = ConsoleDimensions(width, height)
                top = _away(at_s, why, width) if why else []
                lines = [*top, *draw(look, width, max(1, height - len(top)))]
                screen.update(painted(lines[:height]), refresh=True)
                try:
                    look, at_s, why = ask(), time.time(), ""
                except CommandError as exc:
                    why = str(exc)
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


def _away(at_s: float, why: str, width: int) -> list[Line]:
    """That the screen is old, since when and why."""
    ago_s = max(0.0, time.time() - at_s)
    text = f" NO ANSWER since {moment(at_s)} ({ago_s:.0f} s); below is what was seen last "
    return [[(cut(text, width), "bold white on red")], [(cut(f" {why}", width), "red")]]
