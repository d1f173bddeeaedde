"""`lightkeeper status` and `lightkeeper incidents`: what a running monitor sees."""

from __future__ import annotations

import argparse
from typing import Any
from urllib.parse import quote

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
INCIDENTS_EXAMPLES = """\
examples:
  lightkeeper incidents                     the latest, newest first
  lightkeeper incidents ID                  one, with its story
  lightkeeper incidents --format json | jq '.incidents[] | select(.state == "firing")'
"""


def add_status_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `status`."""
    add_ask_options(parser)


def add_incidents_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `incidents`."""
    parser.add_argument("id", nargs="?", help="show one incident with its story")
    parser.add_argument("--limit", type=int, default=20, help="how many (default: %(default)s)")
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


def run_incidents(args: argparse.Namespace) -> int:
    """The latest incidents, or one with its story."""
    if args.id is not None:
        return _one(args)
    body = ask(args, f"/v1/incidents?limit={args.limit}")
    if args.format == "json":
        print_json(body)
        return DONE
    incidents = table("incidents", "id", "since", "kind", "state", "severity", "culprits", "what")
    for one in body["incidents"]:
        incidents.add_row(
            cell(one["id"]),
            cell(moment(one["milestones"]["first_seen_s"])),
            cell(one["kind"]),
            word(one["state"]),
            word(one["severity"]),
            cell(one["culprits"]),
            cell(one["reason"]),
        )
    console().print(incidents)
    return DONE


def _reason(row: dict[str, Any]) -> str:
    """Of a decision, with what would release a hold and what observe mode held back."""
    said = str(row["reason"])
    if would := row.get("would"):
        hosts = ", ".join(would["quarantine"]) or "no host"
        said += f" (rungs: {', '.join(would['rungs'])}; quarantine: {hosts})"
    return f"{said}; released by: {row['release']}" if row.get("release") else said


def _one(args: argparse.Namespace) -> int:
    body = ask(args, f"/v1/incidents/{quote(args.id, safe='')}")
    if args.format == "json":
        print_json(body)
        return DONE
    out = console()
    out.print(
        Text(f"{body['id']}: {body['kind']}, {body['severity']}, {body['state']}", style="bold")
    )
    out.print(Text(body["reason"]))
    for source, seen in body["evidence"].items():
        out.print(Text(f"  {source}: {seen}"))
    story = table("story", "when", "after", "to", "why")
    began_s = body["milestones"]["first_seen_s"]
    lines = [(line["at_s"], line["to"], line["reason"]) for line in body["story"]]
    lines += [
        (row["at_s"], f"{row['action']} {row['guard'] or ''}".strip(), _reason(row))
        for row in body["decisions"]
    ]
    for rung in (body["eviction"] or {}).get("rungs", []):
        lines.append((rung["started_s"], rung["rung"], rung["detail"]))
    for at_s, to, reason in sorted(lines, key=lambda line: line[0]):
        story.add_row(cell(moment(at_s)), cell(f"{at_s - began_s:+.1f} s"), word(to), cell(reason))
    out.print(story)
    _print_bundle(out, args, body)
    if body["resolution"]:
        out.print(Text(f"resolved: {body['resolution']}", style="green"))
    return DONE
