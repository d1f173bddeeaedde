"""`lightkeeper top`: the ranks, live, as top and htop show processes."""

from __future__ import annotations

import argparse
import functools
from typing import Final

from monitor.commands.ask import add_monitor_option
from monitor.commands.errors import DONE
from monitor.commands.status import look_at
from monitor.commands.watch import Look, away_lines, live, need_terminal, seconds
from monitor.show.fleet_rows import RANK_ORDERS, Wanted
from monitor.show.screens import top_screen
from monitor.show.status import StatusFacts
from monitor.show.text_table import Line

EXAMPLES: Final = """\
examples:
  lightkeeper top                              who works longest for a step
  lightkeeper top --sort phase-age             who has been in one phase for longest
  lightkeeper top --group rg_1 --wide

It takes at most a twentieth of a core for looking: at ten thousand ranks it looks less often. In a
pipe: lightkeeper ranks --sort busy --limit 20.

exit status: 0 left, 1 no monitor answers, 2 wrong arguments, or no terminal
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `top`."""
    parser.add_argument("--sort", choices=tuple(RANK_ORDERS), default="busy", metavar="ORDER",
                        help="one of %(choices)s (default: %(default)s)")  # fmt: skip
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--group", action="append", default=[], metavar="NAME",
                        help="ranks of this group; repeatable")  # fmt: skip
    parser.add_argument("--host", action="append", default=[], metavar="NAME",
                        help="ranks on this host; repeatable")  # fmt: skip
    parser.add_argument("--unhealthy", action="store_true",
                        help="neither healthy nor waiting for others")  # fmt: skip
    parser.add_argument("--wide", action="store_true", help="more columns")
    parser.add_argument("--every", type=seconds, default=2.0, metavar="SECONDS",
                        help="pause between two looks (default: 2)")  # fmt: skip
    add_monitor_option(parser)


def run(args: argparse.Namespace) -> int:
    """Until Ctrl-C.

    Raises:
        CommandError: no terminal, or no monitor.
    """
    need_terminal("top", "ranks --sort busy --limit 20")
    wanted = Wanted(frozenset(args.group), frozenset(args.host), unhealthy=args.unhealthy)
    show = functools.partial(
        top_screen, order=args.sort, reverse=args.reverse, wide=args.wide, wanted=wanted
    )

    def draw(look: Look[StatusFacts], width: int, height: int) -> list[Line]:
        above = away_lines(look.away, width)
        return [*above, *show(look.seen, width, max(1, height - len(above)))]

    live(functools.partial(look_at, args), args.every, draw)
    return DONE
