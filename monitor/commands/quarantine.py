"""`lightkeeper quarantine`: the hosts to which no group may come back."""

from __future__ import annotations

import argparse
from urllib.parse import quote

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE
from monitor.commands.tables import cell, console, moment, print_json, table
from monitor.commands.token import add_token_option, read_token

EXAMPLES = """\
examples:
  lightkeeper quarantine list
  lightkeeper quarantine add node17 --reason "ECC errors" --hours 48 --token-file token
  lightkeeper quarantine release node17 --token-file token

a launcher asks before it starts a group:
  curl -s 'http://head:8470/v1/admission?host=node17&group=rg_1'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`list`, `add`, `release`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="hosts in quarantine")
    add_ask_options(listing)
    adding = actions.add_parser("add", help="refuse a host to launchers")
    adding.add_argument("host")
    adding.add_argument("--reason", required=True, help="why, for those who come later")
    adding.add_argument("--hours", type=float, help="for how long (default: until released)")
    releasing = actions.add_parser("release", help="let a host in again")
    releasing.add_argument("host")
    for changing in (adding, releasing):
        add_token_option(changing)
        add_ask_options(changing)


def run(args: argparse.Namespace) -> int:
    """List, add or release."""
    match args.action:
        case "list":
            return _list(args)
        case "add":
            body = {"reason": args.reason, "hours": args.hours}
            said = ask(args, _path(args), method="PUT", body=body, token=_token(args))
        case _:
            said = ask(args, _path(args), method="DELETE", token=_token(args))
    if args.format == "json":
        print_json(said)
    return DONE


def _path(args: argparse.Namespace) -> str:
    return f"/v1/quarantine/{quote(args.host, safe='')}"


def _token(args: argparse.Namespace) -> str | None:
    return read_token(args.token_file)


def _list(args: argparse.Namespace) -> int:
    body = ask(args, "/v1/quarantine")
    if args.format == "json":
        print_json(body)
        return DONE
    hosts = table("quarantine", "host", "since", "until", "by", "why", "incident")
    for one in body["quarantine"]:
        hosts.add_row(
            cell(one["host"]),
            cell(moment(one["since_s"])),
            cell("released" if one["until_s"] is None else moment(one["until_s"])),
            cell(one["author"]),
            cell(one["reason"]),
            cell(one["incident_id"]),
        )
    console().print(hosts)
    return DONE
