"""`lightkeeper status`, `top` and `get`: what a running monitor sees, in short, live, in full."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

import click

from lightkeeper.monitor.commands.ask import Monitor, asking
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
    moment,
    pause_line,
    print_json,
    room,
    show_lines,
)
from lightkeeper.monitor.decide.view import GroupView, IncidentReport, bundle_url
from lightkeeper.monitor.decide.view_json import RankJson, report_from_json
from lightkeeper.monitor.show.status import (
    StatusFacts,
    answers_to_json,
    short,
    top_screen,
    training,
    trust,
)
from lightkeeper.monitor.show.tables import (
    GROUP_COLUMNS,
    GROUP_ORDERS,
    HOST_COLUMNS,
    RANK_ORDERS,
    Column,
    HostRow,
    RowFilter,
    badness,
    fleet_of,
    groups_of,
    rank_columns,
    ranks_of,
    sorted_groups,
    sorted_hosts,
    sorted_ranks,
    table,
)
from lightkeeper.monitor.show.wording import clean

# -- `lightkeeper get ranks`, `groups` and `hosts`: all, or those that pass the filters ------------

T = TypeVar("T", RankJson, GroupView, HostRow)


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
@_order(tuple(RANK_ORDERS), "rank")
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
    raw = monitor.ask("/v1/ranks")["ranks"]
    _check_named("group", wanted.groups, (row["group"] for row in raw))
    _check_named("host", wanted.hosts, (row["host"] for row in raw))
    chosen = sorted_ranks(filter(wanted.rank, ranks_of(raw)), sort)
    by_name = {row["rank"]: row for row in raw}
    _tell("ranks", chosen, limit, as_json, columns=rank_columns(wide=wide),
          to_json=lambda rank: by_name[rank.rank])  # fmt: skip


@command()
@_wanted_ranks
@_order(tuple(GROUP_ORDERS), "group")
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
    raw = monitor.ask("/v1/groups")["groups"]
    _check_named("group", wanted.groups, (row["group"] for row in raw))
    chosen = sorted_groups(filter(wanted.group, groups_of(raw)), sort)
    by_name = {row["group"]: row for row in raw}
    _tell("groups", chosen, limit, as_json, columns=GROUP_COLUMNS,
          to_json=lambda group: by_name[group.group])  # fmt: skip


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
    records = monitor.ask("/v1/hosts")["hosts"]
    _check_named("host", wanted.hosts, (record["host"] for record in records))
    on: dict[str, list[RankJson]] = {}
    for rank in ranks_of(monitor.ask("/v1/ranks")["ranks"]):
        on.setdefault(rank.host, []).append(rank)
    rows = [host_row(record, on.get(record["host"], ())) for record in records]
    chosen = sorted_hosts(host for host in rows if wanted.host(host))
    _tell("hosts", chosen, limit, as_json, columns=HOST_COLUMNS, to_json=asdict)


def _check_named(kind: str, wanted: Iterable[str], existing: Iterable[str]) -> None:
    """Refuse unknown names: an empty table would look like good news.

    Raises:
        CommandError: a name that does not exist.
    """
    names = set(existing)
    for name in wanted:
        if name not in names:
            raise CommandError(no_such(kind, name, names), FAILED)


def host_row(record: Mapping[str, Any], ranks: Sequence[RankJson]) -> HostRow:
    busy = [rank.busy_s for rank in ranks if rank.busy_s is not None]
    return HostRow(
        name=clean(str(record["host"]), 120),
        health=min((rank.health for rank in ranks), key=badness, default="-"),
        groups=len({rank.group for rank in ranks}),
        ranks=len(ranks),
        busy_s=max(busy, default=None),
        incidents=sum(record["incidents"].values()),
        evictions=record["evictions"],
        lemon=record["lemon"] is not None,
        quarantined=record["quarantined"],
        until="released" if record["until_s"] is None else moment(record["until_s"]),
    )


def _tell(
    what: str, chosen: Sequence[T], limit: int | None, as_json: bool, *,
    columns: Sequence[Column], to_json: Callable[[T], Any],
) -> None:  # fmt: skip
    shown, more = chosen[:limit], len(chosen) - len(chosen[:limit])
    if as_json:
        print_json({"schema": 1, what: [to_json(item) for item in shown], "more": more})
        return
    out = console()
    show_lines(out, table(columns, shown, room(out)))
    if more:  # not on stdout: its lines are rows
        sys.stderr.write(f"and {more:,} more\n")


# -- `status` and `top` ---------------------------------------------------------------------------

NOT_WELL: Final = 3


def look_at(monitor: Monitor) -> StatusFacts:
    """One look at the monitor.

    Raises:
        CommandError: no monitor answers.
    """
    body = monitor.ask("/v1/snapshot")
    bodies = monitor.ask("/v1/incidents?since=1h&limit=20")["incidents"]
    recent = tuple(report_from_json(body) for body in bodies)
    try:
        tick_age_s, not_ready = monitor.ask("/readyz")["last_tick_age_s"], ""
    except CommandError as exc:
        if exc.exit_code != FAILED:
            raise
        tick_age_s, not_ready = None, str(exc)
    pause = pause_line(body["pause"]) if body.get("pause") else ""
    return StatusFacts(fleet_of(body), recent, tick_age_s, not_ready, pause)


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
    seen = look_at(monitor)
    if as_json:
        print_json(answers_to_json(seen))
    else:
        out, link = console(), functools.partial(_evidence, monitor.urls[0])
        show_lines(out, short(seen, room(out), link))
    return NOT_WELL if check and not _well(seen) else DONE


def _evidence(base: str, report: IncidentReport) -> str:
    """Where an incident's evidence is, for `lightkeeper analyze`."""
    return "" if report.bundle is None else f"{base}{bundle_url(report.incident.id)}"


def _well(seen: StatusFacts) -> bool:
    return training(seen.fleet).word in ("yes", "disturbed") and trust(seen).word == "trusted"


@command()
@_order(tuple(RANK_ORDERS), "busy")
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
