"""`lightkeeper policy`, `check policy`, `pause` and `resume`: what may be done, and when."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from lightkeeper.monitor.commands.ask import Monitor, asking, changing, login, tell
from lightkeeper.monitor.commands.command import (
    DONE,
    FILE,
    USAGE,
    CommandError,
    as_json,
    command,
    option,
)
from lightkeeper.monitor.commands.printing import console, moment, print_json, show_table, text
from lightkeeper.monitor.decide.rules import Effective, PolicyError
from lightkeeper.monitor.decide.view_json import effective_to_json
from lightkeeper.monitor.rulebook import effective
from lightkeeper.monitor.show.wording import pause_line
from lightkeeper.worker_server.plain_text import escaped

# -- the pause switch ------------------------------------------------------------------------------


@command()
@option("--reason", required=True, help="why, for those who come later")
@option("--hours", type=float, help="for how long (default: until resumed)")
@as_json
@changing
def pause(*, monitor: Monitor, reason: str, hours: float | None, as_json: bool) -> None:
    """Evict nobody from now on.

    examples:
      lightkeeper pause --reason "switch firmware, rack 7" --hours 2 --token-file token
      lightkeeper pause --reason "it evicts the wrong ones" --token-file token   until resumed

    Until then a group is evicted only by hand; faults are still seen, recorded and reported. A
    pause survives a restart of the monitor. Weekly times: [[maintenance]] in the policy file.
    """
    body = {"reason": reason, "hours": hours, "author": login()}
    said = monitor.ask("/v1/pause", method="POST", body=body)
    tell(said, pause_line(said["pause"]), "bold red", as_json=as_json)


@command()
@as_json
@changing
def resume(*, monitor: Monitor, as_json: bool) -> None:
    """Evict again.

    examples:
      lightkeeper resume --token-file token
    """
    said = monitor.ask("/v1/pause", method="DELETE")
    tell(said, "resumed: evictions are decided again", "green", as_json=as_json)


# -- the policy ------------------------------------------------------------------------------------


@command()
@click.argument("file", type=FILE)
@as_json
def check(*, file: Path, as_json: bool) -> int:
    """Can a policy file be used? All that is wrong with it, one line each.

    examples:
      lightkeeper check policy policy.toml

    a file with every option and its default: examples/policy.toml

    exit status: 0 it can be used, 2 it cannot
    """
    problems: tuple[str, ...] = ()
    try:
        effective(file, {}, loaded_s=0.0)
    except PolicyError as exc:
        if not as_json:
            raise refused(exc) from exc
        problems = tuple(exc.problems)
    said = {"schema": 1, "file": str(file), "ok": not problems, "problems": problems}
    tell(said, f"{file}: a policy that can be used", as_json=as_json)
    return USAGE if problems else DONE


@command()
@option("--file", type=FILE, metavar="FILE", help="what this file comes to")
@as_json
@asking
def show(*, monitor: Monitor, file: Path | None, as_json: bool) -> None:
    """The policy in force, and who set each part.

    examples:
      lightkeeper policy show                       of the running monitor
      lightkeeper policy show --file policy.toml    what it would come to, all options
    """
    asked = monitor.ask("/v1/policy") if file is None else effective_to_json(_of_file(file), 0.0)
    _show(asked, as_json=as_json)


@command()
@as_json
@changing
def reload(*, monitor: Monitor, as_json: bool) -> None:
    """Make the monitor read its policy file again, as `kill -HUP` of it does.

    examples:
      lightkeeper policy reload --token-file token
    """
    _show(
        monitor.ask("/v1/policy/reload", method="POST", body={"author": login()}), as_json=as_json
    )


def refused(exc: PolicyError) -> CommandError:
    """Print every problem but the last on standard error; the last is the error returned."""
    for problem in exc.problems[:-1]:
        sys.stderr.write(f"error: {escaped(' '.join(problem.split()))}\n")
    return CommandError(exc.problems[-1])


def _of_file(path: Path) -> Effective:
    try:
        return effective(path, {}, loaded_s=0.0)
    except PolicyError as exc:
        raise refused(exc) from exc


_UNUSED: Final[Mapping[str, Any]] = {
    "mode": "watch-only", "actions": {}, "guards": {}, "learned": {}, "maintenance": (),
}  # fmt: skip
"""Of a monitor that watches only."""


def _show(body: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(body)
    else:
        _print(console(), {**body, **(_UNUSED if body.get("watch_only") else {})})


def _print(out: Console, body: dict[str, Any]) -> None:
    source = body["source"] or "no file: the defaults"
    loaded = f", loaded {moment(body['loaded_s'])}" if body["loaded_s"] else ""
    out.print(text(f"policy: {source}{loaded}; mode: {body['mode']}", style="bold"))
    for problem in body.get("problems", []):
        out.print(text(f"! not reloaded: {problem}", style="yellow"))
    if body.get("pause"):
        out.print(text(pause_line(body["pause"]), style="bold red"))
    _tables(out, body)
    same = sum(entry["from"] == "default" for entry in body["thresholds"].values())
    out.print(text(f"{same} thresholds have their default (--format json shows them)", style="dim"))
    for name, value in body["after_restart"].items():
        out.print(text(f"! {name} = {value} from the next restart on", style="yellow"))
    for name, entry in body.get("learned", {}).items():
        out.print(text(f"{name}: " + ", ".join(f"{key} {value}" for key, value in entry.items())))
    for window in body["maintenance"]:
        days = f" on {', '.join(window['days'])}" if "days" in window else ""
        out.print(text(f"maintenance: {window['name']}: {window['from']} to {window['to']}{days}"))


def _tables(out: Console, body: dict[str, Any]) -> None:
    severities = ("info", "warning", "critical")
    actions = [(kind, *map(row.get, severities)) for kind, row in body["actions"].items()]
    if actions:
        show_table(out, "actions", ("kind", *severities), actions)
    options = [
        (name, entry["value"], entry["from"], entry["change"])
        for part in ("guards", "thresholds")
        for name, entry in body[part].items()
        if part == "guards" or entry["from"] != "default"
    ]
    if options:
        show_table(out, "options", ("name", "value", "said by", "changes by"), options)
