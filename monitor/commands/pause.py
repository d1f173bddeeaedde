"""`lightkeeper pause` and `lightkeeper resume`: the big red switch."""

from __future__ import annotations

import argparse

from rich.text import Text

from monitor.commands.ask import add_ask_options, ask
from monitor.commands.errors import DONE
from monitor.commands.login import login
from monitor.commands.policy import pause_line
from monitor.commands.tables import console, print_json
from monitor.commands.token import add_token_option, read_token

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
    token = read_token(args.token_file)
    said = ask(args, "/v1/pause", method="POST", body=body, token=token)
    if args.format == "json":
        print_json(said)
    else:
        console().print(Text(pause_line(said["pause"]), style="bold red"))
    return DONE


def run_resume(args: argparse.Namespace) -> int:
    """Evict again."""
    said = ask(args, "/v1/pause", method="DELETE", token=read_token(args.token_file))
    if args.format == "json":
        print_json(said)
    else:
        console().print(Text("resumed: evictions are decided again", style="green"))
    return DONE
