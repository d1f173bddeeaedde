"""`--watch` and `top`: a live screen on a terminal, a line a change in a pipe."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from rich.console import Console, ConsoleDimensions
from rich.live import Live

from monitor.commands.errors import DONE, CommandError
from monitor.commands.keys import keys_of_terminal
from monitor.commands.looking import Away, Look, looking
from monitor.commands.paint import Painted
from monitor.commands.tables import moment
from monitor.terminal.changes import Fact, Facts, changed
from monitor.terminal.grid import Line, cut

T = TypeVar("T")
_EVERY_S: Final = 2.0
_LEAST_S, _MOST_S = 0.2, 3600.0
_ENDS: Final = frozenset({"q", "Q", "\x04"})


def add_watch_option(parser: argparse.ArgumentParser) -> None:
    """`--watch`."""
    parser.add_argument(
        "--watch",
        nargs="?",
        type=seconds,
        const=_EVERY_S,
        metavar="SECONDS",
        help="go on looking, every 2 s or as said: live on a terminal (q ends), in a pipe a line "
        "for each change",
    )


def seconds(text: str) -> float:
    """A pause between two looks."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _LEAST_S <= value <= _MOST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {_LEAST_S} to {_MOST_S:g}")
    return value


def on_terminal() -> bool:
    """Whether somebody looks, and can strike a key."""
    return sys.stdout.isatty() and sys.stdin.isatty()


Draw = Callable[[Look[T], int, int], list[Line]]
"""What is on the screen, from the latest look, in so many columns and rows."""


def live(
    ask: Callable[[], T], every_s: float, draw: Draw[T], struck: Callable[[str], object] = str
) -> Look[T]:
    """A whole screen until `q` or Ctrl-C; the last look. `struck`: what a key changes.

    Raises:
        CommandError: the first look failed.
    """
    console = Console()
    with keys_of_terminal() as (keys, wake_fd), looking(ask, every_s, wake_fd) as looks:
        try:
            with Live(console=console, screen=True, auto_refresh=False) as screen:
                while True:
                    look = looks.latest
                    # an exported COLUMNS would hold it at the size that it once had
                    width, height = os.get_terminal_size(sys.stdout.fileno())
                    console.size = ConsoleDimensions(width, height)
                    lines = draw(look, width, height)[:height]
                    screen.update(Painted(lines), refresh=True)
                    # only the age of a silence goes on by itself
                    found = keys.wait(1.0 if look.away else None)
                    if any(key in _ENDS for key in found):
                        return looks.latest
                    for key in found:
                        struck(key)
        except KeyboardInterrupt:
            return looks.latest


def away_lines(away: Away | None, width: int) -> list[Line]:
    """That what is shown is old, since when, and why; none when it is not."""
    if away is None:
        return []
    ago_s = max(0.0, time.time() - away.since_s)
    text = f" NO ANSWER since {moment(away.since_s)} ({ago_s:.0f} s); below is what was seen last "
    return [[(cut(text, width), "bold white on red")], [(cut(f" {away.why}", width), "red")]]


def tell(
    ask: Callable[[], T],
    every_s: float,
    facts: Callable[[T], Mapping[str, Fact]],
    first: Callable[[T], list[Fact]] = lambda _: [],
    *,
    as_json: bool,
) -> int:
    """A line a change, until Ctrl-C or until nobody reads.

    Raises:
        CommandError: the first look failed.
    """
    say = _as_json if as_json else _as_text
    before: Facts | None = None
    away = False
    try:
        for seen in _looks(ask, every_s):
            if isinstance(seen, CommandError):
                if not away:
                    say(Fact("answer", "away", str(seen)))
                away = True
            else:
                if away:
                    say(Fact("answer", "back", "the monitor answers again"))
                away = False
                now = facts(seen)
                for fact in (*([] if before is not None else first(seen)), *changed(before, now)):
                    say(fact)
                before = now
            sys.stdout.flush()
    except KeyboardInterrupt:
        pass
    return DONE


def _looks(ask: Callable[[], T], every_s: float) -> Iterator[T | CommandError]:
    """Answers, and why there is none; the first failure is raised."""
    yield ask()
    while True:
        time.sleep(every_s)
        try:
            yield ask()
        except CommandError as exc:
            yield exc


def _as_text(fact: Fact) -> None:
    sys.stdout.write(f"{moment(time.time())}  {fact.about}  {fact.word}  {fact.text}\n")


def _as_json(fact: Fact) -> None:
    body: dict[str, Any] = {
        "at_s": round(time.time(), 3), "about": fact.about, "is": fact.word, "says": fact.text,
    }  # fmt: skip
    sys.stdout.write(json.dumps(body) + "\n")
