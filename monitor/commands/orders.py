"""What people do: `lightkeeper evict`, `pause`, `quarantine`, `silence`, `incidents ack` ..."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
from rich.text import Text

from lightkeeper.monitor.commands.ask import (
    Monitor,
    asking,
    changing,
    login,
    path_to,
    show_answer,
    tell,
)
from lightkeeper.monitor.commands.command import (
    DONE,
    FAILED,
    CommandError,
    F,
    as_json,
    command,
    gathered,
    option,
)
from lightkeeper.monitor.commands.printing import console, print_json
from lightkeeper.monitor.model.units import clean, counted, no_such, plain
from lightkeeper.monitor.show.wording import pause_line


def _path(host: str | None, group: str | None) -> str:
    if (host is None) == (group is None):
        raise CommandError("name a host, or a group with --group NAME")
    if group is not None:
        return path_to("quarantine", "groups", group)
    return path_to("quarantine", host or "")


_named: Final = gathered(
    "path",
    _path,
    click.argument("host", required=False),
    option("--group", metavar="NAME", help="a replica group instead of a host"),
)
_author: Final = option(
    "--author", default=login, show_default="your login", help="who asks, as people know you"
)
_reason: Final = partial(option, "--reason", help="why, for those who come later")


@command()
@_named
@_reason(required=True)
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
    tell(monitor.ask(path, method="PUT", body=body), "", as_json=as_json)


@command()
@_named
@_reason()
@_author
@as_json
@changing
def release(*, monitor: Monitor, path: str, as_json: bool, **body: Any) -> None:
    """Let a host or a group in again.

    examples:
      lightkeeper quarantine release node17 --reason "DIMM changed" --token-file token
    """
    said = monitor.ask(path, method="DELETE", body=body)
    tell(said, said.get("reset", ""), as_json=as_json)


@command("list")
@as_json
@asking
def list_quarantine(*, monitor: Monitor, as_json: bool) -> None:
    """Hosts and groups in quarantine.

    examples:
      lightkeeper quarantine list

    every host, in or out, with what it did in the last 28 days: lightkeeper get hosts
    """
    show_answer(monitor, "/v1/quarantine", as_json=as_json)


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
    show_answer(monitor, path, as_json=as_json)


# -- the pause switch ------------------------------------------------------------------------------


@command()
@_reason(required=True)
@option("--hours", type=float, help="for how long (default: until resumed)")
@as_json
@changing
def pause(*, monitor: Monitor, reason: str, hours: float | None, as_json: bool) -> None:
    """Evict nobody from now on.

    examples:
      lightkeeper pause --reason "switch firmware, rack 7" --hours 2 --token-file token
      lightkeeper pause --reason "it evicts the wrong ones" --token-file token   until resumed

    Until then a group is evicted only by hand; faults are still seen, recorded and reported. A
    pause survives a restart of the monitor. For weekly times, run it by cron.
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
    said = monitor.ask("/v1/pause", method="DELETE", body={"author": login()})
    tell(said, "resumed: evictions are decided again", "green", as_json=as_json)


# -- the work on incidents, and silences ----------------------------------------------------------


def _on_one(called: F) -> Callable[..., Any]:
    """Options of what is said about one incident."""
    said: Callable[..., Any] = click.argument("id")(_author(as_json(changing(called))))
    return said


def _say(act: str, id: str, monitor: Monitor, *, as_json: bool, **body: Any) -> None:  # noqa: A002
    said = monitor.ask(path_to("incidents", id, act), method="POST", body=body)
    tell(said, f"{act}: {said['incident_id']}", as_json=as_json)


@command()
@_on_one
@_reason()
def ack(**said: Any) -> None:
    """Say that you look after an incident.

    examples:
      lightkeeper incidents ack not_ent                 the beginning of its id will do
      lightkeeper incidents ack not_ent --reason "the switch again"

    The monitor continues as before. An incident that a person has resolved is open again.
    """
    _say("ack", **said)


@command()
@_on_one
@click.argument("to", metavar="WHOM")
def assign(**said: Any) -> None:
    """Give an incident to somebody.

    examples:
      lightkeeper incidents assign not_ent bob
    """
    _say("assign", **said)


@command()
@_on_one
@click.argument("text")
def comment(**said: Any) -> None:
    """Write a line under an incident.

    examples:
      lightkeeper incidents comment not_ent "its disk is changed: ticket 4711"
    """
    _say("comment", **said)


@command("resolve")
@_on_one
@option("--reason", required=True, help="why it needs no attention any more")
def resolve_incident(**said: Any) -> None:
    """Close an incident for people; messages about it end.

    examples:
      lightkeeper incidents resolve not_ent --reason "a debugger, on purpose"
      lightkeeper incidents resolve absent-rg_2 --reason "the node is returned"

    A fault that is still there is judged, held or evicted as before; if it goes and is
    seen again, that is a new incident. A missing group, or lost progress, ends by this itself.
    """
    _say("resolve", **said)


@command()
@_on_one
@click.argument("right", type=bool, metavar="true|false")
@_reason()
def label(**said: Any) -> None:
    """Say whether the accusation was right; precision is computed from these labels.

    examples:
      lightkeeper incidents label not_ent true
      lightkeeper incidents label straggl false --reason "longer sequences, by design"
    """
    _say("label", **said)


@command("add")
@option("--kind", metavar="KIND", help="kind of fault")
@option("--group", metavar="NAME", help="replica group")
@option("--host", metavar="NAME", help="host")
@option("--rank", metavar="NAME", help="rank")
@option("--run", metavar="RUN", help="run (get runs)")
@option("--hours", type=float, required=True, help="for how long")
@_reason(required=True)
@_author
@as_json
@changing
def add_silence(*, monitor: Monitor, as_json: bool, **body: Any) -> None:
    """Send no messages about what matches, for a time.

    examples:
      lightkeeper silence add --host 'rack7-*' --hours 2 --reason "switch firmware"
      lightkeeper silence add --kind straggler --group rg_3 --hours 8 --reason "known slow disk"

    Every matcher must fit everything that an incident accuses; * and ? are wildcards. If an
    incident was announced before, so is its end. Evictions continue.
    """
    body = {key: value for key, value in body.items() if value is not None}
    said = monitor.ask("/v1/silences", method="POST", body=body)
    tell(said, f"silenced: {said['silence']['id']}", as_json=as_json)


@command("list")
@as_json
@asking
def list_silences(*, monitor: Monitor, as_json: bool) -> None:
    """Silences in force now.

    examples:
      lightkeeper silence list
    """
    show_answer(monitor, "/v1/silences", as_json=as_json)


@command("end")
@click.argument("id")
@_author
@as_json
@changing
def end_silence(*, monitor: Monitor, id: str, as_json: bool, author: str) -> None:  # noqa: A002
    """End a silence before its time.

    examples:
      lightkeeper silence end silence-1795830642400
    """
    said = monitor.ask(path_to("silences", id), method="DELETE", body={"author": author})
    tell(said, f"ended: {id}", as_json=as_json)


# -- `lightkeeper evict GROUP`: evict a replica group now, and watch it go ------------------------

NOT_YET: Final = 3
_LOOK_S: Final = 0.5


@command()
@click.argument("group")
@_reason(default="asked for by hand")
@option("--yes", is_flag=True, help="do not ask first")
@option("--wait", "wait_s", type=float, default=120.0, metavar="SECONDS",
        help="how long to watch it; 0: end as soon as it is asked for")  # fmt: skip
@as_json
@changing
def evict(
    *, monitor: Monitor, group: str, reason: str, yes: bool, wait_s: float, as_json: bool
) -> int:
    """Evict a replica group now.

    examples:
      lightkeeper evict rg_1 --token-file token                    asks first, then shows it go
      lightkeeper evict rg_1 --yes --reason "it writes NaN"        for scripts
      lightkeeper evict rg_1 --wait 0 --format json --yes

    No guard applies: not the budget, not the least number of groups, not a pause. Its hosts are
    not quarantined: its launcher may start it again at once (lightkeeper quarantine add).
    lightkeeper get groups has the names. Evicting the only group ends the job.

    exit status: 0 it is out, or its processes are gone, 1 it is not or nobody could be asked, 2
    wrong arguments or no such group, 3 it is not out yet and --wait is over
    """
    chosen, only = _chosen(monitor, group)
    if not yes:
        _confirm(chosen, only=only)
    body = {"reason": reason, "author": login()}
    said = monitor.ask(path_to("groups", group, "evict"), method="POST", body=body)

    def show(line: str, style: str = "") -> None:
        if not as_json:
            console().print(Text(line, style))

    ends = f"; this ends the job, {clean(group)} is its only group" if only else ""
    show(f"evicting {clean(group)}: {clean(said['incident_id'])}{ends}")
    if said.get("note"):
        show(clean(str(said["note"])))
    last = _follow(monitor, str(said["incident_id"]), wait_s, lambda line: show(f"  {line}"))
    failed, out, gone = last.get("failed"), last.get("confirmed"), last.get("gone_s") is not None
    if as_json:
        print_json({**said, "eviction": last or None})
    elif failed:
        show(f"it is not out: {clean(str(failed))}", "bold red")
    elif out:
        show(f"it is out: {clean(str(out))}", "green")
    elif gone:
        show("its processes are gone: nothing is left to evict", "green")
    if failed:
        return FAILED
    return DONE if out or gone or not wait_s else NOT_YET


def _chosen(monitor: Monitor, group: str) -> tuple[Mapping[str, Any], bool]:
    """The group, as the monitor shows it, and whether no other trains.

    Raises:
        CommandError: no such group.
    """
    groups: dict[str, Mapping[str, Any]] = {
        str(row["group"]): row for row in monitor.ask("/v1/groups")["groups"]
    }
    if group not in groups:
        if not monitor.ask("/v1/incidents", group=group, state="firing")["incidents"]:
            raise CommandError(no_such("group", group, groups))
        return {"group": group, "host": "", "ranks": ()}, False  # gone, and not back
    others = [row for name, row in groups.items() if name != group]
    return groups[group], all(row["in_quorum"] is False for row in others)


def _confirm(group: Mapping[str, Any], *, only: bool) -> None:
    """Ask a person to type yes, on a terminal.

    Raises:
        CommandError: no yes, or no terminal.
    """
    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask on: say --yes")
    where = f" on {clean(str(group['host']))}" if group["host"] else ""
    who = counted(len(group["ranks"]), "rank") if group["ranks"] else "nobody reports it"
    name = clean(str(group["group"]))
    asks = f"This ends {name} ({who}{where}). Evict it?"
    if only:
        asks = f"This ends the job: {name} ({who}{where}) is its only group. End the job?"
    if not click.confirm(asks, err=True):
        raise CommandError("nobody was evicted", FAILED)


def _follow(
    monitor: Monitor, incident_id: str, wait_s: float, tell: Callable[[str], object]
) -> Mapping[str, Any]:
    """The eviction as last seen; empty if it has not begun."""
    last: Mapping[str, Any] = {}
    shown: set[str] = set()
    for _ in range(int(wait_s / _LOOK_S)):
        recent = monitor.ask("/v1/incidents", kind="by_hand")["incidents"]
        evictions = {body["id"]: body["evictions"] for body in recent}  # from the next tick on
        last = next(reversed(evictions.get(incident_id, ())), {})
        for line in _lines(last.get("rungs", ())):
            if line not in shown:
                shown.add(line)
                tell(line)
        if last.get("failed") or last.get("confirmed") or last.get("gone_s") is not None:
            return last
        time.sleep(_LOOK_S)
    if wait_s:
        climbed = last.get("rungs", ())
        holds = _lines(climbed)[-1] if climbed else "nobody has taken it up yet"
        tell(f"it is not out after {wait_s:g} s: {holds}")
    return last


def _lines(rungs: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line a step: `scheduler: skipped: another process by now`."""
    words = [
        (plain(rung["rung"]), rung["result"], clean(rung["detail"], 300) or "begins")
        for rung in rungs
    ]
    return [": ".join(filter(None, line)) for line in words]
