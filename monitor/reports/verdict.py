"""A verdict on a terminal: who and what, the sentence, then the facts it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from monitor.analysis.finding import Confidence
from monitor.reports.wording import MEANINGS, sentence

_INDENT = (0, 0, 0, 3)


def verdict(
    number: int,
    who: str,
    what: str,
    *,
    classes: Iterable[str],
    confidence: Confidence,
    reason: str,
    facts: Iterable[tuple[str, str]],
    width: int,
) -> Iterator[RenderableType]:
    """Lines of one verdict; `width` is that of the facts' names. Empty facts are left out.

    Texts are printed as they are: clean what came from a file.
    """
    unsure = confidence is Confidence.UNSURE
    heading = Text(f"{number}. {who}", "bold magenta" if unsure else "bold red")
    heading.append(f": {what}", "bold")
    heading.append(f"  ({', '.join((*classes, confidence))})", "dim")
    yield heading
    yield Padding(Text(sentence(reason)), _INDENT)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", max_width=width)
    grid.add_column(overflow="fold")
    for name, seen in (*facts, ("confidence", f"{confidence}: {MEANINGS[confidence]}")):
        if seen and seen != "-":
            grid.add_row(Text(name), Text(seen))
    yield Padding(grid, _INDENT)
