"""`lightkeeper incidents list` and `show`: what went wrong, what was done, what it cost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from lightkeeper.monitor.commands.ask import Monitor, asking
from lightkeeper.monitor.commands.command import as_json, command, option
from lightkeeper.monitor.commands.printing import console, print_json, show_table, text
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import suspects
from lightkeeper.monitor.show.terminal import STYLES, moment
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


def story(report: Mapping[str, Any], monitor: str) -> Iterator[Text]:
    """`report`: the monitor's answer; `monitor`: its URL."""
    account = report["account"]
    yield from _head(report)
    yield from _happened(report)
    yield from _done(report)
    yield from _took(account["intervals"])
    yield from _title("What it cost, in rank-seconds, by lightkeeper's own account")
    for name, key in (("others lost", "lost_by_others"), ("it was away", "lost_by_own")):
        yield from _row(name, f"{account[key]['text']}: {account[key]['words']}")
    yield from _next(report, monitor.rstrip("/"))


def _title(text: str) -> Iterator[Text]:
    yield Text("")
    yield Text(text, "bold cyan")


def _head(report: Mapping[str, Any]) -> Iterator[Text]:
    groups = _list(report["groups"]) or "nobody's fault"
    outcome, severity = report["account"]["outcome"], report["severity"]
    what = f"{plain(report['kind'])} in {groups}: {outcome}, {report['state']}"
    yield text(what, STYLES.get(severity, "bold"))
    began = moment(report["milestones"]["first_seen_s"])
    yield text(f"{clean(report['id'], 300)}, {severity}, {began}", "dim")


def _happened(report: Mapping[str, Any]) -> Iterator[Text]:
    yield from _title("What happened")
    yield from _wrapped("  ", sentence(f"{report['says'].rstrip('.')}. {report['next']}".strip()))
    hosts = _list(report["account"]["ran_on"])
    where = f" on {hosts}" if hosts else ""
    if report["kind"] == Kind.BY_HAND:  # nobody is accused of anything
        yield from _row("group", f"{_list(report['groups'])}{where}")
    else:
        label = "candidates" if report["candidates"] else "blamed"
        names = _list(report["culprits"] or report["candidates"]) or "nobody"
        yield from _row(label, f"{names}{where} ({report['confidence']})")
    if victims := report["victims"]:
        more = report["victim_count"] - len(victims)
        yield from _row("waited", _list(victims) + (f" and {more:,} more" if more else ""))
    for name, seen in (("now", report["seen"]), ("seen", report["evidence"])):
        for about, what in seen.items():
            yield from _row(name, f"{about}: {what}")


def _done(report: Mapping[str, Any]) -> Iterator[Text]:
    account, evictions = report["account"], report["evictions"]
    yield from _title("What was done")
    yield from _row("decided by", f"{account['decided_by']}: {account['why']}")
    for hold in account["holds"]:
        release = f". {hold['release']}" if hold["release"] else ""
        after = f"; then {hold['ended_by']}" if hold["ended_by"] else ""
        held = f"{hold['guard']} for {_span(hold['seconds'])}: {hold['reason']}{release}{after}"
        yield from _row("held", held)
    rungs = [rung for eviction in evictions for rung in eviction["rungs"]]
    for rung in sorted(rungs, key=lambda rung: rung["started_s"]):
        over_s, result = rung["finished_s"], rung["result"]
        took = _span(None if over_s is None else max(0.0, over_s - rung["started_s"]))
        detail = rung["detail"].removeprefix(f"{result}: ")  # some rungs repeat it
        yield from _row(plain(rung["rung"]), f"{f'{result}, ' if result else ''}{took}: {detail}")
    for eviction in evictions:
        if eviction["failed"]:
            yield from _row("failed", eviction["failed"], "bold red")
    if report["resolution"]:
        yield from _row("over", report["resolution"], "green")
    if account["back_on"]:
        yield from _row("back on", _list(account["back_on"]), "green")


def _took(parts: Sequence[Mapping[str, Any]]) -> Iterator[Text]:
    if not parts:
        return
    total_s = sum(part["seconds"] for part in parts)
    yield from _title(f"How long each part took: {total_s:.1f} s")
    for part in parts:
        bar = _bar(part["start_s"] - parts[0]["start_s"], part["seconds"], total_s)
        odd = "  (the clock jumped)" if part["jumped"] else ""
        name = _PARTS.get(part["until"], part["until"])
        yield text(f"  {name:<30}{part['seconds']:>8.1f} s  |{bar}|{odd}")


def _bar(start_s: float, seconds: float, total_s: float) -> str:
    """A bar for this part of the whole."""
    if total_s <= 0:
        return " " * BAR
    start = min(BAR - 1, int(start_s / total_s * BAR))
    length = max(1, round(seconds / total_s * BAR)) if seconds > 0 else 0
    return (" " * start + "#" * length)[:BAR].ljust(BAR)


def _next(report: Mapping[str, Any], base: str) -> Iterator[Text]:
    yield from _title("What to do next")
    for advised in advice(report):
        yield from _wrapped("  - ", clean(advised))
    if report["bundle"] is not None:
        yield _whole("evidence", f"{base}{report['bundle']['url']} (for lightkeeper analyze)")
    if report["journal"]:
        began_s = int(report["milestones"]["first_seen_s"]) - 60
        span = f"--from {began_s} --to {int(report['last_seen_s']) + 60}"
        yield _whole("replay", f"lightkeeper replay {report['journal']} {span}")
    yield _whole("page", f"{base}/incidents/{quote(report['id'], safe='')}")


def advice(report: Mapping[str, Any]) -> Iterator[str]:
    """What to do, most urgent first."""
    account, kind = report["account"], report["kind"]
    outcome, is_open = account["outcome"], report["state"] != State.RESOLVED
    hosts = " and ".join(account["ran_on"]) or "the host"
    if outcome == "failed":
        yield f"the eviction failed: end the processes of {_list(report['groups'])} by hand"
    if outcome == "held" and is_open and account["holds"]:
        yield report["next"]
    if kind in (Kind.MISMATCH, Kind.DEADLOCK):
        yield "a fault of the program, mostly: read the line that the evidence names"
    elif kind == Kind.LIGHTHOUSE_AWAY:
        yield "start the Lighthouse again; nobody was evicted for it"
    elif outcome in ("evicted", "evicting") and report["culprits"]:
        yield f"look at {hosts} before it is used again: lightkeeper quarantine list"
    if outcome == "evicted" and account["final"] and not account["back_on"]:
        yield "the group was not seen to come back: ask its launcher"


def _row(name: str, about: str, style: str = "") -> Iterator[Text]:
    """A fact and its name, in lines that fit a terminal or a mail."""
    yield from _wrapped(f"  {name:<16}", clean(about), style)


def _whole(name: str, about: str) -> Text:
    """On one line, so that it can be copied."""
    return Text(f"  {name:<16}{clean(about)}")


def _wrapped(start: str, about: str, style: str = "") -> Iterator[Text]:
    lines = textwrap.wrap(
        about, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in lines or [start]:
        yield Text(line, style)


def _list(names: Sequence[str]) -> str:
    return in_words(names, _NAMES)


def _span(seconds: float | None) -> str:
    return "as long as is known" if seconds is None else f"{seconds:.1f} s"


# -- the commands ----------------------------------------------------------------------------------


@command("list")
@option("--limit", type=int, default=20, help="how many")
@option("--since", metavar="SPAN", help="open, or ended within SPAN: 90s, 15m, 12h, 7d")
@option("--kind", type=click.Choice([str(kind) for kind in Kind]), metavar="KIND",
        help=f"one of {', '.join(Kind)}")  # fmt: skip
@option("--group", metavar="GROUP", help="that accuse this replica group")
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
    query = urlencode({name: value for name, value in chosen.items() if value is not None})
    body = monitor.ask(f"/v1/incidents?{query}")
    if as_json:
        print_json(body)
        return
    columns = ("id", "since", "kind", "state", "severity", "who", "outcome", "lost", "what")
    rows = [
        (report["id"], moment(report["milestones"]["first_seen_s"]), report["kind"],
         report["state"], report["severity"],
         suspects(report["culprits"], report["candidates"], _NAMES), report["account"]["outcome"],
         report["account"]["lost"]["text"], report["says"])
        for report in body["incidents"]
    ]  # fmt: skip
    out, totals = console(), monitor.ask(f"/v1/audit?{query}")
    show_table(out, "incidents", columns, rows)
    evictions = counted(totals["evictions"], "eviction")
    out.print(text(f"{evictions}; {counted(totals['incidents'], 'incident')} fired"))
    unknown = totals["lost"]["unknown"]
    tail = f" (and {unknown} of which it cannot be told)" if unknown else ""
    out.print(text(f"lost {totals['lost']['text']} rank-seconds{tail}", style="dim"))


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
    for line in story(body, monitor.urls[0]):
        out.print(line, soft_wrap=True)
