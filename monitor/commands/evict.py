"""`lightkeeper evict GROUP`: put a replica group out now, and see it go."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from rich.text import Text

from monitor.commands.ask import add_ask_options, ask, login
from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.secrets import add_token_option
from monitor.commands.tables import console, print_json
from monitor.show.wording import clean, counted

EXAMPLES: Final = """\
examples:
  lightkeeper evict rg_1 --token-file token                    asks first, then shows it go
  lightkeeper evict rg_1 --yes --reason "it writes NaN"        for scripts
  lightkeeper evict rg_1 --no-wait --format json --yes

No guard stands in the way: not the budget, not the least number of groups, not a pause. Its hosts
are not quarantined: its launcher may start it again at once (lightkeeper quarantine add).

exit status: 0 it is out, 1 it is not or nobody could be asked, 2 wrong arguments or no such group,
3 it is not out yet and --wait is over
"""
NOT_YET: Final = 3
_NAMED: Final = 12
_LOOK_S: Final = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `evict`."""
    parser.add_argument("group", help="the replica group, as lightkeeper groups calls it")
    why = "why, for those who come later"
    parser.add_argument("--reason", default="asked for by hand", help=why)
    parser.add_argument("--yes", action="store_true", help="do not ask first")
    parser.add_argument("--wait", type=float, default=120.0, metavar="SECONDS",
                        help="how long to watch it (default: %(default)g)")  # fmt: skip
    parser.add_argument("--no-wait", action="store_const", const=0.0, dest="wait",
                        help="end as soon as it is asked for")  # fmt: skip
    add_token_option(parser)
    add_ask_options(parser)


def run(args: argparse.Namespace, pause: Callable[[float], None] = time.sleep) -> int:
    """Ask, and follow it until the group is out."""
    group = _chosen(args)
    if not args.yes:
        _confirm(group)
    body = {"reason": args.reason, "author": login()}
    path = f"/v1/groups/{quote(args.group, safe='')}/evict"
    said = ask(args, path, method="POST", body=body)
    text = args.format != "json"
    if text:
        console().print(Text(f"evicting {clean(args.group)}: {clean(said['incident_id'])}"))
        if said.get("note"):
            console().print(Text(clean(str(said["note"]))))
    last = _follow(args, str(said["incident_id"]), _tell if text else len, pause)
    failed, out = last.get("failed"), last.get("confirmed")
    if not text:
        print_json({**said, "eviction": last or None})
    elif failed:
        console().print(Text(f"it is not out: {clean(str(failed))}", "bold red"))
    elif out:
        console().print(Text(f"it is out: {clean(str(out))}", "green"))
    if failed:
        return FAILED
    return DONE if out or not args.wait else NOT_YET


def _chosen(args: argparse.Namespace) -> Mapping[str, Any]:
    """The group, as the monitor knows it.

    Raises:
        CommandError: it knows no such group.
    """
    groups: dict[str, Mapping[str, Any]] = {
        str(one["group"]): one for one in ask(args, "/v1/groups")["groups"]
    }
    if args.group in groups:
        return groups[args.group]
    near = difflib.get_close_matches(args.group, groups, 1)
    hint = f"; did you mean {clean(near[0])}?" if near else ""
    shown = ", ".join(clean(one) for one in list(groups)[:_NAMED])
    more = f" and {len(groups) - _NAMED:,} more" if len(groups) > _NAMED else ""
    raise CommandError(
        f"no group {clean(args.group)!r}{hint} (groups: {shown}{more})" if groups else
        f"no group {clean(args.group)!r}: this monitor knows of none", USAGE,
    )  # fmt: skip


def _confirm(group: Mapping[str, Any]) -> None:
    """A person types yes; without a terminal nobody is there to ask.

    Raises:
        CommandError: they do not.
    """
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask on: say --yes", USAGE)
    where = f" on {clean(str(group['host']))}" if group["host"] else ""
    who = counted(len(group["ranks"]), "rank") if group["ranks"] else "a participant nobody reports"
    sys.stderr.write(f"This ends {clean(str(group['group']))} ({who}{where}). Evict it? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nobody was evicted", FAILED)


def _follow(
    args: argparse.Namespace, incident_id: str, tell: Callable[[str], object],
    pause: Callable[[float], None],
) -> Mapping[str, Any]:  # fmt: skip
    """The eviction as it was seen last; empty when nobody has taken it up."""
    last: Mapping[str, Any] = {}
    shown: set[str] = set()
    for _ in range(int(args.wait / _LOOK_S)):
        known = ask(args, "/v1/incidents?limit=100")["incidents"]  # it comes with the next tick
        found = [one for body in known if body["id"] == incident_id for one in body["evictions"]]
        last = found[-1] if found else {}
        for line in _lines(last.get("rungs", ())):
            if line not in shown:
                shown.add(line)
                tell(line)
        if last.get("failed") or last.get("confirmed"):
            return last
        pause(_LOOK_S)
    if args.wait:
        climbed = last.get("rungs", ())
        holds = _lines(climbed)[-1] if climbed else "nobody has taken it up yet"
        tell(f"it is not out after {args.wait:g} s: {holds}")
    return last


def _lines(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What was done, and what came of it."""
    made = []
    for rung in rungs:
        name = str(rung["rung"]).replace("_", " ")
        how = clean(rung["detail"], 300) or "begins"
        made.append(f"{name}: {how}")
    return made


def _tell(line: str) -> None:
    console().print(Text(f"  {line}"))
