"""`lightkeeper top`: the ranks, live, on a full screen."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, Final

from rich.console import Console, ConsoleDimensions, Group
from rich.live import Live
from rich.text import Text

from lightkeeper.monitor.commands.ask import Monitor, asking
from lightkeeper.monitor.commands.command import CommandError, Within, command, option
from lightkeeper.monitor.commands.printing import painted
from lightkeeper.monitor.commands.status import (
    RANK_ORDERS,
    of_group,
    of_host,
    sorted_by,
    unhealthy,
    wide,
)
from lightkeeper.monitor.model.units import clean, utc


@command()
@sorted_by(RANK_ORDERS, "busy")
@of_group
@of_host
@unhealthy
@wide
@option("--every", type=Within(0.2, 3600), default=2.0, metavar="SECONDS",
        help="pause between two looks")  # fmt: skip
@asking
def top(*, monitor: Monitor, every: float, **asked: Any) -> None:
    """The ranks, live, as top and htop show processes.

    examples:
      lightkeeper top                              who works longest for a step
      lightkeeper top --sort phase-age             who has been in one phase for longest
      lightkeeper top --group rg_1 --wide

    Looking takes at most a twentieth of a core: at ten thousand ranks it looks less often.
    In a pipe: lightkeeper get ranks --sort busy --limit 20.

    exit status: 0 you left it, 1 no monitor answers, 2 wrong arguments, or no terminal
    """
    if not sys.stdout.isatty():
        raise CommandError(
            "top needs a terminal; in a pipe: lightkeeper get ranks --sort busy --limit 20"
        )
    show_live(functools.partial(look_at, monitor, asked), every)


def look_at(monitor: Monitor, asked: Mapping[str, Any], width: int, height: int) -> list[str]:
    """The screen of `top`.

    Raises:
        CommandError: no monitor answers.
    """
    lines: list[str] = monitor.ask("/v1/top", **asked, width=width, height=height)["text"]
    return lines


# -- the screen ----------------------------------------------------------------------------------

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
