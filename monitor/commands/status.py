"""`lightkeeper status`, `top` and `get`: what a running monitor sees, in short, live, in full."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Final

import click

from lightkeeper.monitor.commands.ask import STATUS, Monitor, asking
from lightkeeper.monitor.commands.command import (
    DONE,
    FAILED,
    CommandError,
    F,
    Within,
    as_json,
    command,
    gathered,
    option,
)
from lightkeeper.monitor.commands.options import no_such
from lightkeeper.monitor.commands.printing import (
    console,
    live,
    print_json,
    room,
    show_lines,
    show_table,
)
from lightkeeper.monitor.show.terminal import (
    GROUP_COLUMNS,
    GROUP_ORDERS,
    HOST_COLUMNS,
    RANK_ORDERS,
    Column,
    Row,
    RowFilter,
    columns_of,
    in_order,
    moment,
    rank_columns,
    status_screen,
    table,
    top_screen,
)

# -- `lightkeeper get ranks`, `groups` and `hosts`: all, or those that pass the filters ------------

_group: Final = option("--group", "groups", multiple=True, metavar="NAME",
                       help="of this replica group; repeatable")  # fmt: skip
_host: Final = option(
    "--host", "hosts", multiple=True, metavar="NAME", help="on this host; repeatable"
)
_unhealthy: Final = option("--unhealthy", is_flag=True,
                           help="neither healthy nor waiting for others")  # fmt: skip
_wanted_ranks: Final = gathered("wanted", RowFilter, _group, _host, _unhealthy)
_wanted_hosts: Final = gathered("wanted", RowFilter, _host, _unhealthy)
_limit: Final = option("--limit", type=Within(1, 1e7, int), metavar="N", help="show at most N")


def _order(orders: Sequence[str], first: str) -> Callable[[F], F]:
    return option("--sort", type=click.Choice(orders), default=first, metavar="ORDER",
                  help=f"one of {', '.join(orders)}; the longest, the furthest behind, the worst "
                  "first")  # fmt: skip


@command()
@_wanted_ranks
@_order(RANK_ORDERS, "rank")
@_limit
@option("--wide", is_flag=True, help="more columns")
@as_json
@asking
def ranks(
    *, monitor: Monitor, wanted: RowFilter, sort: str, limit: int | None, wide: bool, as_json: bool,
) -> None:  # fmt: skip
    """Every rank.

    examples:
      lightkeeper get ranks                                all of them
      lightkeeper get ranks --unhealthy                    neither healthy nor waiting for others
      lightkeeper get ranks --sort busy --limit 10         who works longest for a step
      lightkeeper get ranks --group rg_1 --wide            with commits, loss, quorum, address ...
      lightkeeper get ranks --sort phase-age --format json | jq -r '.ranks[0].rank'

    columns: for: since when it is in that phase; s/step: seconds a step takes; busy, wait: how many
    of them it works, and waits for others
    in a pipe: a line of names, then one line each; fields two spaces apart or more, `-` for what is
    not known: awk -F '  +'

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    body = monitor.ask("/v1/ranks")
    chosen = in_order(_wanted(body, "ranks", wanted), sort, "rank")
    columns = columns_of(rank_columns(wide=wide), body)
    _tell("ranks", chosen, limit, as_json, columns)


@command()
@_wanted_ranks
@_order(GROUP_ORDERS, "group")
@_limit
@as_json
@asking
def groups(
    *, monitor: Monitor, wanted: RowFilter, sort: str, limit: int | None, as_json: bool
) -> None:
    """Every replica group.

    examples:
      lightkeeper get groups
      lightkeeper get groups --sort heartbeat --limit 5    whom the Lighthouse has not heard longest
      lightkeeper get groups --unhealthy

    in a pipe: as lightkeeper get ranks

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    body = monitor.ask("/v1/groups")
    chosen = in_order(_wanted(body, "groups", wanted), sort, "group")
    _tell("groups", chosen, limit, as_json, columns_of(GROUP_COLUMNS, body))


@command()
@_wanted_hosts
@_limit
@as_json
@asking
def hosts(*, monitor: Monitor, wanted: RowFilter, limit: int | None, as_json: bool) -> None:
    """Every host: its ranks now, and its record.

    examples:
      lightkeeper get hosts                                worst first
      lightkeeper get hosts --unhealthy

    its record over time, and letting it in again: lightkeeper quarantine --help
    in a pipe: as lightkeeper get ranks

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    body = monitor.ask("/v1/hosts")
    chosen = _wanted(body, "hosts", wanted)
    _tell("hosts", chosen, limit, as_json, columns_of(HOST_COLUMNS, body))


@command()
@as_json
@asking
def runs(*, monitor: Monitor, as_json: bool) -> None:
    """Every start of the job that the monitor saw, newest first.

    examples:
      lightkeeper get runs
      lightkeeper incidents list --run 20261127-164512     what went wrong in one of them

    a run begins when a rank starts and nobody of the last run lives

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    body = monitor.ask("/v1/runs")
    if as_json:
        print_json(body)
        return
    rows = [
        (run["id"], moment(run["began_s"]), run["job"], f"{run['lasted_s']:.0f} s", run["ranks"],
         run["step"], run["incidents"])
        for run in body["runs"]
    ]  # fmt: skip
    columns = ("run", "began", "job", "lasted", "ranks", "step", "incidents")
    show_table(console(), "runs", columns, rows)


def _wanted(body: Row, what: str, wanted: RowFilter) -> list[Row]:
    """Refuse unknown names: an empty table would look like good news.

    Raises:
        CommandError: a name that does not exist.
    """
    rows: list[Row] = body[what]
    for kind, names in (("group", wanted.groups), ("host", wanted.hosts)):
        existing = {row[kind] for row in rows if row.get(kind)} if names else ()
        for name in names:
            if name not in existing:
                raise CommandError(no_such(kind, name, existing), FAILED)
    return list(filter(wanted, rows))


def _tell(
    what: str, chosen: Sequence[Row], limit: int | None, as_json: bool, columns: Sequence[Column]
) -> None:
    shown, more = chosen[:limit], len(chosen) - len(chosen[:limit])
    if as_json:
        print_json({"schema": 1, what: shown, "more": more})
        return
    out = console()
    show_lines(out, table(columns, shown, room(out)))
    if more:  # not on stdout: its lines are rows
        sys.stderr.write(f"and {more:,} more\n")


# -- `status` and `top` ---------------------------------------------------------------------------

NOT_WELL: Final = 3


@command()
@option("--check", is_flag=True,
        help="end with status 3 unless it trains and the monitor is to be trusted")  # fmt: skip
@as_json
@asking
def status(*, monitor: Monitor, check: bool, as_json: bool) -> int:
    """Is it training, who holds it back, what did the keeper do, can the monitor be trusted?

    examples:
      lightkeeper status
      lightkeeper status --format json | jq -r .training.is
      lightkeeper status --check || page-somebody   status 3: no training, or the monitor has doubts

    all ranks: lightkeeper get ranks; all groups: lightkeeper get groups; live: lightkeeper top

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments, 3 with --check: it does not train,
    or what the monitor says is not to be trusted
    """
    said = monitor.ask(STATUS)
    if as_json:
        print_json(said)
    else:
        out = console()
        show_lines(out, status_screen(said, room(out), monitor.urls[0]))
    well = said["training"]["is"] in ("yes", "disturbed") and said["monitor"]["is"] == "trusted"
    return NOT_WELL if check and not well else DONE


@command()
@_order(RANK_ORDERS, "busy")
@_wanted_ranks
@option("--wide", is_flag=True, help="more columns")
@option("--every", type=Within(0.2, 3600), default=2.0, metavar="SECONDS",
        help="pause between two looks")  # fmt: skip
@asking
def top(*, monitor: Monitor, wanted: RowFilter, sort: str, wide: bool, every: float) -> None:
    """The ranks, live, as top and htop show processes.

    examples:
      lightkeeper top                              who works longest for a step
      lightkeeper top --sort phase-age             who has been in one phase for longest
      lightkeeper top --group rg_1 --wide

    It takes at most a twentieth of a core for looking: at ten thousand ranks it looks less often.
    In a pipe: lightkeeper get ranks --sort busy --limit 20.

    exit status: 0 left, 1 no monitor answers, 2 wrong arguments, or no terminal
    """
    if not sys.stdout.isatty():
        raise CommandError(
            "top needs a terminal; in a pipe: lightkeeper get ranks --sort busy --limit 20"
        )
    screen = functools.partial(top_screen, order=sort, wide=wide, wanted=wanted)
    live(functools.partial(look_at, monitor), every, screen)


def look_at(monitor: Monitor) -> tuple[Row, Sequence[Row]]:
    """The status and every rank.

    Raises:
        CommandError: no monitor answers.
    """
    return monitor.ask(STATUS), monitor.ask("/v1/ranks")["ranks"]
