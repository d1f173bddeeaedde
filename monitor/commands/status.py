"""`lightkeeper status`: what a running monitor sees."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.text import Text

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE
from monitor.commands.policy import pause_line
from monitor.commands.tables import age, cell, console, moment, print_json, table, word

STATUS_EXAMPLES = """\
examples:
  lightkeeper status
  lightkeeper status --monitor http://head:8470 --format json | jq '.ranks[] | .rank + " " + .phase'
  watch -n 1 lightkeeper status
"""


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    add_ask_options(parser)


def run_status(args: argparse.Namespace) -> int:
    """Groups, ranks, open incidents."""
    body = ask(args, "/v1/snapshot")
    if args.format == "json":
        print_json(body)
        return DONE
    out = console()
    for one in body.get("unknown", []):
        out.print(Text(f"! unknown: {one['kind']}: {one['why']}", style="magenta"))
    for trouble in body["troubles"]:
        out.print(Text(f"! {trouble}", style="yellow"))
    if pause := body.get("pause"):  # an older monitor has none
        out.print(Text(pause_line(pause), style="bold red"))
    if body["observe"]:
        out.print(Text("observe mode: nothing is evicted", style="bold cyan"))
    out.print(Text(_lighthouse(body["lighthouse"])))
    groups = table("replica groups", "group", "host", "health", "step", "commits", "quorum")
    for one in body["groups"]:
        groups.add_row(
            cell(one["group"]),
            cell(one["host"]),
            word(one["eviction"] or one["health"]),
            cell(one["step"]),
            cell(one["commits"]),
            cell(one["in_quorum"]),
        )
    out.print(groups)
    ranks = table("ranks", "rank", "health", "phase", "for", "step", "s/step", "busy s", "trouble")
    for one in body["ranks"]:
        away = one["unreachable"]
        ranks.add_row(
            cell(one["rank"]),
            word(one["health"]),
            cell(one["phase"]),
            cell(age(one["phase_age_s"])),
            cell(one["step"]),
            cell(one["step_s"]),
            cell(one["busy_s"]),
            cell("" if away is None else f"{away['reason']}: {away['detail']}"),
        )
    out.print(ranks)
    for one in body["incidents"]:
        out.print(
            Text(
                f"{one['severity']}, {one['state']}: {one['reason']} ({one['id']})",
                style="bold red",
            )
        )
        _print_bundle(out, args, one)
    for one in body["quarantine"]:
        until = moment(one["until_s"]) if one["until_s"] else "released"
        out.print(Text(f"quarantine: {one['host']} until {until}: {one['reason']}"))
    return DONE


def _print_bundle(out: Console, args: argparse.Namespace, incident: dict[str, Any]) -> None:
    """Where its evidence is; `lightkeeper analyze` reads it."""
    bundle = incident.get("bundle")  # an older monitor has none
    if bundle is not None:
        out.print(Text(f"  evidence: {args.monitor.rstrip('/')}{bundle['url']}", style="dim"))


def _lighthouse(lighthouse: dict[str, Any]) -> str:
    if not lighthouse["up"]:
        return f"Lighthouse away: {lighthouse['reason']}"
    members = ", ".join(member["group"] for member in lighthouse["members"]) or "nobody"
    return f"quorum {lighthouse['quorum_id']}: {members}"
