"""`lightkeeper incidents`: what went wrong, what was done, what it cost; was it right?"""

from __future__ import annotations

import argparse
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

from rich.text import Text

from monitor.commands.ask import add_monitor_option, ask
from monitor.commands.errors import DONE, FAILED, USAGE, CommandError
from monitor.commands.tables import cell, console, moment, print_json, table, word
from monitor.commands.watch import Look, add_watch_option, away_lines, live, need_terminal
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


# Incidents from a store, when no monitor answers: the same answers that its API gives.


class Stored:
    """What a store holds. Nothing is written to it.

    Raises:
        CommandError: there is none, or it cannot be read.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._view = _view(_read(str(args.store)))
        try:
            self._choice = Choice.of(args.since, args.kind, args.group, self._view.snapshot.now_s)
        except ChoiceError as exc:
            raise CommandError(f"--{exc}", USAGE) from exc

    def one(self, prefix: str) -> dict[str, Any]:
        """As `GET /v1/incidents/ID`.

        Raises:
            CommandError: none, or several begin so.
        """
        try:
            return {
                "schema": SCHEMA,
                **incident_json(self._view, find(self._view.incidents, prefix)),
            }
        except ChoiceError as exc:
            raise CommandError(str(exc), FAILED) from exc

    def listed(self, limit: int) -> dict[str, Any]:
        """As `GET /v1/incidents`."""
        found = self._choice.among(self._view.incidents)[: max(1, limit)]
        return {"schema": SCHEMA, "incidents": [incident_json(self._view, one) for one in found]}

    def totals(self) -> dict[str, Any]:
        """As `GET /v1/audit`."""
        fired = [one for one in self._view.incidents if one.milestones.firing_s is not None]
        cases = [case_of(self._view, one) for one in self._choice.among(fired)]
        now_s = self._view.snapshot.now_s
        return {"schema": SCHEMA, **totals_to_json(cases, self._choice.since_s, now_s)}


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


EXAMPLES = """\
examples:
  lightkeeper incidents                         the latest, newest first, and what they came to
  lightkeeper incidents not_ent                 one, with its story: the beginning of its id will do
  lightkeeper incidents --since 7d --kind straggler --group rg_1
  lightkeeper incidents --store monitor.db      without a monitor
  lightkeeper incidents --format json | jq '.incidents[] | select(.state == "firing")'
  lightkeeper incidents --watch                 live

exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
docs/audit.md says how its cost is reckoned.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `incidents`."""
    parser.add_argument("id", nargs="?", help="show one incident; the beginning of its id will do")
    parser.add_argument("--limit", type=int, default=20, help="how many (default: %(default)s)")
    parser.add_argument("--since", metavar="SPAN", help="not over for longer: 90s, 15m, 12h, 7d")
    parser.add_argument("--kind", choices=[str(kind) for kind in Kind], metavar="KIND")
    parser.add_argument("--group", metavar="GROUP", help="that accuse this replica group")
    parser.add_argument(
        "--format",
        choices=("text", "table", "json"),
        default="text",
        help="text for people (default; table is the same), json",
    )
    parser.add_argument(
        "--store",
        metavar="PLACE",
        help="read this monitor's store (a file, or the URL of a database) instead of asking it",
    )
    add_watch_option(parser)
    add_monitor_option(parser)


def run(args: argparse.Namespace) -> int:
    """The latest, or one with its story."""
    if args.watch is not None:
        return _watch(args)
    if args.store is not None:
        return _offline(args, Stored(args))
    if args.id is not None:
        return _one(args)
    body = ask(args, f"/v1/incidents?{_query(args, limit=args.limit)}")
    if args.format == "json":
        print_json(body)
        return DONE
    show_list(body["incidents"])
    show_totals(ask(args, f"/v1/audit?{_query(args)}"))
    return DONE


def _watch(args: argparse.Namespace) -> int:
    """The list, for as long as somebody looks."""
    for unwanted in ("id", "store"):
        if getattr(args, unwanted) is not None:
            raise CommandError("--watch is for the list of a running monitor", USAGE)

    def look() -> list[dict[str, Any]]:
        body = ask(args, f"/v1/incidents?{_query(args, limit=args.limit)}")
        return list(body["incidents"])

    need_terminal("--watch", "incidents --format json")
    live(look, args.watch, _draw)
    return DONE


def _draw(look: Look[list[dict[str, Any]]], width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    return [*top, *incidents_screen(look.seen, width, height - len(top))]


def _offline(args: argparse.Namespace, stored: Stored) -> int:
    """The same from a store."""
    if args.id is not None:
        _show_one(args, stored.one(args.id), Places(""))
    elif args.format == "json":
        print_json(stored.listed(args.limit))
    else:
        show_list(stored.listed(args.limit)["incidents"])
        show_totals(stored.totals())
    return DONE


def _query(args: argparse.Namespace, **more: Any) -> str:
    try:
        span_s(args.since or "1s")
    except ChoiceError as exc:
        raise CommandError(f"--{exc}", USAGE) from exc
    chosen = {"since": args.since, "kind": args.kind, "group": args.group, **more}
    return urlencode({name: value for name, value in chosen.items() if value is not None})


def show_list(incidents: list[dict[str, Any]]) -> None:
    """A line each."""
    shown = table(
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


def _one(args: argparse.Namespace) -> int:
    body = ask(args, f"/v1/incidents/{quote(args.id, safe='')}")
    _show_one(args, body, Places(args.monitor.partition(",")[0], body.get("journal")))
    return DONE


def _show_one(args: argparse.Namespace, body: Mapping[str, Any], places: Places) -> None:
    if args.format == "json":
        print_json(body)
        return
    out = console()
    for line in story(body, places):
        out.print(Text(line.text, style=line.style), soft_wrap=True)
