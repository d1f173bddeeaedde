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
from monitor.commands.printing import (
    LatestAnswer,
    Sheet,
    away_lines,
    cell,
    console,
    live,
    moment,
    need_terminal,
    print_json,
    watch,
    word,
)
from monitor.decide.accounts import (
    Choice,
    ChoiceError,
    IncidentAccount,
    SpanCosts,
    find,
    span_costs,
    span_s,
)
from monitor.decide.audit import audit_of
from monitor.decide.pipeline import TickResult
from monitor.decide.view import SCHEMA, IncidentReport, View, bundle_url
from monitor.decide.view_json import report_from_json, report_to_json
from monitor.model.config import KeeperConfig
from monitor.model.eviction import DecisionRow, Remembered
from monitor.model.names import IncidentId
from monitor.model.observation import LighthouseAway, Snapshot
from monitor.model.plain import from_plain
from monitor.model.verdict import Kind, Severity
from monitor.model.wording import who
from monitor.show.status import incidents_screen
from monitor.show.tables import Line
from monitor.show.wording import clean, counted, plain, sentence
from monitor.show.wording import listed as in_words
from monitor.store.place import StoreError, parse_place
from monitor.store.store import Store

# One incident for a person at 3 am: what happened, what was done, how long, at what cost.

WIDTH: Final = 100
BAR: Final = 36
"""Width of the bar chart."""
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
"""Most suspects or victims named."""


def story(report: IncidentReport, monitor: str, journal: str | None = None) -> Iterator[Text]:
    """`monitor`: its URL, empty if it is away."""
    yield from _head(report)
    yield from _happened(report)
    yield from _done(report)
    yield from _took(report.account)
    yield from _cost(report.account)
    yield from _next(report, monitor.rstrip("/"), journal)


def _title(text: str) -> Iterator[Text]:
    yield Text("")
    yield Text(text, "bold cyan")


_STYLES: Final = {Severity.CRITICAL: "bold red", Severity.WARNING: "bold yellow"}


def _head(report: IncidentReport) -> Iterator[Text]:
    incident = report.incident
    groups = _list(incident.groups) or "nobody's fault"
    what = f"{plain(incident.kind)} in {groups}: {report.account.outcome}, {incident.state}"
    yield Text(what, _STYLES.get(incident.severity, "bold"))
    began = moment(incident.milestones.first_seen_s)
    yield Text(f"{clean(incident.id, 300)}, {incident.severity}, {began}", "dim")


def _happened(report: IncidentReport) -> Iterator[Text]:
    incident, face = report.incident, report.face
    yield from _title("What happened")
    yield from _wrapped("  ", sentence(f"{face.says.rstrip('.')}. {face.next}".strip()))
    hosts = _list(report.account.ran_on)
    where = f" on {hosts}" if hosts else ""
    if incident.kind is Kind.BY_HAND:  # nobody is accused of anything
        yield from _row("group", f"{_list(incident.groups)}{where}")
    else:
        label = "candidates" if incident.candidates else "blamed"
        names = _list(incident.suspects) or "nobody"
        yield from _row(label, f"{names}{where} ({incident.verdict.confidence})")
    if report.victims:
        more = report.victim_count - len(report.victims)
        yield from _row("waited", _list(report.victims) + (f" and {more:,} more" if more else ""))
    for rank, seen in report.seen.items():
        yield from _row("now", f"{rank}: {seen}")
    for source, seen in incident.verdict.evidence.items():
        yield from _row("seen", f"{source}: {seen}")


def _done(report: IncidentReport) -> Iterator[Text]:
    account = report.account
    yield from _title("What was done")
    yield from _row("decided by", f"{account.decided_by}: {account.why}")
    for hold in account.holds:
        release = f". {hold.release}" if hold.release else ""
        after = f"; then {hold.ended_by}" if hold.ended_by else ""
        text = f"{hold.guard} for {_span(hold.seconds)}: {hold.reason}{release}{after}"
        yield from _row("held", text)
    rungs = [rung for eviction in report.evictions for rung in eviction.rungs]
    for rung in sorted(rungs, key=lambda rung: rung.started_s):
        result = f"{rung.result}, " if rung.result else ""
        detail = rung.detail.removeprefix(f"{rung.result}: ")  # some rungs repeat it
        over_s = rung.finished_s
        took = _span(None if over_s is None else max(0.0, over_s - rung.started_s))
        yield from _row(plain(rung.rung), f"{result}{took}: {detail}")
    for eviction in report.evictions:
        if eviction.failed:
            yield from _row("failed", eviction.failed, "bold red")
    if report.incident.resolution:
        yield from _row("over", report.incident.resolution, "green")
    if account.back_on:
        yield from _row("back on", _list(account.back_on), "green")


def _took(account: IncidentAccount) -> Iterator[Text]:
    parts = account.intervals
    if not parts:
        return
    total_s = sum(part.seconds for part in parts)
    yield from _title(f"How long each part took: {total_s:.1f} s")
    for part in parts:
        bar = _bar(part.start_s - parts[0].start_s, part.seconds, total_s)
        odd = "  (the clock jumped)" if part.jumped else ""
        name = _PARTS.get(part.until, part.until)
        yield Text(f"  {name:<30}{part.seconds:>8.1f} s  |{bar}|{odd}")


def _bar(start_s: float, seconds: float, total_s: float) -> str:
    """A bar for this part of the whole."""
    if total_s <= 0:
        return " " * BAR
    start = min(BAR - 1, int(start_s / total_s * BAR))
    length = max(1, round(seconds / total_s * BAR)) if seconds > 0 else 0
    return (" " * start + "#" * length)[:BAR].ljust(BAR)


def _cost(account: IncidentAccount) -> Iterator[Text]:
    yield from _title("What it cost, in rank-seconds, by lightkeeper's own account")
    for name, amount in (
        ("others lost", account.lost_by_others),
        ("it was away", account.lost_by_own),
    ):
        yield from _row(name, f"{amount}: {amount.words.removeprefix('cannot tell: ')}")


# -- what to do next -----------------------------------------------------------------------------


def _next(report: IncidentReport, base: str, journal: str | None) -> Iterator[Text]:
    incident = report.incident
    yield from _title("What to do next")
    for text in advice(report):
        yield from _wrapped("  - ", clean(text))
    if report.bundle is not None and base:
        yield _whole("evidence", f"{base}{bundle_url(incident.id)} (for lightkeeper analyze)")
    if journal:
        began_s = int(incident.milestones.first_seen_s) - 60
        until_s = int(incident.last_seen_s) + 60
        span = f"--from {began_s} --to {until_s}"
        yield _whole("replay", f"lightkeeper replay {journal} {span}")
    if base:
        yield _whole("page", f"{base}/incidents/{quote(incident.id, safe='')}")


def advice(report: IncidentReport) -> Iterator[str]:
    """What to do, most urgent first."""
    incident, account = report.incident, report.account
    outcome, kind = account.outcome, incident.kind
    hosts = " and ".join(account.ran_on) or "the host"
    if outcome == "failed":
        yield f"the eviction failed: end the processes of {_list(incident.groups)} by hand"
    if outcome == "held" and incident.open and account.holds:
        yield report.face.next
    if kind in (Kind.MISMATCH, Kind.DEADLOCK):
        yield "a fault of the program, mostly: read the line that the evidence names"
    elif kind is Kind.LIGHTHOUSE_AWAY:
        yield "start the Lighthouse again; nobody was evicted for it"
    elif outcome in ("evicted", "evicting") and incident.culprits:
        yield f"look at {hosts} before it is used again: lightkeeper quarantine list"
    if outcome == "evicted" and account.final and not account.back_on:
        yield "the group was not seen to come back: ask its launcher"


def _row(name: str, text: str, style: str = "") -> Iterator[Text]:
    """A fact and its name, in lines that fit a terminal or a mail."""
    yield from _wrapped(f"  {name:<16}", clean(str(text)), style)


def _whole(name: str, text: str) -> Text:
    """On one line, so that it can be copied."""
    return Text(f"  {name:<16}{clean(text)}")


def _wrapped(start: str, text: str, style: str = "") -> Iterator[Text]:
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in lines or [start]:
        yield Text(line, style)


def _list(names: Sequence[str]) -> str:
    return in_words(names, _NAMES)


def _span(seconds: float | None) -> str:
    return "as long as is known" if seconds is None else f"{seconds:.1f} s"


# -- where incidents come from: a monitor, or its store -------------------------------------------


@dataclass(frozen=True, slots=True)
class Sought:
    since: str | None
    kind: str | None
    group: str | None

    def query(self, **more: Any) -> str:
        try:
            span_s(self.since or "1s")
        except ChoiceError as exc:
            raise CommandError(f"--{exc}") from exc
        chosen = {**asdict(self), **more}
        return urlencode({name: value for name, value in chosen.items() if value is not None})


class Stored:
    """A store's contents as the API would answer. Nothing is written to it.

    Raises:
        CommandError: no store there, or it cannot be read.
    """

    def __init__(self, place: str) -> None:
        self._view = _view(_read(place))

    def get(self, prefix: str) -> IncidentReport:
        """The incident with this prefix.

        Raises:
            CommandError: none, or several match.
        """
        try:
            return self._view.report(find(self._view.incidents, prefix))
        except ChoiceError as exc:
            raise CommandError(str(exc), FAILED) from exc

    def _choice(self, sought: Sought) -> Choice:
        try:
            return Choice.of(sought.since, sought.kind, sought.group, self._view.snapshot.now_s)
        except ChoiceError as exc:
            raise CommandError(f"--{exc}") from exc

    def listed(self, sought: Sought, limit: int) -> dict[str, Any]:
        incidents = self._choice(sought).among(self._view.incidents)[: max(1, limit)]
        reports = [report_to_json(self._view.report(incident)) for incident in incidents]
        return {"schema": SCHEMA, "incidents": reports}

    def totals(self, sought: Sought) -> SpanCosts:
        choice = self._choice(sought)
        fired = [
            incident
            for incident in self._view.incidents
            if incident.milestones.firing_s is not None
        ]
        cases = [self._view.case(incident) for incident in choice.among(fired)]
        return span_costs(cases, choice.since_s, self._view.snapshot.now_s)


def _read(text: str) -> Remembered:
    try:
        place = parse_place(text)
        if place.path is not None and not place.path.is_file():
            raise CommandError(f"no store at {place.path}", FAILED)
        store = Store(place)
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    try:
        store.follow()  # a monitor may be writing it
        return store.remembered()
    except StoreError as exc:
        raise CommandError(str(exc), FAILED) from exc
    finally:
        store.close()


def _view(remembered: Remembered) -> View:
    now_s = time.time()
    decisions: dict[IncidentId, Sequence[DecisionRow]] = {}
    for row in remembered.decisions:
        decisions[row.incident_id] = (*decisions.get(row.incident_id, ()), row)
    return View(
        snapshot=Snapshot(now_s, 0, 0.0, (), LighthouseAway("read from a store")),
        result=TickResult(now_s),
        observe=False,
        incidents=remembered.incidents,
        decisions=decisions,
        evictions={eviction.incident_id: eviction for eviction in remembered.taken_up},
        audit=audit_of(remembered, KeeperConfig()),
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
    option("--since", metavar="SPAN", help="open, or ended within SPAN: 90s, 15m, 12h, 7d"),
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
        live(lambda: _reports(ask()), watch, _draw)
        return
    stored = None if store is None else Stored(store)
    body = ask() if stored is None else stored.listed(sought, limit)
    if as_json:
        print_json(body)
        return
    show_list(_reports(body))
    if stored is None:
        show_totals(from_plain(SpanCosts, monitor.ask(f"/v1/audit?{sought.query()}")))
    else:
        show_totals(stored.totals(sought))


def _reports(body: Mapping[str, Any]) -> list[IncidentReport]:
    return [report_from_json(report) for report in body["incidents"]]


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
    docs/offline.md says how its cost is computed.
    """
    if store is not None:
        report, monitor_url = Stored(store).get(id), ""
        body = {"schema": SCHEMA, **report_to_json(report)}
    else:
        body = monitor.ask(f"/v1/incidents/{quote(id, safe='')}")
        report, monitor_url = report_from_json(body), monitor.urls[0]
    if as_json:
        print_json(body)
        return
    out = console()
    for line in story(report, monitor_url, body.get("journal")):
        out.print(line, soft_wrap=True)


def _draw(look: LatestAnswer[list[IncidentReport]], width: int, height: int) -> list[Line]:
    top = away_lines(look.away, width)
    return [*top, *incidents_screen(look.seen, width, height - len(top))]


def show_list(incidents: Sequence[IncidentReport]) -> None:
    shown = Sheet(
        "incidents", "id", "since", "kind", "state", "severity", "who", "outcome", "lost",
        "what",
    )  # fmt: skip
    for report in incidents:
        incident = report.incident
        shown.add_row(
            cell(incident.id),
            cell(moment(incident.milestones.first_seen_s)),
            cell(incident.kind),
            word(incident.state),
            word(incident.severity),
            cell(who(incident, _NAMES)),
            cell(report.account.outcome),
            cell(report.account.lost),
            cell(report.face.says),
        )
    console().print(shown)


def show_totals(totals: SpanCosts) -> None:
    out = console()
    evictions = counted(totals.evictions, "eviction")
    out.print(Text(f"{evictions}; {counted(totals.incidents, 'incident')} fired"))
    lost = totals.lost
    tail = f" (and {lost.unknown} of which it cannot be told)" if lost.unknown else ""
    out.print(Text(f"lost {lost} rank-seconds{tail}", style="dim"))
