"""`lightkeeper quarantine`: the hosts and groups that may not come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from monitor.commands.ask import Monitor, asking, changing, login
from monitor.commands.command import CommandError, as_json, command, gathered, option
from monitor.commands.printing import Sheet, cell, console, moment, print_json


def _path(host: str | None, group: str | None) -> str:
    if (host is None) == (group is None):
        raise CommandError("name a host, or a group with --group NAME")
    if group is not None:
        return f"/v1/quarantine/groups/{quote(group, safe='')}"
    return f"/v1/quarantine/{quote(host or '', safe='')}"


_named: Final = gathered(
    "path",
    _path,
    click.argument("host", required=False),
    option("--group", metavar="NAME", help="a replica group instead of a host"),
)
_author: Final = option(
    "--author", default=login, show_default="your login",
    help="who asks, as people know you",
)  # fmt: skip
_WHY: Final = "why, for those who come later"


@command()
@_named
@option("--reason", required=True, help=_WHY)
@option("--hours", type=float, help="for how long (default: until released)")
@option("--incident", "incident_id", metavar="ID", help="the incident that shows why")
@_author
@as_json
@changing
def add(*, monitor: Monitor, path: str, as_json: bool, **body: Any) -> None:
    """Refuse a host, or a group, to launchers.

    examples:
      lightkeeper quarantine add node17 --reason "ECC errors" --hours 48 --token-file token
      lightkeeper quarantine add --group rg_3 --reason "bad data shard" --token-file token
    """
    _tell(monitor.ask(path, method="PUT", body=body), as_json=as_json)


@command()
@_named
@option("--reason", help=_WHY)
@_author
@as_json
@changing
def release(*, monitor: Monitor, path: str, as_json: bool, **body: Any) -> None:
    """Let a host or a group in again.

    examples:
      lightkeeper quarantine release node17 --reason "DIMM changed" --token-file token
    """
    _tell(monitor.ask(path, method="DELETE", body=body), as_json=as_json)


def _tell(said: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(said)
    elif "reset" in said:  # an older monitor does not say
        console().print(said["reset"], markup=False, highlight=False)


@command("list")
@option("--all", "every", is_flag=True,
        help="every host with a record, worst first, in or out")  # fmt: skip
@as_json
@asking
def listed(*, monitor: Monitor, every: bool, as_json: bool) -> None:
    """Hosts and groups in quarantine.

    examples:
      lightkeeper quarantine list
      lightkeeper quarantine list --all     with what every host did in the last 28 days
    """
    body = monitor.ask("/v1/hosts" if every else "/v1/quarantine")
    if as_json:
        print_json(body)
    elif every:
        _show_records(body)
    else:
        _show_list(body)


def _show_list(body: Mapping[str, Any]) -> None:
    columns = ("host", "since", "until", "by", "why", "incident", "offences 28 d", "lemon")
    hosts = Sheet("quarantine", *columns)
    for one in body["quarantine"]:
        hosts.add_row(*_cells(one, one["host"]))
    for one in body.get("groups", ()):
        hosts.add_row(*_cells(one, f"group {one['group']}"))
    console().print(hosts)


def _cells(one: Mapping[str, Any], name: str) -> list[Any]:
    why = one["reason"] + (f" ({one['note']})" if one.get("note") else "")
    shown = (
        name,
        moment(one["since_s"]),
        _until(one["until_s"]),
        one["author"],
        why,
        one["incident_id"],
        one.get("offences"),
        one["lemon"] is not None if "lemon" in one else None,
    )
    return [cell(value) for value in shown]


def _until(until_s: float | None) -> str:
    return "released" if until_s is None else moment(until_s)


def _show_records(body: Mapping[str, Any]) -> None:
    columns = ("host", "groups", "quarantined", "incidents", "evictions", "quarantines",
               "by people", "failed again", "lemon")  # fmt: skip
    hosts = Sheet("hosts, the last 28 days", *columns)
    for one in body["hosts"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in one["incidents"].items())
        again = f"{one['failed_readmissions']} of {one['readmissions']}"
        shown = (one["host"], one["groups"], one["quarantined"], kinds or "-", one["evictions"],
                 one["quarantines"], one["exclusions"], again, one["lemon"])  # fmt: skip
        hosts.add_row(*[cell(value) for value in shown])
    console().print(hosts)


@command()
@_named
@as_json
@asking
def history(*, monitor: Monitor, path: str, as_json: bool) -> None:
    """What happened to a host or a group.

    examples:
      lightkeeper quarantine history node17
      lightkeeper quarantine history --group rg_3
    """
    body = monitor.ask(path)
    if as_json:
        print_json(body)
        return
    out = console()
    name = body.get("host") or f"group {body['group']}"
    lemon = (body.get("record") or {}).get("lemon")
    if lemon:
        out.print(f"{name} is a lemon: {lemon}", markup=False, highlight=False)
    lines = Sheet(f"history of {name}", "when", "what", "until", "by", "why", "incident")
    for one in body["history"]:
        lasts = one["change"] in ("added", "extended", "shortened")
        shown = (moment(one["at_s"]), one["change"], _until(one["until_s"]) if lasts else "",
                 one["author"], one["reason"], one["incident_id"])  # fmt: skip
        lines.add_row(*[cell(value) for value in shown])
    out.print(lines)
