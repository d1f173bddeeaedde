"""`lightkeeper status` and `top`: what a running monitor sees, in short and live."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import click

from monitor.commands.ask import Monitor, asking
from monitor.commands.command import DONE, FAILED, CommandError, as_json, command, option
from monitor.commands.get import wanted_ranks
from monitor.commands.tables import console, pause_line, print_json, room, show_lines
from monitor.commands.watch import SECONDS, Look, away_lines, live, need_terminal, watch
from monitor.decide.view import IncidentReport, bundle_url
from monitor.decide.view_json import report_from_json
from monitor.show.fleet_rows import RANK_ORDERS, Wanted, fleet_of
from monitor.show.status import StatusFacts, answers_to_json, short, top_screen, training, trust
from monitor.show.text_table import Line, cut

NOT_WELL: Final = 3
_GROUPS: Final = 10
"""Groups that are listed; on a live screen as many as fit."""


def look_at(monitor: Monitor) -> StatusFacts:
    """One look at the monitor.

    Raises:
        CommandError: no monitor answers.
    """
    body = monitor.ask("/v1/snapshot")
    bodies = monitor.ask("/v1/incidents?since=1h&limit=20")["incidents"]
    recent = tuple(report_from_json(one) for one in bodies)
    try:
        tick_age_s, not_ready = monitor.ask("/readyz")["last_tick_age_s"], ""
    except CommandError as exc:
        if exc.exit_code != FAILED:
            raise
        tick_age_s, not_ready = None, str(exc)
    pause = pause_line(body["pause"]) if body.get("pause") else ""
    return StatusFacts(fleet_of(body), recent, tick_age_s, not_ready, pause)


@command()
@watch
@option("--check", is_flag=True,
        help="end with status 3 unless it trains and the monitor is to be trusted")  # fmt: skip
@as_json
@asking
def status(*, monitor: Monitor, watch: float | None, check: bool, as_json: bool) -> int:
    """Is it training, who holds it back, what did the keeper do, can the monitor be trusted?

    examples:
      lightkeeper status
      lightkeeper status --watch                    live
      lightkeeper status --format json | jq -r .training.is
      lightkeeper status --check || page-somebody   status 3: no training, or the monitor has doubts

    all ranks: lightkeeper get ranks; all groups: lightkeeper get groups; live: lightkeeper top

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments, 3 with --check: it does not train,
    or what the monitor says is not to be trusted
    """
    look = functools.partial(look_at, monitor)
    lines = functools.partial(short, link=functools.partial(_evidence, monitor.urls[0]))
    out = console()
    if watch is not None:
        need_terminal("--watch", "status --format json")
        seen = live(look, watch, functools.partial(_draw, lines)).seen
        show_lines(out, lines(seen, _GROUPS, room(out)))  # stays when the screen is gone
        return DONE
    seen = look()
    if as_json:
        print_json(answers_to_json(seen))
    else:
        show_lines(out, lines(seen, _GROUPS, room(out)))
    return NOT_WELL if check and not _well(seen) else DONE


def _draw(
    lines: Callable[..., list[Line]], look: Look[StatusFacts], width: int, height: int
) -> list[Line]:
    top = away_lines(look.away, width)
    foot: Line = [(cut("Ctrl-C: leave    all ranks: lightkeeper top", width), "dim")]
    fits = max(0, height - len(lines(look.seen, 0, width)) - len(top) - 4)
    return [*top, *lines(look.seen, fits, width), foot]


def _evidence(base: str, one: IncidentReport) -> str:
    """Where an incident's evidence is; `lightkeeper analyze` reads it."""
    return "" if one.bundle is None else f"{base}{bundle_url(one.incident.id)}"


def _well(seen: StatusFacts) -> bool:
    return training(seen.fleet).word in ("yes", "disturbed") and trust(seen).word == "trusted"


@command()
@option("--sort", type=click.Choice(tuple(RANK_ORDERS)), default="busy", metavar="ORDER",
        help=f"one of {', '.join(RANK_ORDERS)}")  # fmt: skip
@option("--reverse", is_flag=True, help="the other way round")
@wanted_ranks
@option("--wide", is_flag=True, help="more columns")
@option("--every", type=SECONDS, default=2.0, metavar="SECONDS", help="pause between two looks")
@asking
def top(
    *, monitor: Monitor, wanted: Wanted, sort: str, reverse: bool, wide: bool, every: float
) -> None:
    """The ranks, live, as top and htop show processes.

    examples:
      lightkeeper top                              who works longest for a step
      lightkeeper top --sort phase-age             who has been in one phase for longest
      lightkeeper top --group rg_1 --wide

    It takes at most a twentieth of a core for looking: at ten thousand ranks it looks less often.
    In a pipe: lightkeeper get ranks --sort busy --limit 20.

    exit status: 0 left, 1 no monitor answers, 2 wrong arguments, or no terminal
    """
    need_terminal("top", "get ranks --sort busy --limit 20")
    show = functools.partial(top_screen, order=sort, reverse=reverse, wide=wide, wanted=wanted)

    def draw(look: Look[StatusFacts], width: int, height: int) -> list[Line]:
        above = away_lines(look.away, width)
        return [*above, *show(look.seen, width, max(1, height - len(above)))]

    live(functools.partial(look_at, monitor), every, draw)
