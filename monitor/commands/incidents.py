"""`lightkeeper incidents`: what went wrong, what was done, what it cost; was it right?"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from rich.text import Text

from monitor.audit.amounts import bounds
from monitor.audit.choose import ChoiceError, span_s
from monitor.commands.ask import add_monitor_option, ask
from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.stored import Stored
from monitor.commands.story import Places, story
from monitor.commands.tables import cell, console, moment, print_json, table, word
from monitor.commands.watch import Look, add_watch_option, away_lines, live, need_terminal
from monitor.detectors.verdict import Kind
from monitor.reports.wording import counted
from monitor.terminal.grid import Line
from monitor.terminal.incidents import incidents_screen

EXAMPLES = """\
examples:
  lightkeeper incidents                         the latest, newest first, and what they came to
  lightkeeper incidents not_ent                 one, with its story: the beginning of its id will do
  lightkeeper incidents --since 7d --kind straggler --group rg_1
  lightkeeper incidents --store monitor.db      without a monitor
  lightkeeper incidents --format json | jq '.incidents[] | select(.state == "firing")'
  lightkeeper incidents --watch                 live

exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
docs/audit.md says how its cost is reckoned.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `incidents`."""
    parser.add_argument("id", nargs="?", help="show one incident; the beginning of its id will do")
    parser.add_argument("--limit", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--since", metavar="SPAN", help="not over for longer: 90s, 15m, 12h, 7d")
    parser.add_argument("--kind", choices=[str(kind) for kind in Kind], metavar="KIND")
    parser.add_argument("--group", metavar="GROUP", help="that accuse this replica group")
    parser.add_argument(
        "--format",
        choices=("text", "table", "json"),
        default="text",
        help="text for people (default; table is the same), json",
    )
    parser.add_argument(
        "--store",
        metavar="PLACE",
        help="read this monitor's store (a file, or the URL of a database) instead of asking it",
    )
    add_watch_option(parser)
    add_monitor_option(parser)


def run(args: argparse.Namespace) -> int:
    """The latest, or one with its story."""
    if args.watch is not None:
        return _watch(args)
    if args.store is not None:
        return _offline(args, Stored(args))
    if args.id is not None:
        return _one(args)
    body = ask(args, f"/v1/incidents?{_query(args, limit=args.limit)}")
    if args.format == "json":
        print_json(body)
        return DONE
    show_list(body["incidents"])
    show_totals(ask(args, f"/v1/audit?{_query(args)}"))
    return DONE


def _watch(args: argparse.Namespace) -> int:
    """The list, for as long as somebody looks."""
    for unwanted in ("id", "store"):
        if getattr(args, unwanted) is not None:
            raise CommandError("--watch is for the list of a running monitor", USAGE)

    def look() -> list[dict[str, Any]]:
        body = ask(args, f"/v1/incidents?{_query(args, limit=args.limit)}")
        return list(body["incidents"])

    need_terminal("--watch", "incidents --format json")
    live(look, args.watch, _draw)
    return DONE


def _draw(look: Look[list[dict[str, Any]]], width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    return [*top, *incidents_screen(look.seen, width, height - len(top))]


def _offline(args: argparse.Namespace, stored: Stored) -> int:
    """The same from a store."""
    if args.id is not None:
        _show_one(args, stored.one(args.id), Places(""))
    elif args.format == "json":
        print_json(stored.listed(args.limit))
    else:
        show_list(stored.listed(args.limit)["incidents"])
        show_totals(stored.totals())
    return DONE


def _query(args: argparse.Namespace, **more: Any) -> str:
    try:
        span_s(args.since or "1s")
    except ChoiceError as exc:
        raise CommandError(f"--{exc}", USAGE) from exc
    chosen = {"since": args.since, "kind": args.kind, "group": args.group, **more}
    return urlencode({name: value for name, value in chosen.items() if value is not None})


def show_list(incidents: list[dict[str, Any]]) -> None:
    """A line each."""
    shown = table(
        "incidents", "id", "since", "kind", "state", "severity", "culprits", "outcome", "saved",
        "what",
    )  # fmt: skip
    for one in incidents:
        account = one.get("account")  # an older monitor has none
        shown.add_row(
            cell(one["id"]),
            cell(moment(one["milestones"]["first_seen_s"])),
            cell(one["kind"]),
            word(one["state"]),
            word(one["severity"]),
            cell(one["culprits"]),
            cell(None if account is None else account["outcome"]),
            cell(None if account is None else bounds(account["saved"])),
            cell(one["says"]),
        )
    console().print(shown)


def show_totals(body: Mapping[str, Any]) -> None:
    """What they came to."""
    out = console()
    evictions = counted(body["evictions"], "eviction")
    out.print(Text(f"{evictions}; {counted(body['incidents'], 'incident')} fired"))
    lost, saved = _told(body["lost"]), _told(body["saved"])
    out.print(Text(f"lost {lost}; evictions saved {saved}", style="dim"))


def _told(amount: Mapping[str, Any]) -> str:
    unknown = amount["unknown"]
    tail = f" (and {unknown} of which it cannot be told)" if unknown else ""
    return f"{bounds(amount)} rank-seconds{tail}"


def _one(args: argparse.Namespace) -> int:
    body = ask(args, f"/v1/incidents/{quote(args.id, safe='')}")
    _show_one(args, body, Places(args.monitor.partition(",")[0], body.get("journal")))
    return DONE


def _show_one(args: argparse.Namespace, body: Mapping[str, Any], places: Places) -> None:
    if args.format == "json":
        print_json(body)
        return
    out = console()
    for line in story(body, places):
        out.print(Text(line.text, style=line.style), soft_wrap=True)
