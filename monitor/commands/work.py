"""`lightkeeper incidents ack`, `assign`, `comment`, `resolve` and `label`, and `silence`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import click

from lightkeeper.monitor.commands.ask import Monitor, asking, changing, login, show_answer, tell
from lightkeeper.monitor.commands.command import F, as_json, command, option

_AUTHOR: Final = option(
    "--author", default=login, show_default="your login", help="who says so, as people know you"
)
_WHY: Final = option("--reason", help="why, for those who come later")


def _on_one(called: F) -> Callable[..., Any]:
    """Options of what is said about one incident."""
    said: Callable[..., Any] = click.argument("id")(_AUTHOR(as_json(changing(called))))
    return said


def _say(act: str, id: str, monitor: Monitor, *, as_json: bool, **body: Any) -> None:  # noqa: A002
    said = monitor.ask(f"/v1/incidents/{quote(id, safe='')}/{act}", method="POST", body=body)
    tell(said, f"{act}: {said['incident_id']}", as_json=as_json)


@command()
@_on_one
@_WHY
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
@_WHY
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
@option("--reason", required=True, help="why, for those who come later")
@_AUTHOR
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
@_AUTHOR
@as_json
@changing
def end_silence(*, monitor: Monitor, id: str, as_json: bool, author: str) -> None:  # noqa: A002
    """End a silence before its time.

    examples:
      lightkeeper silence end silence-1795830642400
    """
    path = f"/v1/silences/{quote(id, safe='')}"
    said = monitor.ask(path, method="DELETE", body={"author": author})
    tell(said, f"ended: {id}", as_json=as_json)
