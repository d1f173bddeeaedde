"""`lightkeeper status`: the short answer of a running monitor."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any, Final

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE, FAILED, CommandError
from monitor.commands.policy import pause_line
from monitor.commands.tables import console, print_json, room, show_lines
from monitor.commands.watch import add_watch_option, away_lines, live, need_terminal
from monitor.decide.view import IncidentReport, bundle_url
from monitor.decide.view_json import report_from_json
from monitor.show.fleet_rows import fleet_of
from monitor.show.screens import short
from monitor.show.status import StatusFacts, answers_to_json, training, trust
from monitor.show.text_table import Line, cut

STATUS_EXAMPLES: Final = """\
examples:
  lightkeeper status
  lightkeeper status --watch                    live
  lightkeeper status --format json | jq -r .training.is
  lightkeeper status --check || page-somebody   status 3: no training, or the monitor has doubts

all ranks: lightkeeper ranks; all groups: lightkeeper groups; live: lightkeeper top

exit status: 0 done, 1 no monitor answers, 2 wrong arguments, 3 with --check: it does not train, or
what the monitor says is not to be trusted
"""
NOT_WELL: Final = 3
_GROUPS: Final = 10
"""Groups that are listed; on a live screen as many as fit."""


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    add_watch_option(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="end with status 3 unless it trains and the monitor is to be trusted",
    )
    add_ask_options(parser)


def run_status(args: argparse.Namespace) -> int:
    """Is it training, who holds it back, what did the keeper do, can the monitor be trusted?"""
    look = functools.partial(look_at, args)
    out = console()
    if args.watch is None:
        seen = look()
        if args.format == "json":
            print_json(answers_to_json(seen))
        else:
            show_lines(out, short(seen, _GROUPS, room(out), _links(args)))
        return NOT_WELL if args.check and not _well(seen) else DONE
    need_terminal("--watch", "status --format json")
    last = live(look, args.watch, functools.partial(_draw, args))
    show_lines(
        out, short(last.seen, _GROUPS, room(out), _links(args))
    )  # stays when the screen is gone
    return DONE


def look_at(args: argparse.Namespace) -> StatusFacts:
    """One look at the monitor.

    Raises:
        CommandError: no monitor answers.
    """
    body = ask(args, "/v1/snapshot")
    bodies = ask(args, "/v1/incidents?since=1h&limit=20")["incidents"]
    recent = tuple(report_from_json(one) for one in bodies)
    tick_age_s, not_ready = _ready(args)
    pause = body.get("pause")
    switch = pause_line(pause) if pause else ""
    return StatusFacts(fleet_of(body), recent, tick_age_s, not_ready, switch)


def _ready(args: argparse.Namespace) -> tuple[float | None, str]:
    try:
        return ask(args, "/readyz")["last_tick_age_s"], ""
    except CommandError as exc:
        if exc.status != FAILED:
            raise
        return None, str(exc)


def _draw(args: argparse.Namespace, look: Any, width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    foot: Line = [(cut("Ctrl-C: leave    all ranks: lightkeeper top", width), "dim")]
    fixed = len(short(look.seen, 0, width, _links(args)))
    fits = max(0, height - fixed - len(top) - 4)
    return [*top, *short(look.seen, fits, width, _links(args)), foot]


def _links(args: argparse.Namespace) -> Callable[[IncidentReport], str]:
    """Where an incident's evidence is; `lightkeeper analyze` reads it."""
    base = args.monitor.partition(",")[0].rstrip("/")

    def link(one: IncidentReport) -> str:
        return "" if one.bundle is None else f"{base}{bundle_url(one.incident.id)}"

    return link


def _well(seen: StatusFacts) -> bool:
    return training(seen.fleet).word in ("yes", "disturbed") and trust(seen).word == "trusted"
