"""`lightkeeper status`, `get` and `incidents`: what a running monitor sees and has seen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import click

from lightkeeper.monitor.commands.ask import STATUS, Monitor, asking, path_to, show_answer
from lightkeeper.monitor.commands.command import DONE, F, Within, as_json, command, option

# -- `lightkeeper get ranks`, `groups` and `hosts`: all, or those that pass the filters ------------

RANK_ORDERS: Final = (
    "rank", "busy", "wait", "phase-age", "step", "commit-age", "health", "host",
)  # fmt: skip
"""As the monitor says them: the client loads none of what lays rows out."""
GROUP_ORDERS: Final = ("group", "health", "step", "heartbeat", "host")

of_group: Final = option("--group", multiple=True, metavar="NAME",
                       help="of this replica group; repeatable")  # fmt: skip
of_host: Final = option("--host", multiple=True, metavar="NAME", help="on this host; repeatable")
unhealthy: Final = option("--unhealthy", is_flag=True, flag_value=1, default=None,
                           help="neither healthy nor waiting for others")  # fmt: skip
wide: Final = option("--wide", is_flag=True, flag_value=1, default=None, help="more columns")
_limit: Final = option("--limit", type=Within(1, 1e7, int), metavar="N", help="show at most N")


def sorted_by(orders: Sequence[str], first: str) -> Callable[[F], F]:
    return option("--sort", type=click.Choice(orders), default=first, metavar="ORDER",
                  help=f"one of {', '.join(orders)}; the longest, the furthest behind, the worst "
                  "first")  # fmt: skip


@command()
@of_group
@of_host
@unhealthy
@sorted_by(RANK_ORDERS, "rank")
@_limit
@wide
@as_json
@asking
def ranks(*, monitor: Monitor, as_json: bool, **asked: Any) -> None:
    """Every rank.

    examples:
      lightkeeper get ranks                                all of them
      lightkeeper get ranks --unhealthy                    neither healthy nor waiting for others
      lightkeeper get ranks --sort busy --limit 10         who works longest for a step
      lightkeeper get ranks --group rg_1 --wide            with commits, loss, quorum, address ...
      lightkeeper get ranks --sort phase-age --format json | jq -r '.ranks[0].rank'

    columns: for: time in that phase; s/step: seconds that a step takes; busy, wait: how many of
    them it works, and waits for others
    in a pipe: a line of names, then one line each; fields two spaces apart or more, `-` for what is
    not known: awk -F '  +'

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    _get("ranks", monitor, as_json, asked)


@command()
@of_group
@of_host
@unhealthy
@sorted_by(GROUP_ORDERS, "group")
@_limit
@as_json
@asking
def groups(*, monitor: Monitor, as_json: bool, **asked: Any) -> None:
    """Every replica group.

    examples:
      lightkeeper get groups
      lightkeeper get groups --sort heartbeat --limit 5    whom the Lighthouse has not heard longest
      lightkeeper get groups --unhealthy

    in a pipe: as lightkeeper get ranks

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    _get("groups", monitor, as_json, asked)


@command()
@of_host
@unhealthy
@_limit
@as_json
@asking
def hosts(*, monitor: Monitor, as_json: bool, **asked: Any) -> None:
    """Every host: its ranks now, and its record.

    examples:
      lightkeeper get hosts                                worst first
      lightkeeper get hosts --unhealthy

    its record over time, and letting it in again: lightkeeper quarantine --help
    in a pipe: as lightkeeper get ranks

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    _get("hosts", monitor, as_json, asked)


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
    show_answer(monitor, "/v1/runs", as_json=as_json)


def _get(what: str, monitor: Monitor, as_json: bool, asked: Mapping[str, Any]) -> None:
    body = show_answer(monitor, f"/v1/{what}", as_json=as_json, **asked)
    if body["more"] and not as_json:  # not on stdout: its lines are rows
        sys.stderr.write(f"and {body['more']:,} more\n")


# -- `status` -----------------------------------------------------------------------------------

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
    said = show_answer(monitor, STATUS, as_json=as_json)
    well = said["training"]["is"] in ("yes", "disturbed") and said["monitor"]["is"] == "trusted"
    return NOT_WELL if check and not well else DONE


# -- `lightkeeper incidents`: what went wrong, what was done, what it cost ------------------------


@command("list")
@option("--limit", type=int, default=20, help="how many")
@option("--since", metavar="SPAN", help="open, or ended within SPAN: 90s, 15m, 12h, 7d")
@option("--kind", metavar="KIND", help="such as dead or straggler (docs/detection.md has all)")
@option("--group", metavar="GROUP", help="that accuse this replica group")
@option("--run", metavar="RUN", help="that began in this run (get runs), or `current`")
@as_json
@asking
def list_incidents(*, monitor: Monitor, as_json: bool, **chosen: Any) -> None:
    """The latest incidents, newest first, and what they came to.

    examples:
      lightkeeper incidents list
      lightkeeper incidents list --since 7d --kind straggler --group rg_1
      lightkeeper incidents list --format json | jq '.incidents[] | select(.state == "firing")'

    without a monitor, from its journal: lightkeeper replay

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    show_answer(monitor, "/v1/incidents", as_json=as_json, **chosen)


@command()
@click.argument("id")
@as_json
@asking
def show_incident(*, monitor: Monitor, id: str, as_json: bool) -> None:  # noqa: A002
    """One incident, with its story: what happened, what was done, what it cost.

    examples:
      lightkeeper incidents show not_ent     the beginning of its id will do

    exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
    docs/offline.md says what its cost is.
    """
    show_answer(monitor, path_to("incidents", id), as_json=as_json)
