"""`lightkeeper policy`: check a policy file, show the policy that holds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from monitor.commands.ask import add_ask_options, ask, login
from monitor.commands.errors import DONE, USAGE, CommandError
from monitor.commands.secrets import add_token_option
from monitor.commands.tables import cell, console, figure, moment, print_json, table
from monitor.decide.rules import Effective, PolicyError
from monitor.decide.view_json import effective_to_json
from monitor.rulebook import effective

# `lightkeeper pause` and `lightkeeper resume`: the big red switch.

PAUSE_EXAMPLES = """\
examples:
  lightkeeper pause --reason "switch firmware, rack 7" --hours 2 --token-file token
  lightkeeper pause --reason "it evicts the wrong ones" --token-file token   until resumed

Nobody is evicted meanwhile but by hand; faults are still seen, recorded and told. It survives a
restart of the monitor. Times that come again every week: [[maintenance]] of the policy file.
"""
RESUME_EXAMPLES = """\
examples:
  lightkeeper resume --token-file token
"""


def add_pause_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `pause`."""
    parser.add_argument("--reason", required=True, help="why, for those who come later")
    parser.add_argument("--hours", type=float, help="for how long (default: until resumed)")
    add_resume_arguments(parser)


def add_resume_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `resume`."""
    add_token_option(parser)
    add_ask_options(parser)


def run_pause(args: argparse.Namespace) -> int:
    """Evict nobody from now on."""
    body = {"reason": args.reason, "hours": args.hours, "author": login()}
    said = ask(args, "/v1/pause", method="POST", body=body)
    if args.format == "json":
        print_json(said)
    else:
        console().print(Text(pause_line(said["pause"]), style="bold red"))
    return DONE


def run_resume(args: argparse.Namespace) -> int:
    """Evict again."""
    said = ask(args, "/v1/pause", method="DELETE")
    if args.format == "json":
        print_json(said)
    else:
        console().print(Text("resumed: evictions are decided again", style="green"))
    return DONE


EXAMPLES = """\
examples:
  lightkeeper policy check policy.toml          all that is wrong with it, one line each; exit 2
  lightkeeper policy show                       of the running monitor, with who said what
  lightkeeper policy show --default --format json
  lightkeeper policy show --file policy.toml    what it would come to, all options
  lightkeeper policy reload --token-file token  as `kill -HUP` of the monitor does

a file with every option and its default: docs/policy.example.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`check`, `show`, `reload`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    checking = actions.add_parser("check", help="whether a policy file can be used")
    checking.add_argument("file", type=Path, metavar="FILE")
    checking.add_argument(
        "--format", choices=("text", "json"), default="text", help="text for people (default)"
    )
    showing = actions.add_parser("show", help="the policy that holds")
    which = showing.add_mutually_exclusive_group()
    which.add_argument("--default", action="store_true", help="that of a monitor without a file")
    which.add_argument("--file", type=Path, metavar="FILE", help="what this file comes to")
    reloading = actions.add_parser("reload", help="make the monitor read its policy file again")
    add_token_option(reloading)
    for asking in (showing, reloading):
        add_ask_options(asking)


def refused(exc: PolicyError) -> CommandError:
    """Every problem but the last on standard error, one line each; the last as the error."""
    for problem in exc.problems[:-1]:
        sys.stderr.write(f"lightkeeper: {' '.join(problem.split())}\n")
    return CommandError(exc.problems[-1], USAGE)


def run(args: argparse.Namespace) -> int:
    """Check, show or reload."""
    match args.action:
        case "check":
            return _check(args)
        case "reload":
            body = ask(args, "/v1/policy/reload", method="POST", body={"author": login()})
        case _ if args.default or args.file is not None:
            body = effective_to_json(_of_file(args.file), 0.0)
        case _:
            body = ask(args, "/v1/policy")
    if args.format == "json":
        print_json(body)
    else:
        _print(console(), body)
    return DONE


def _check(args: argparse.Namespace) -> int:
    """All that is wrong with a file; 2 if anything is."""
    if args.format == "json":
        try:
            effective(args.file, {}, loaded_s=0.0)
            problems: tuple[str, ...] = ()
        except PolicyError as exc:
            problems = tuple(exc.problems)
        body = {"schema": 1, "file": str(args.file), "ok": not problems, "problems": problems}
        print_json(body)
        return USAGE if problems else DONE
    _of_file(args.file)
    console().print(Text(f"{args.file}: a policy that can be used"))
    return DONE


def _of_file(path: Path | None) -> Effective:
    try:
        return effective(path, {}, loaded_s=0.0)
    except PolicyError as exc:
        raise refused(exc) from exc


def _print(out: Console, body: dict[str, Any]) -> None:
    source = body["source"] or "no file: the defaults"
    loaded = f", loaded {moment(body['loaded_s'])}" if body["loaded_s"] else ""
    out.print(Text(f"policy: {source}{loaded}; mode: {body['mode']}", style="bold"))
    for problem in body.get("problems", []):
        out.print(Text(f"! not reloaded: {problem}", style="yellow"))
    if body.get("pause"):
        out.print(Text(pause_line(body["pause"]), style="bold red"))
    actions = table("actions", "kind", "info", "warning", "critical")
    for kind, row in body["actions"].items():
        actions.add_row(cell(kind), *(cell(row[one]) for one in ("info", "warning", "critical")))
    out.print(actions)
    options = table("options", "name", "value", "said by", "changes by")
    for part in ("guards", "thresholds"):
        for name, one in body[part].items():
            if part == "guards" or one["from"] != "default":
                options.add_row(
                    cell(name), cell(figure(one["value"])), cell(one["from"]), cell(one["change"])
                )
    out.print(options)
    same = sum(one["from"] == "default" for one in body["thresholds"].values())
    out.print(Text(f"{same} thresholds have their default (--format json shows them)", style="dim"))
    for name, value in body["after_restart"].items():
        out.print(Text(f"! {name} = {value} from the next restart on", style="yellow"))
    for name, one in body.get("learned", {}).items():
        out.print(Text(f"{name}: " + ", ".join(f"{key} {held}" for key, held in one.items())))
    for window in body["maintenance"]:
        days = f" on {', '.join(window['days'])}" if "days" in window else ""
        out.print(Text(f"maintenance: {window['name']}: {window['from']} to {window['to']}{days}"))


def pause_line(pause: dict[str, Any]) -> str:
    """The big red switch in one line."""
    until = "until `lightkeeper resume`" if pause["until_s"] is None else moment(pause["until_s"])
    ends = until if pause["until_s"] is None else f"until {until}"
    return f"PAUSED by {pause['author']} {ends}: {pause['reason']} (nobody is evicted but by hand)"
