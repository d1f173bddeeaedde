"""`lightkeeper incidents list` and `show`: what went wrong, what was done, what it cost."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from monitor.commands.ask import Monitor, asking
from monitor.commands.command import FAILED, CommandError, as_json, command, gathered, option
from monitor.commands.tables import Sheet, cell, console, moment, print_json, word
from monitor.commands.watch import Look, away_lines, live, need_terminal, watch
from monitor.decide.accounts import (
    Choice,
    ChoiceError,
    books_of,
    bounds,
    find,
    span_s,
    totals_to_json,
    with_by_hand,
)
from monitor.decide.pipeline import TickResult
from monitor.decide.view import SCHEMA, View
from monitor.decide.view_json import case_of, incident_json
from monitor.model.config import KeeperConfig
from monitor.model.eviction import DecisionRow, Remembered
from monitor.model.names import IncidentId
from monitor.model.observation import LighthouseAway, Snapshot
from monitor.model.verdict import Kind
from monitor.show.incident_words import rung_words
from monitor.show.screens import incidents_screen
from monitor.show.text_table import Line
from monitor.show.wording import clean, counted, sentence
from monitor.store.place import StoreError, parse_place
from monitor.store.store import Store

# One incident as a person reads it at 3 am: what happened, was done, how long, at what cost.

WIDTH: Final = 100
BAR: Final = 36
"""Characters of the bar chart."""
_PARTS: Final = {
    "seen": "until it was seen",
    "firing": "until it was sure",
    "decided": "until it was decided",
    "asked": "until it was asked",
    "gone": "until its processes were gone",
    "left": "until it left the quorum",
    "survivors": "until the others committed",
    "rejoined": "until it was back",
}
_NAMES: Final = 12
"""Culprits or victims that are named."""


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line, and how it looks."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a person finds more."""

    monitor: str
    """URL; empty when it is away."""
    journal: str | None = None


def story(body: Mapping[str, Any], places: Places) -> Iterator[StoryLine]:
    """The lines of an incident, from its JSON."""
    account = body.get("account") or {}
    yield from _head(body, account)
    yield from _happened(body, account)
    yield from _done(body, account)
    yield from _took(account)
    yield from _cost(account)
    yield from _next(body, account, places)


def _title(text: str) -> Iterator[StoryLine]:
    yield StoryLine("")
    yield StoryLine(text, "bold cyan")


def _head(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[StoryLine]:
    groups = _list(body["groups"]) or "nobody's fault"
    what = str(body["kind"]).replace("_", " ")
    outcome = account.get("outcome", body["state"])
    style = {"critical": "bold red", "warning": "bold yellow"}.get(body["severity"], "bold")
    yield StoryLine(f"{what} in {groups}: {outcome}, {body['state']}", style)
    began_s = body["milestones"]["first_seen_s"]
    yield StoryLine(f"{clean(str(body['id']), 300)}, {body['severity']}, {moment(began_s)}", "dim")


def _happened(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[StoryLine]:
    yield from _title("What happened")
    yield from _wrapped("  ", sentence(f"{str(body['says']).rstrip('.')}. {body['next']}".strip()))
    where = _list(account.get("ran_on", ()))
    if body["kind"] == "by_hand":  # nobody is accused of anything
        yield from _row("group", f"{_list(body['groups'])}{f' on {where}' if where else ''}")
    else:
        yield from _blamed(body, where)
    if body["victims"]:
        more = body["victim_count"] - len(body["victims"])
        yield from _row("waited", _list(body["victims"]) + (f" and {more:,} more" if more else ""))
    for rank, seen in body["seen"].items():
        yield from _row("now", f"{rank}: {seen}")
    for source, seen in body["evidence"].items():
        yield from _row("seen", f"{source}: {seen}")


def _blamed(body: Mapping[str, Any], where: str) -> Iterator[StoryLine]:
    blamed = _list(body["culprits"]) or "nobody"
    yield from _row("blamed", f"{blamed}{f' on {where}' if where else ''} ({body['confidence']})")


def _done(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[StoryLine]:
    yield from _title("What was done")
    yield from _row("decided by", f"{account.get('decided_by', '?')}: {account.get('why', '?')}")
    for held in account.get("holds", ()):
        release = f". {held['release']}" if held.get("release") else ""
        after = f"; then {held['ended_by']}" if held.get("ended_by") else ""
        told = f"{held['guard']} for {_span(held['seconds'])}: {held['reason']}{release}{after}"
        yield from _row("held", told)
    for rung in account.get("rungs", ()):
        result = f"{rung['result']}, " if rung["result"] else ""
        detail = rung_words(rung).removeprefix(
            f"{rung['result']}: "
        )  # some rungs say it themselves
        told = f"{result}{_span(rung['seconds'])}: {detail}"
        yield from _row(str(rung["rung"]).replace("_", " "), told)
    for progress in body.get("evictions", ()):
        if progress["failed"]:
            yield from _row("failed", progress["failed"], "bold red")
    if body["resolution"]:
        yield from _row("over", body["resolution"], "green")
    back = _list(account.get("back_on", ()))
    if back:
        yield from _row("back on", back, "green")


def _took(account: Mapping[str, Any]) -> Iterator[StoryLine]:
    parts = account.get("intervals", ())
    if not parts:
        return
    total_s = sum(part["seconds"] for part in parts)
    yield from _title(f"How long each part took: {total_s:.1f} s")
    began_s = parts[0]["start_s"]
    for part in parts:
        name = _PARTS.get(part["until"], part["until"])
        bar = _bar(part["start_s"] - began_s, part["seconds"], total_s)
        odd = "  (the clock jumped)" if part["jumped"] else ""
        yield StoryLine(f"  {name:<30}{part['seconds']:>8.1f} s  |{bar}|{odd}")


def _bar(start_s: float, seconds: float, total_s: float) -> str:
    """Where this part lies in the whole."""
    if total_s <= 0:
        return " " * BAR
    start = min(BAR - 1, int(start_s / total_s * BAR))
    length = max(1, round(seconds / total_s * BAR)) if seconds > 0 else 0
    return (" " * start + "#" * length)[:BAR].ljust(BAR)


def _cost(account: Mapping[str, Any]) -> Iterator[StoryLine]:
    if "lost" not in account:
        return
    yield from _title("What it cost, in rank-seconds, by lightkeeper's own account")
    names = {
        "lost_by_others": "others lost",
        "lost_by_own": "it was away",
        "without_us": "without us",
        "saved": "saved",
    }
    for key, name in names.items():
        amount = account[key]
        why = amount["words"].removeprefix("cannot tell: ")
        yield from _row(name, f"{bounds(amount)}: {why}")


# -- what to do next -----------------------------------------------------------------------------


def _next(
    body: Mapping[str, Any], account: Mapping[str, Any], places: Places
) -> Iterator[StoryLine]:
    yield from _title("What to do next")
    for text in advice(body, account):
        yield from _wrapped("  - ", clean(text))
    base = places.monitor.rstrip("/")
    bundle = body.get("bundle")
    if bundle is not None and base:
        yield _whole("evidence", f"{base}{bundle['url']} (for lightkeeper analyze)")
    if places.journal:
        began_s = int(body["milestones"]["first_seen_s"]) - 60
        until_s = int(body["last_seen_s"]) + 60
        span = f"--from {began_s} --to {until_s} --ticks"
        yield _whole("replay", f"lightkeeper replay {places.journal} {span}")
    if base:
        yield _whole("page", f"{base}/incidents/{quote(body['id'], safe='')}")


def advice(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[str]:
    """What a person should do, the most urgent first."""
    outcome, kind = account.get("outcome"), body["kind"]
    holds: Sequence[Mapping[str, Any]] = account.get("holds", ())
    hosts = " and ".join(account.get("ran_on", ())) or "the host"
    if outcome == "failed":
        yield f"the eviction failed: end the processes of {_list(body['groups'])} by hand"
    if outcome == "held" and body["state"] != "resolved" and holds:
        yield str(body["next"])
    if kind in ("mismatch", "deadlock"):
        yield "a fault of the program, mostly: read the line that the evidence names"
    elif kind == "lighthouse_away":
        yield "start the Lighthouse again; nobody was evicted for it"
    elif outcome in ("evicted", "evicting") and body["culprits"]:
        yield f"look at {hosts} before it is used again: lightkeeper quarantine list"
    if outcome == "evicted" and account.get("final") and not account.get("back_on"):
        yield "the group was not seen to come back: ask its launcher"


def _row(name: str, text: str, style: str = "") -> Iterator[StoryLine]:
    """A fact and its name, in lines that fit a terminal and a mail."""
    yield from _wrapped(f"  {name:<16}", clean(str(text)), style)


def _whole(name: str, text: str) -> StoryLine:
    """One line however long: to be copied."""
    return StoryLine(f"  {name:<16}{clean(text)}")


def _wrapped(start: str, text: str, style: str = "") -> Iterator[StoryLine]:
    made = textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in made or [start]:
        yield StoryLine(line, style)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(clean(str(name), 200) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


def _span(seconds: float | None) -> str:
    return "as long as is known" if seconds is None else f"{seconds:.1f} s"


# -- where they come from: a monitor, or without one its store --------------------------------


@dataclass(frozen=True, slots=True)
class Sought:
    """Which incidents."""

    since: str | None
    kind: str | None
    group: str | None

    def query(self, **more: Any) -> str:
        """Of the API."""
        try:
            span_s(self.since or "1s")
        except ChoiceError as exc:
            raise CommandError(f"--{exc}") from exc
        chosen = {**asdict(self), **more}
        return urlencode({name: value for name, value in chosen.items() if value is not None})


class Stored:
    """What a store holds, in the answers of the API. Nothing is written to it.

    Raises:
        CommandError: there is none, or it cannot be read.
    """

    def __init__(self, place: str) -> None:
        self._view = _view(_read(place))

    def one(self, prefix: str) -> dict[str, Any]:
        """As `GET /v1/incidents/ID`.

        Raises:
            CommandError: none, or several begin so.
        """
        try:
            found = find(self._view.incidents, prefix)
        except ChoiceError as exc:
            raise CommandError(str(exc), FAILED) from exc
        return {"schema": SCHEMA, **incident_json(self._view, found)}

    def _choice(self, sought: Sought) -> Choice:
        try:
            return Choice.of(sought.since, sought.kind, sought.group, self._view.snapshot.now_s)
        except ChoiceError as exc:
            raise CommandError(f"--{exc}") from exc

    def listed(self, sought: Sought, limit: int) -> dict[str, Any]:
        """As `GET /v1/incidents`."""
        found = self._choice(sought).among(self._view.incidents)[: max(1, limit)]
        return {"schema": SCHEMA, "incidents": [incident_json(self._view, one) for one in found]}

    def totals(self, sought: Sought) -> dict[str, Any]:
        """As `GET /v1/audit`."""
        choice = self._choice(sought)
        fired = [one for one in self._view.incidents if one.milestones.firing_s is not None]
        cases = [case_of(self._view, one) for one in choice.among(fired)]
        now_s = self._view.snapshot.now_s
        return {"schema": SCHEMA, **totals_to_json(cases, choice.since_s, now_s)}


def _read(text: str) -> Remembered:
    try:
        place = parse_place(text)
        if place.path is not None and not place.path.is_file():
            raise CommandError(f"no store at {place.path}", FAILED)
        store = Store(place)
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    try:
        store.follow()  # a monitor may be writing there
        return store.remembered()
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    finally:
        store.close()


def _view(found: Remembered) -> View:
    now_s = time.time()
    decisions: dict[IncidentId, Sequence[DecisionRow]] = {}
    for row in found.decisions:
        decisions[row.incident_id] = (*decisions.get(row.incident_id, ()), row)
    books = books_of(found, KeeperConfig())
    return View(
        snapshot=Snapshot(now_s, 0, 0.0, (), LighthouseAway("read from a store")),
        result=TickResult(now_s),
        observe=False,
        incidents=with_by_hand(found.incidents, decisions, books),
        decisions=decisions,
        evictions={one.incident_id: one for one in found.taken_up},
        books=books,
    )


# -- the commands ----------------------------------------------------------------------------------

_store: Final = option(
    "--store",
    metavar="PLACE",
    help="read this monitor's store (a file, or the URL of a database) instead of asking it",
)


@command("list")
@option("--limit", type=int, default=20, help="how many")
@gathered(
    "sought",
    Sought,
    option("--since", metavar="SPAN", help="not over for longer: 90s, 15m, 12h, 7d"),
    option("--kind", type=click.Choice([str(kind) for kind in Kind]), metavar="KIND",
           help=f"one of {', '.join(Kind)}"),
    option("--group", metavar="GROUP", help="that accuse this replica group"),
)  # fmt: skip
@watch
@_store
@as_json
@asking
def listed(
    *,
    monitor: Monitor,
    sought: Sought,
    limit: int,
    watch: float | None,
    store: str | None,
    as_json: bool,
) -> None:
    """The latest incidents, newest first, and what they came to.

    examples:
      lightkeeper incidents list
      lightkeeper incidents list --since 7d --kind straggler --group rg_1
      lightkeeper incidents list --store monitor.db      without a monitor
      lightkeeper incidents list --format json | jq '.incidents[] | select(.state == "firing")'
      lightkeeper incidents list --watch                 live

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """

    def ask() -> dict[str, Any]:
        return monitor.ask(f"/v1/incidents?{sought.query(limit=limit)}")

    if watch is not None:
        if store is not None:
            raise CommandError("--watch is for a running monitor")
        need_terminal("--watch", "incidents list --format json")
        live(lambda: list(ask()["incidents"]), watch, _draw)
        return
    stored = None if store is None else Stored(store)
    body = ask() if stored is None else stored.listed(sought, limit)
    if as_json:
        print_json(body)
        return
    show_list(body["incidents"])
    totals = monitor.ask(f"/v1/audit?{sought.query()}") if stored is None else stored.totals(sought)
    show_totals(totals)


@command()
@click.argument("id")
@_store
@as_json
@asking
def show(*, monitor: Monitor, id: str, store: str | None, as_json: bool) -> None:  # noqa: A002
    """One incident, with its story: what happened, what was done, how long it took, what it cost.

    examples:
      lightkeeper incidents show not_ent                       the beginning of its id will do
      lightkeeper incidents show not_ent --store monitor.db    without a monitor

    exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
    docs/audit.md says how its cost is reckoned.
    """
    if store is not None:
        body, places = Stored(store).one(id), Places("")
    else:
        body = monitor.ask(f"/v1/incidents/{quote(id, safe='')}")
        places = Places(monitor.urls[0], body.get("journal"))
    if as_json:
        print_json(body)
        return
    out = console()
    for line in story(body, places):
        out.print(Text(line.text, style=line.style), soft_wrap=True)


def _draw(look: Look[list[dict[str, Any]]], width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    return [*top, *incidents_screen(look.seen, width, height - len(top))]


def show_list(incidents: list[dict[str, Any]]) -> None:
    """A line each."""
    shown = Sheet(
        "incidents", "id", "since", "kind", "state", "severity", "culprits", "outcome", "saved",
        "what",
    )  # fmt: skip
    for one in incidents:
        account = one.get("account")  # an older monitor has none
        shown.add_row(
            cell(one["id"]),
            cell(moment(one["milestones"]["first_seen_s"])),
            cell(one["kind"]),
            word(one["state"]),
            word(one["severity"]),
            cell(one["culprits"]),
            cell(None if account is None else account["outcome"]),
            cell(None if account is None else bounds(account["saved"])),
            cell(one["says"]),
        )
    console().print(shown)


def show_totals(body: Mapping[str, Any]) -> None:
    """What they came to."""
    out = console()
    evictions = counted(body["evictions"], "eviction")
    out.print(Text(f"{evictions}; {counted(body['incidents'], 'incident')} fired"))
    lost, saved = _told(body["lost"]), _told(body["saved"])
    out.print(Text(f"lost {lost}; evictions saved {saved}", style="dim"))


def _told(amount: Mapping[str, Any]) -> str:
    unknown = amount["unknown"]
    tail = f" (and {unknown} of which it cannot be told)" if unknown else ""
    return f"{bounds(amount)} rank-seconds{tail}"
