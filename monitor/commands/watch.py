"""`--watch` and `top`: a live screen on a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Final, Generic, TypeVar

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from monitor.commands.command import CommandError, Within, option
from monitor.commands.tables import Painted, moment
from monitor.show.text_table import Line, cut

T = TypeVar("T")
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The screen is put back."""
_BUDGET: Final = 0.05
"""Largest share of one core that a live screen may take: with many ranks it looks less often."""


@dataclass(frozen=True, slots=True)
class Away:
    """The monitor gives no answer."""

    since_s: float
    """Unix time."""
    why: str


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """The latest answer, and whether it is old."""

    seen: T
    at_s: float
    away: Away | None = None


SECONDS: Final = Within(0.2, 3600)
"""A pause between two looks."""
watch: Final = option(
    "--watch", type=SECONDS, is_flag=False, flag_value=2.0, metavar="[SECONDS]",
    help="go on looking, every 2 s or as said: live on a terminal (Ctrl-C ends)",
)  # fmt: skip


def need_terminal(what: str, instead: str) -> None:
    """Somebody has to look.

    Raises:
        CommandError: no terminal.
    """
    if not sys.stdout.isatty():
        raise CommandError(f"{what} needs a terminal; in a pipe: lightkeeper {instead}")


Draw = Callable[[Look[T], int, int], list[Line]]
"""What is on the screen, from the latest look, in so many columns and rows."""


def live(ask: Callable[[], T], every_s: float, draw: Draw[T]) -> Look[T]:
    """A whole screen until Ctrl-C; the last look.

    Raises:
        CommandError: the first look failed.
    """
    console = Console()
    look = Look(ask(), time.time())
    ends: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ends.append(number)  # an exception alone is lost where a library swallows it
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    before = {one: signal.signal(one, end) for one in _ENDS}
    try:
        with Live(console=console, screen=True, auto_refresh=False) as screen:
            while not ends:
                used_s = time.process_time()
                # an exported COLUMNS would hold it at the size that it once had
                width, height = os.get_terminal_size(sys.stdout.fileno())
                console.size = ConsoleDimensions(width, height)
                screen.update(Painted(draw(look, width, height)[:height]), refresh=True)
                look = _again(ask, look)
                used_s = time.process_time() - used_s
                time.sleep(max(every_s, used_s / _BUDGET))
    except KeyboardInterrupt:
        pass
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    if ends and ends[0] != signal.SIGINT:  # and the exception was swallowed
        raise SystemExit(128 + ends[0])
    return look


def _again(ask: Callable[[], T], before: Look[T]) -> Look[T]:
    try:
        return Look(ask(), time.time())
    except CommandError as exc:
        since_s = before.at_s if before.away is None else before.away.since_s
        return Look(before.seen, before.at_s, Away(since_s, str(exc)))


def away_lines(away: Away | None, width: int) -> list[Line]:
    """That what is shown is old, since when, and why; none when it is not."""
    if away is None:
        return []
    ago_s = max(0.0, time.time() - away.since_s)
    text = f" NO ANSWER since {moment(away.since_s)} ({ago_s:.0f} s); below is what was seen last "
    return [[(cut(text, width), "bold white on red")], [(cut(f" {away.why}", width), "red")]]
