"""`lightkeeper incidents list` and `show`: what went wrong, what was done, what it cost."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from lightkeeper.monitor.commands import ask
from lightkeeper.monitor.commands.ask import Monitor, asking, login, tell
from lightkeeper.monitor.commands.command import as_json, command, option


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
    ask.show_answer(monitor, "/v1/incidents", as_json=as_json, **chosen)


@command()
@click.argument("id")
@option("--reason", required=True, metavar="TEXT", help="why it will not come back")
@as_json
@asking
def close_incident(*, monitor: Monitor, id: str, reason: str, as_json: bool) -> None:  # noqa: A002
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
def show_incident(*, monitor: Monitor, id: str, as_json: bool) -> None:  # noqa: A002
    """One incident, with its story: what happened, what was done, what it cost.

    examples:
      lightkeeper incidents show not_ent     the beginning of its id will do

    exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
    docs/offline.md says what its cost is.
    """
    ask.show_answer(monitor, f"/v1/incidents/{quote(id, safe='')}", as_json=as_json)
