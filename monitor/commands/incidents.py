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
    Account,
    Choice,
    ChoiceError,
    Total,
    Totals,
    books_of,
    find,
    span_s,
    totals,
    with_by_hand,
)
from monitor.decide.pipeline import TickResult
from monitor.decide.view import SCHEMA, IncidentReport, View, bundle_url
from monitor.decide.view_json import report_from_json, report_to_json
from monitor.model.config import KeeperConfig
from monitor.model.eviction import DecisionRow, Remembered
from monitor.model.names import IncidentId
from monitor.model.observation import LighthouseAway, Snapshot
from monitor.model.plain import from_plain
from monitor.model.verdict import Kind, Severity
from monitor.show.screens import incidents_screen
from monitor.show.text_table import Line
from monitor.show.wording import clean, counted, listed, plain, sentence
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


def story(one: IncidentReport, places: Places) -> Iterator[StoryLine]:
    """The lines of an incident."""
    yield from _head(one)
    yield from _happened(one)
    yield from _done(one)
    yield from _took(one.account)
    yield from _cost(one.account)
    yield from _next(one, places)


def _title(text: str) -> Iterator[StoryLine]:
    yield StoryLine("")
    yield StoryLine(text, "bold cyan")


_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow"}


def _head(one: IncidentReport) -> Iterator[StoryLine]:
    incident = one.incident
    groups = _list(incident.groups) or "nobody's fault"
    what = f"{plain(incident.kind)} in {groups}: {one.account.outcome}, {incident.state}"
    yield StoryLine(what, _STYLES.get(incident.severity, "bold"))
    began = moment(incident.milestones.first_seen_s)
    yield StoryLine(f"{clean(incident.id, 300)}, {incident.severity}, {began}", "dim")


def _happened(one: IncidentReport) -> Iterator[StoryLine]:
    incident, face = one.incident, one.face
    yield from _title("What happened")
    yield from _wrapped("  ", sentence(f"{face.says.rstrip('.')}. {face.next}".strip()))
    hosts = _list(one.account.ran_on)
    where = f" on {hosts}" if hosts else ""
    if incident.kind is Kind.BY_HAND:  # nobody is accused of anything
        yield from _row("group", f"{_list(incident.groups)}{where}")
    else:
        blamed = _list(incident.culprits) or "nobody"
        yield from _row("blamed", f"{blamed}{where} ({incident.verdict.confidence})")
    if one.victims:
        more = one.victim_count - len(one.victims)
        yield from _row("waited", _list(one.victims) + (f" and {more:,} more" if more else ""))
    for rank, seen in one.seen.items():
        yield from _row("now", f"{rank}: {seen}")
    for source, seen in incident.verdict.evidence.items():
        yield from _row("seen", f"{source}: {seen}")


def _done(one: IncidentReport) -> Iterator[StoryLine]:
    account = one.account
    yield from _title("What was done")
    yield from _row("decided by", f"{account.decided_by}: {account.why}")
    for held in account.holds:
        release = f". {held.release}" if held.release else ""
        after = f"; then {held.ended_by}" if held.ended_by else ""
        told = f"{held.guard} for {_span(held.seconds)}: {held.reason}{release}{after}"
        yield from _row("held", told)
    for rung in account.rungs:
        result = f"{rung.result}, " if rung.result else ""
        detail = rung.detail.removeprefix(f"{rung.result}: ")  # some rungs say it themselves
        yield from _row(plain(rung.rung), f"{result}{_span(rung.seconds)}: {detail}")
    for eviction in one.evictions:
        if eviction.failed:
            yield from _row("failed", eviction.failed, "bold red")
    if one.incident.resolution:
        yield from _row("over", one.incident.resolution, "green")
    if account.back_on:
        yield from _row("back on", _list(account.back_on), "green")


def _took(account: Account) -> Iterator[StoryLine]:
    parts = account.intervals
    if not parts:
        return
    total_s = sum(part.seconds for part in parts)
    yield from _title(f"How long each part took: {total_s:.1f} s")
    for part in parts:
        bar = _bar(part.start_s - parts[0].start_s, part.seconds, total_s)
        odd = "  (the clock jumped)" if part.jumped else ""
        name = _PARTS.get(part.until, part.until)
        yield StoryLine(f"  {name:<30}{part.seconds:>8.1f} s  |{bar}|{odd}")


def _bar(start_s: float, seconds: float, total_s: float) -> str:
    """Where this part lies in the whole."""
    if total_s <= 0:
        return " " * BAR
    start = min(BAR - 1, int(start_s / total_s * BAR))
    length = max(1, round(seconds / total_s * BAR)) if seconds > 0 else 0
    return (" " * start + "#" * length)[:BAR].ljust(BAR)


def _cost(account: Account) -> Iterator[StoryLine]:
    yield from _title("What it cost, in rank-seconds, by lightkeeper's own account")
    for name, amount in (
        ("others lost", account.lost_by_others),
        ("it was away", account.lost_by_own),
        ("without us", account.without_us),
        ("saved", account.saved),
    ):
        yield from _row(name, f"{amount}: {amount.words.removeprefix('cannot tell: ')}")


# -- what to do next -----------------------------------------------------------------------------


def _next(one: IncidentReport, places: Places) -> Iterator[StoryLine]:
    incident = one.incident
    yield from _title("What to do next")
    for text in advice(one):
        yield from _wrapped("  - ", clean(text))
    base = places.monitor.rstrip("/")
    if one.bundle is not None and base:
        yield _whole("evidence", f"{base}{bundle_url(incident.id)} (for lightkeeper analyze)")
    if places.journal:
        began_s = int(incident.milestones.first_seen_s) - 60
        until_s = int(incident.last_seen_s) + 60
        span = f"--from {began_s} --to {until_s} --ticks"
        yield _whole("replay", f"lightkeeper replay {places.journal} {span}")
    if base:
        yield _whole("page", f"{base}/incidents/{quote(incident.id, safe='')}")


def advice(one: IncidentReport) -> Iterator[str]:
    """What a person should do, the most urgent first."""
    incident, account = one.incident, one.account
    outcome, kind = account.outcome, incident.kind
    hosts = " and ".join(account.ran_on) or "the host"
    if outcome == "failed":
        yield f"the eviction failed: end the processes of {_list(incident.groups)} by hand"
    if outcome == "held" and incident.open and account.holds:
        yield one.face.next
    if kind in (Kind.MISMATCH, Kind.DEADLOCK):
        yield "a fault of the program, mostly: read the line that the evidence names"
    elif kind is Kind.LIGHTHOUSE_AWAY:
        yield "start the Lighthouse again; nobody was evicted for it"
    elif outcome in ("evicted", "evicting") and incident.culprits:
        yield f"look at {hosts} before it is used again: lightkeeper quarantine list"
    if outcome == "evicted" and account.final and not account.back_on:
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
    return listed(names, _NAMES)


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

    def one(self, prefix: str) -> IncidentReport:
        """The incident whose id begins so.

        Raises:
            CommandError: none, or several begin so.
        """
        try:
            return self._view.report(find(self._view.incidents, prefix))
        except ChoiceError as exc:
            raise CommandError(str(exc), FAILED) from exc

    def listed(self, limit: int) -> list[IncidentReport]:
        """The newest of those asked for."""
        found = self._choice.among(self._view.incidents)[: max(1, limit)]
        return [self._view.report(one) for one in found]

    def totals(self) -> Totals:
        """What they came to."""
        fired = [one for one in self._view.incidents if one.milestones.firing_s is not None]
        cases = [self._view.case(one) for one in self._choice.among(fired)]
        return totals(cases, self._choice.since_s, self._view.snapshot.now_s)


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
    show_list([report_from_json(one) for one in body["incidents"]])
    show_totals(from_plain(Totals, ask(args, f"/v1/audit?{_query(args)}")))
    return DONE


def _watch(args: argparse.Namespace) -> int:
    """The list, for as long as somebody looks."""
    for unwanted in ("id", "store"):
        if getattr(args, unwanted) is not None:
            raise CommandError("--watch is for the list of a running monitor", USAGE)

    def look() -> list[IncidentReport]:
        body = ask(args, f"/v1/incidents?{_query(args, limit=args.limit)}")
        return [report_from_json(one) for one in body["incidents"]]

    need_terminal("--watch", "incidents --format json")
    live(look, args.watch, _draw)
    return DONE


def _draw(look: Look[list[IncidentReport]], width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    return [*top, *incidents_screen(look.seen, width, height - len(top))]


def _offline(args: argparse.Namespace, stored: Stored) -> int:
    """The same from a store."""
    if args.id is not None:
        one = stored.one(args.id)
        _show_one(args, one, {"schema": SCHEMA, **report_to_json(one)}, Places(""))
    elif args.format == "json":
        found = [report_to_json(one) for one in stored.listed(args.limit)]
        print_json({"schema": SCHEMA, "incidents": found})
    else:
        show_list(stored.listed(args.limit))
        show_totals(stored.totals())
    return DONE


def _query(args: argparse.Namespace, **more: Any) -> str:
    try:
        span_s(args.since or "1s")
    except ChoiceError as exc:
        raise CommandError(f"--{exc}", USAGE) from exc
    chosen = {"since": args.since, "kind": args.kind, "group": args.group, **more}
    return urlencode({name: value for name, value in chosen.items() if value is not None})


def show_list(incidents: Sequence[IncidentReport]) -> None:
    """A line each."""
    shown = table(
        "incidents", "id", "since", "kind", "state", "severity", "culprits", "outcome", "saved",
        "what",
    )  # fmt: skip
    for one in incidents:
        incident = one.incident
        shown.add_row(
            cell(incident.id),
            cell(moment(incident.milestones.first_seen_s)),
            cell(incident.kind),
            word(incident.state),
            word(incident.severity),
            cell(list(incident.culprits)),
            cell(one.account.outcome),
            cell(one.account.saved),
            cell(one.face.says),
        )
    console().print(shown)


def show_totals(found: Totals) -> None:
    """What they came to."""
    out = console()
    evictions = counted(found.evictions, "eviction")
    out.print(Text(f"{evictions}; {counted(found.incidents, 'incident')} fired"))
    lost, saved = _told(found.lost), _told(found.saved)
    out.print(Text(f"lost {lost}; evictions saved {saved}", style="dim"))


def _told(amount: Total) -> str:
    tail = f" (and {amount.unknown} of which it cannot be told)" if amount.unknown else ""
    return f"{amount} rank-seconds{tail}"


def _one(args: argparse.Namespace) -> int:
    body = ask(args, f"/v1/incidents/{quote(args.id, safe='')}")
    places = Places(args.monitor.partition(",")[0], body.get("journal"))
    _show_one(args, report_from_json(body), body, places)
    return DONE


def _show_one(
    args: argparse.Namespace, one: IncidentReport, body: Mapping[str, Any], places: Places
) -> None:
    if args.format == "json":
        print_json(body)
        return
    out = console()
    for line in story(one, places):
        out.print(Text(line.text, style=line.style), soft_wrap=True)
