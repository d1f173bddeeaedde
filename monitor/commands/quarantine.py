"""`lightkeeper quarantine`: the hosts and groups that may not come back."""

from __future__ import annotations

import argparse
import getpass
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.secrets import add_token_option
from monitor.commands.tables import cell, console, moment, print_json, table

EXAMPLES = """\
examples:
  lightkeeper quarantine list
  lightkeeper quarantine add node17 --reason "ECC errors" --hours 48 --token-file token
  lightkeeper quarantine add --group rg_3 --reason "bad data shard" --token-file token
  lightkeeper quarantine release node17 --reason "DIMM changed" --token-file token
  lightkeeper quarantine history node17

a launcher asks before it starts a group:
  lightkeeper admit --monitor http://head:8470 -- torchrun ...
  curl -s 'http://head:8470/v1/admission?host=node17&group=rg_1'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`list`, `add`, `release`, `history`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="hosts and groups in quarantine")
    listing.add_argument(
        "--all", action="store_true", help="every host with a record, worst first, in or out"
    )
    adding = actions.add_parser("add", help="refuse a host, or a group, to launchers")
    adding.add_argument("--hours", type=float, help="for how long (default: until released)")
    adding.add_argument("--incident", metavar="ID", help="the incident that shows why")
    releasing = actions.add_parser("release", help="let a host or a group in again")
    history = actions.add_parser("history", help="what happened to a host or a group")
    for naming in (adding, releasing, history):
        naming.add_argument("host", nargs="?")
        naming.add_argument("--group", metavar="NAME", help="a replica group instead of a host")
    for changing in (adding, releasing):
        changing.add_argument(
            "--reason", required=changing is adding, help="why, for those who come later"
        )
        changing.add_argument(
            "--author", default=_login(), help="who asks, as people know you (default: %(default)s)"
        )
        add_token_option(changing)
    for one in (listing, adding, releasing, history):
        add_ask_options(one)


def run(args: argparse.Namespace) -> int:
    """List, add, release or tell."""
    match args.action:
        case "list":
            return _records(args) if args.all else _list(args)
        case "history":
            return _history(args)
        case "add":
            body = {
                "reason": args.reason,
                "hours": args.hours,
                "author": args.author,
                "incident_id": args.incident,
            }
            said = ask(args, _path(args), method="PUT", body=body)
        case _:
            body = {"reason": args.reason, "author": args.author}
            said = ask(args, _path(args), method="DELETE", body=body)
    if args.format == "json":
        print_json(said)
    elif "reset" in said:  # an older monitor does not say
        console().print(said["reset"], markup=False, highlight=False)
    return DONE


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid that nobody has a name for, as in some containers
        return f"uid {os.getuid()}"


def _path(args: argparse.Namespace) -> str:
    if (args.host is None) == (args.group is None):
        raise CommandError("name a host, or a group with --group NAME", USAGE)
    if args.group is not None:
        return f"/v1/quarantine/groups/{quote(args.group, safe='')}"
    return f"/v1/quarantine/{quote(args.host, safe='')}"


def _list(args: argparse.Namespace) -> int:
    body = ask(args, "/v1/quarantine")
    if args.format == "json":
        print_json(body)
        return DONE
    columns = ("host", "since", "until", "by", "why", "incident", "offences 28 d", "lemon")
    hosts = table("quarantine", *columns)
    for one in body["quarantine"]:
        hosts.add_row(*_cells(one, one["host"]))
    for one in body.get("groups", ()):
        hosts.add_row(*_cells(one, f"group {one['group']}"))
    console().print(hosts)
    return DONE


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


def _records(args: argparse.Namespace) -> int:
    body = ask(args, "/v1/hosts")
    if args.format == "json":
        print_json(body)
        return DONE
    columns = ("host", "groups", "quarantined", "incidents", "evictions", "quarantines",
               "by people", "failed again", "lemon")  # fmt: skip
    hosts = table("hosts, the last 28 days", *columns)
    for one in body["hosts"]:
        kinds = ", ".join(f"{kind} {count}" for kind, count in one["incidents"].items())
        again = f"{one['failed_readmissions']} of {one['readmissions']}"
        shown = (one["host"], one["groups"], one["quarantined"], kinds or "-", one["evictions"],
                 one["quarantines"], one["exclusions"], again, one["lemon"])  # fmt: skip
        hosts.add_row(*[cell(value) for value in shown])
    console().print(hosts)
    return DONE


def _history(args: argparse.Namespace) -> int:
    body = ask(args, _path(args))
    if args.format == "json":
        print_json(body)
        return DONE
    out = console()
    name = body.get("host") or f"group {body['group']}"
    lemon = (body.get("record") or {}).get("lemon")
    if lemon:
        out.print(f"{name} is a lemon: {lemon}", markup=False, highlight=False)
    lines = table(f"history of {name}", "when", "what", "until", "by", "why", "incident")
    for one in body["history"]:
        lasts = one["change"] in ("added", "extended", "shortened")
        shown = (moment(one["at_s"]), one["change"], _until(one["until_s"]) if lasts else "",
                 one["author"], one["reason"], one["incident_id"])  # fmt: skip
        lines.add_row(*[cell(value) for value in shown])
    out.print(lines)
    return DONE
