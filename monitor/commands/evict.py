"""`lightkeeper evict GROUP`: put a replica group out now, and see it go."""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from monitor.commands.ask import Monitor, changing, login
from monitor.commands.command import DONE, FAILED, CommandError, as_json, command, option
from monitor.commands.printing import console, print_json
from monitor.show.wording import clean, counted

NOT_YET: Final = 3
_NAMED: Final = 12
_LOOK_S: Final = 0.5


@command()
@click.argument("group")
@option("--reason", default="asked for by hand", help="why, for those who come later")
@option("--yes", is_flag=True, help="do not ask first")
@option("--wait", type=float, default=120.0, metavar="SECONDS", help="how long to watch it")
@option("--no-wait", is_flag=True, help="end as soon as it is asked for")
@as_json
@changing
def evict(
    *, monitor: Monitor, group: str, reason: str, yes: bool, wait: float, no_wait: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Put a replica group out now.

    examples:
      lightkeeper evict rg_1 --token-file token                    asks first, then shows it go
      lightkeeper evict rg_1 --yes --reason "it writes NaN"        for scripts
      lightkeeper evict rg_1 --no-wait --format json --yes

    No guard stands in the way: not the budget, not the least number of groups, not a pause. Its
    hosts are not quarantined: its launcher may start it again at once (lightkeeper quarantine add).
    Groups are called as lightkeeper get groups calls them.

    exit status: 0 it is out, 1 it is not or nobody could be asked, 2 wrong arguments or no such
    group, 3 it is not out yet and --wait is over
    """
    wait_s = 0.0 if no_wait else wait
    chosen = _chosen(monitor, group)
    if not yes:
        _confirm(chosen)
    body = {"reason": reason, "author": login()}
    path = f"/v1/groups/{quote(group, safe='')}/evict"
    said = monitor.ask(path, method="POST", body=body)
    if not as_json:
        console().print(Text(f"evicting {clean(group)}: {clean(said['incident_id'])}"))
        if said.get("note"):
            console().print(Text(clean(str(said["note"]))))
    last = _follow(monitor, str(said["incident_id"]), wait_s, len if as_json else _tell)
    failed, out = last.get("failed"), last.get("confirmed")
    if as_json:
        print_json({**said, "eviction": last or None})
    elif failed:
        console().print(Text(f"it is not out: {clean(str(failed))}", "bold red"))
    elif out:
        console().print(Text(f"it is out: {clean(str(out))}", "green"))
    if failed:
        return FAILED
    return DONE if out or not wait_s else NOT_YET


def _chosen(monitor: Monitor, group: str) -> Mapping[str, Any]:
    """The group, as the monitor knows it.

    Raises:
        CommandError: it knows no such group.
    """
    groups: dict[str, Mapping[str, Any]] = {
        str(one["group"]): one for one in monitor.ask("/v1/groups")["groups"]
    }
    if group in groups:
        return groups[group]
    near = difflib.get_close_matches(group, groups, 1)
    hint = f"; did you mean {clean(near[0])}?" if near else ""
    shown = ", ".join(clean(one) for one in list(groups)[:_NAMED])
    more = f" and {len(groups) - _NAMED:,} more" if len(groups) > _NAMED else ""
    raise CommandError(
        f"no group {clean(group)!r}{hint} (groups: {shown}{more})" if groups else
        f"no group {clean(group)!r}: this monitor knows of none"
    )  # fmt: skip


def _confirm(group: Mapping[str, Any]) -> None:
    """A person types yes; without a terminal nobody is there to ask.

    Raises:
        CommandError: they do not.
    """
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask on: say --yes")
    where = f" on {clean(str(group['host']))}" if group["host"] else ""
    who = counted(len(group["ranks"]), "rank") if group["ranks"] else "a participant nobody reports"
    ends = f"This ends {clean(str(group['group']))} ({who}{where}). Evict it?"
    if not click.confirm(ends, err=True):
        raise CommandError("nobody was evicted", FAILED)


def _follow(
    monitor: Monitor, incident_id: str, wait_s: float, tell: Callable[[str], object]
) -> Mapping[str, Any]:
    """The eviction as it was seen last; empty when nobody has taken it up."""
    last: Mapping[str, Any] = {}
    shown: set[str] = set()
    for _ in range(int(wait_s / _LOOK_S)):
        recent = monitor.ask("/v1/incidents?limit=100")["incidents"]  # it comes with the next tick
        found = [one for body in recent if body["id"] == incident_id for one in body["evictions"]]
        last = found[-1] if found else {}
        for line in _lines(last.get("rungs", ())):
            if line not in shown:
                shown.add(line)
                tell(line)
        if last.get("failed") or last.get("confirmed"):
            return last
        time.sleep(_LOOK_S)
    if wait_s:
        climbed = last.get("rungs", ())
        holds = _lines(climbed)[-1] if climbed else "nobody has taken it up yet"
        tell(f"it is not out after {wait_s:g} s: {holds}")
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
