"""`lightkeeper incidents list` and `show`: what went wrong, what was done, what it cost."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from lightkeeper.monitor.commands.ask import Monitor, asking, login, tell
from lightkeeper.monitor.commands.command import as_json, command, option
from lightkeeper.monitor.commands.printing import console, moment, print_json, show_table, text
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import counted, suspects

_NAMES: Final = 12
"""Most suspects named."""


@command("list")
@option("--limit", type=int, default=20, help="how many")
@option("--since", metavar="SPAN", help="open, or ended within SPAN: 90s, 15m, 12h, 7d")
@option("--kind", type=click.Choice([str(kind) for kind in Kind]), metavar="KIND",
        help=f"one of {', '.join(Kind)}")  # fmt: skip
@option("--group", metavar="GROUP", help="that accuse this replica group")
@option("--run", metavar="RUN", help="that began in this run (get runs), or `current`")
@as_json
@asking
def listed(*, monitor: Monitor, as_json: bool, **chosen: Any) -> None:
    """The latest incidents, newest first, and what they came to.

    examples:
      lightkeeper incidents list
      lightkeeper incidents list --since 7d --kind straggler --group rg_1
      lightkeeper incidents list --format json | jq '.incidents[] | select(.state == "firing")'

    without a monitor, from its journal: lightkeeper replay

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    body = monitor.ask(f"/v1/incidents?{query}")
    if as_json:
        print_json(body)
        return
    columns = ("id", "since", "kind", "state", "severity", "who", "outcome", "lost", "what")
    rows = [
        (report["id"], moment(report["milestones"]["first_seen_s"]), report["kind"],
         report["state"], report["severity"],
         suspects(report["culprits"], report["candidates"], _NAMES), report["account"]["outcome"],
         _amount(report["account"]["lost"]), report["says"])
        for report in body["incidents"]
    ]  # fmt: skip
    out, totals = console(), body["totals"]
    show_table(out, "incidents", columns, rows)
    fired, evictions = f"{counted(totals['incidents'], 'incident')} fired", totals["evictions"]
    out.print(text(f"{counted(evictions, 'eviction')}; {fired}" if evictions else fired))
    tail = f" (and {totals['unknown']} of which it cannot be told)" if totals["unknown"] else ""
    lost = f"lost at least {_amount(totals['lost'])} rank-seconds{tail}"
    out.print(text(lost, style="dim"))


def _amount(rank_seconds: float | None) -> str:
    return "cannot tell" if rank_seconds is None else f"{rank_seconds:.0f}"


@command()
@click.argument("id")
@option("--reason", required=True, metavar="TEXT", help="why it will not come back")
@as_json
@asking
def close(*, monitor: Monitor, id: str, reason: str, as_json: bool) -> None:  # noqa: A002
    """Close the incident of a missing group, which nothing else ends but its return.

    examples:
      lightkeeper incidents close absent-rg_2-1795830642400 --reason "the node is returned"

    exit status: 0 it is closed, 1 no monitor answers or there is no such open incident, 2 wrong
    arguments
    """
    path = f"/v1/incidents/{quote(id, safe='')}/close"
    said = monitor.ask(path, method="POST", body={"reason": reason, "author": login()})
    tell(said, f"closed: {id}", as_json=as_json)


@command()
@click.argument("id")
@as_json
@asking
def show(*, monitor: Monitor, id: str, as_json: bool) -> None:  # noqa: A002
    """One incident, with its story: what happened, what was done, what it cost.

    examples:
      lightkeeper incidents show not_ent     the beginning of its id will do

    exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
    docs/offline.md says what its cost is.
    """
    body = monitor.ask(f"/v1/incidents/{quote(id, safe='')}")
    if as_json:
        print_json(body)
        return
    out = console()
    for number, line in enumerate(body["text"]):
        title = "" if line.startswith(" ") else "bold cyan"
        style = ("bold", "dim", title)[min(number, 2)]
        printable = "".join(char for char in line if char.isprintable())
        out.print(Text(printable, style), soft_wrap=True)
