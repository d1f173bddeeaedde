"""`lightkeeper incidents list` and `show`: what went wrong, what was done, what it cost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from lightkeeper.monitor.commands.ask import Monitor, asking
from lightkeeper.monitor.commands.command import CommandError, as_json, command, option
from lightkeeper.monitor.commands.printing import Sheet, cell, console, moment, print_json, word
from lightkeeper.monitor.decide.accounts import ChoiceError, IncidentAccount, SpanCosts, span_s
from lightkeeper.monitor.decide.view import IncidentReport, bundle_url
from lightkeeper.monitor.decide.view_json import report_from_json
from lightkeeper.monitor.model.plain import from_plain
from lightkeeper.monitor.model.verdict import Kind, Severity
from lightkeeper.monitor.model.wording import who
from lightkeeper.monitor.show.wording import clean, counted, plain, sentence
from lightkeeper.monitor.show.wording import listed as in_words

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
    """`monitor`: its URL."""
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
    if report.bundle is not None:
        yield _whole("evidence", f"{base}{bundle_url(incident.id)} (for lightkeeper analyze)")
    if journal:
        began_s = int(incident.milestones.first_seen_s) - 60
        until_s = int(incident.last_seen_s) + 60
        span = f"--from {began_s} --to {until_s}"
        yield _whole("replay", f"lightkeeper replay {journal} {span}")
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


# -- the commands ----------------------------------------------------------------------------------


def _query(**chosen: Any) -> str:
    try:
        span_s(chosen["since"] or "1s")
    except ChoiceError as exc:
        raise CommandError(f"--{exc}") from exc
    return urlencode({name: value for name, value in chosen.items() if value is not None})


@command("list")
@option("--limit", type=int, default=20, help="how many")
@option("--since", metavar="SPAN", help="open, or ended within SPAN: 90s, 15m, 12h, 7d")
@option("--kind", type=click.Choice([str(kind) for kind in Kind]), metavar="KIND",
        help=f"one of {', '.join(Kind)}")  # fmt: skip
@option("--group", metavar="GROUP", help="that accuse this replica group")
@option("--run", metavar="RUN", help="that began in this run (get runs), or `current`")
@as_json
@asking
def listed(*, monitor: Monitor, as_json: bool, **chosen: Any) -> None:
    """The latest incidents, newest first, and what they came to.

    examples:
      lightkeeper incidents list
      lightkeeper incidents list --since 7d --kind straggler --group rg_1
      lightkeeper incidents list --format json | jq '.incidents[] | select(.state == "firing")'

    without a monitor, from its journal: lightkeeper replay

    exit status: 0 done, 1 no monitor answers, 2 wrong arguments
    """
    query = _query(**chosen)
    body = monitor.ask(f"/v1/incidents?{query}")
    if as_json:
        print_json(body)
        return
    show_list([report_from_json(report) for report in body["incidents"]])
    show_totals(from_plain(SpanCosts, monitor.ask(f"/v1/audit?{query}")))


@command()
@click.argument("id")
@as_json
@asking
def show(*, monitor: Monitor, id: str, as_json: bool) -> None:  # noqa: A002
    """One incident, with its story: what happened, what was done, how long it took, what it cost.

    examples:
      lightkeeper incidents show not_ent     the beginning of its id will do

    exit status: 0 done, 1 no such incident or no monitor, 2 wrong arguments
    docs/offline.md says how its cost is computed.
    """
    body = monitor.ask(f"/v1/incidents/{quote(id, safe='')}")
    if as_json:
        print_json(body)
        return
    out = console()
    for line in story(report_from_json(body), monitor.urls[0], body["journal"]):
        out.print(line, soft_wrap=True)


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
