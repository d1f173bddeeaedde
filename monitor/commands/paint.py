"""Lines of (text, style) on a console: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from monitor.terminal.grid import Line, text_of


class Painted:
    """Lines for rich. By segments, not by Text: ten thousand ranks are printed in a moment."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        styles: dict[str, Style] = {}
        for line in self.lines:
            for text, style in line:
                if style not in styles:
                    styles[style] = Style.parse(style)
                yield Segment(text, styles[style])
            yield Segment.line()


def show(console: Console, lines: Iterable[Line]) -> None:
    """Print them; in a pipe without a space at their ends."""
    if console.is_terminal:
        console.print(Painted(list(lines)), end="")
        return
    for line in lines:
        console.file.write(text_of(line) + "\n")


def room(console: Console) -> int | None:
    """Columns that a line may fill; None: as many as it likes."""
    return console.width if console.is_terminal else None
