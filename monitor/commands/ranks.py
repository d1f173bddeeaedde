"""`lightkeeper ranks`, `groups` and `hosts`: all of them, or those that are wanted."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE
from monitor.commands.tables import console, moment, print_json, room, show_lines
from monitor.decide.view import GroupView
from monitor.decide.view_json import RankJson
from monitor.show.fleet_rows import (
    GROUP_COLUMNS,
    GROUP_ORDERS,
    HEALTHS,
    HOST_COLUMNS,
    RANK_ORDERS,
    HostRow,
    Wanted,
    badness,
    group_cells,
    groups_of,
    rank_cells,
    rank_columns,
    ranks_of,
    sorted_groups,
    sorted_hosts,
    sorted_ranks,
)
from monitor.show.text_table import Cell, Column, lines_of
from monitor.show.wording import clean

T = TypeVar("T", RankJson, GroupView, HostRow)
_PIPE: Final = """\
in a pipe: a line of names, then one line each; fields two spaces apart or more, `-` for what is not
known: awk -F '  +'

exit status: 0 done, 1 no monitor answers, 2 wrong arguments
"""
RANKS_EXAMPLES: Final = f"""\
examples:
  lightkeeper ranks                                all of them
  lightkeeper ranks --unhealthy                    who is neither healthy nor waiting for others
  lightkeeper ranks --sort busy --limit 10         who works longest for a step
  lightkeeper ranks --group rg_1 --wide            with commits, loss, quorum, process and address
  lightkeeper ranks --sort phase-age --format json | jq -r '.ranks[0].rank'

columns: for: since when it is in that phase; s/step: seconds a step takes; busy, wait: how many of
them it works, and waits for others
{_PIPE}"""
GROUPS_EXAMPLES: Final = f"""\
examples:
  lightkeeper groups
  lightkeeper groups --sort heartbeat --limit 5    whom the Lighthouse has not heard for longest
  lightkeeper groups --health evicting --health dead

{_PIPE}"""
HOSTS_EXAMPLES: Final = f"""\
examples:
  lightkeeper hosts                                worst first
  lightkeeper hosts --unhealthy

its record over time, and letting it in again: lightkeeper quarantine --help
{_PIPE}"""


def add_ranks_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `ranks`."""
    _add_filters(parser, group=True)
    _add_order(parser, tuple(RANK_ORDERS), "rank")
    parser.add_argument("--wide", action="store_true", help="more columns")
    add_ask_options(parser)


def add_groups_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `groups`."""
    _add_filters(parser, group=True)
    _add_order(parser, tuple(GROUP_ORDERS), "group")
    add_ask_options(parser)


def add_hosts_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `hosts`."""
    _add_filters(parser, group=False)
    parser.add_argument("--limit", type=_limit, metavar="N", help="at most so many")
    add_ask_options(parser)


def _add_filters(parser: argparse.ArgumentParser, *, group: bool) -> None:
    many = "; repeatable"
    if group:
        parser.add_argument("--group", action="append", default=[], metavar="NAME",
                            help="of this replica group" + many)  # fmt: skip
    parser.add_argument("--host", action="append", default=[], metavar="NAME",
                        help="on this host" + many)  # fmt: skip
    parser.add_argument("--health", action="append", default=[], choices=(*HEALTHS, "evicting"),
                        metavar="WORD", help="one of %(choices)s" + many)  # fmt: skip
    parser.add_argument("--unhealthy", action="store_true",
                        help="neither healthy nor waiting for others")  # fmt: skip


def _add_order(parser: argparse.ArgumentParser, orders: Sequence[str], first: str) -> None:
    parser.add_argument("--sort", choices=orders, default=first, metavar="ORDER",
                        help="one of %(choices)s (default: %(default)s); the longest, the furthest "
                        "behind, the worst first")  # fmt: skip
    parser.add_argument("--reverse", action="store_true", help="the other way round")
    parser.add_argument("--limit", type=_limit, metavar="N", help="at most so many")


def _limit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= 10_000_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def wanted_of(args: argparse.Namespace) -> Wanted:
    """The filters that the options say."""
    return Wanted(
        groups=frozenset(getattr(args, "group", ())),
        hosts=frozenset(args.host),
        healths=frozenset(args.health),
        unhealthy=args.unhealthy,
    )


def run_ranks(args: argparse.Namespace) -> int:
    """All ranks, or those wanted."""
    raw = ask(args, "/v1/ranks")["ranks"]
    wanted = wanted_of(args)
    ranks = sorted_ranks(filter(wanted.rank, ranks_of(raw)), args.sort, reverse=args.reverse)
    told = {one["rank"]: one for one in raw}
    cells = functools.partial(rank_cells, wide=args.wide)
    return _tell(args, "ranks", ranks, columns=rank_columns(wide=args.wide), cells=cells,
                 to_json=lambda one: told[one.rank])  # fmt: skip


def run_groups(args: argparse.Namespace) -> int:
    """All groups, or those wanted."""
    raw = ask(args, "/v1/groups")["groups"]
    wanted = wanted_of(args)
    groups = sorted_groups(filter(wanted.group, groups_of(raw)), args.sort, reverse=args.reverse)
    told = {one["group"]: one for one in raw}
    return _tell(args, "groups", groups, columns=GROUP_COLUMNS, cells=group_cells,
                 to_json=lambda one: told[one.group])  # fmt: skip


def run_hosts(args: argparse.Namespace) -> int:
    """All hosts, or those wanted: their ranks now, and their record."""
    records = ask(args, "/v1/hosts")["hosts"]
    ranks: dict[str, list[RankJson]] = {}
    for one in ranks_of(ask(args, "/v1/ranks")["ranks"]):
        ranks.setdefault(one.host, []).append(one)
    wanted = wanted_of(args)
    rows = [host_row(record, ranks.get(record["host"], ())) for record in records]
    chosen = sorted_hosts(one for one in rows if wanted.host(one))
    return _tell(args, "hosts", chosen, columns=HOST_COLUMNS, cells=HostRow.cells,
                 to_json=HostRow.to_json)  # fmt: skip


def host_row(record: Mapping[str, Any], ranks: Sequence[RankJson]) -> HostRow:
    """One host, from its record and its ranks."""
    busy = [one.busy_s for one in ranks if one.busy_s is not None]
    return HostRow(
        name=clean(str(record["host"]), 120),
        health=min((one.health for one in ranks), key=badness, default="-"),
        groups=len({one.group for one in ranks}),
        ranks=len(ranks),
        busy_s=max(busy, default=None),
        incidents=sum(record["incidents"].values()),
        evictions=record["evictions"],
        quarantined=record["quarantined"],
        until="released" if record["until_s"] is None else moment(record["until_s"]),
    )


def _tell(
    args: argparse.Namespace,
    what: str,
    chosen: Sequence[T],
    *,
    columns: Sequence[Column],
    cells: Callable[[T], Sequence[Cell]],
    to_json: Callable[[T], Any],
) -> int:
    shown, more = chosen[: args.limit], len(chosen) - len(chosen[: args.limit])
    if args.format == "json":
        print_json({"schema": 1, what: [to_json(one) for one in shown], "more": more})
        return DONE
    out = console()
    show_lines(out, lines_of(columns, [cells(one) for one in shown], room(out)))
    if more:  # not among the rows: who counts lines counts rows
        sys.stderr.write(f"and {more:,} more\n")
    return DONE
