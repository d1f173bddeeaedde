"""Incidents and quarantine as lists. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from monitor.incident import Incident
from monitor.pages.context import Context
from monitor.pages.table import Cell, nothing, section, table
from monitor.pages.tree import Node, el
from monitor.pages.wording import NONE, ago, path_of, utc
from monitor.quarantine.record import HostRecord
from monitor.reports.incident_pieces import plain
from monitor.reports.incident_words import title
from monitor.reports.wording import counted, sentence
from monitor.store import QuarantineEntry, QuarantineEvent, Scope

_LATEST: Final = 4
_OPEN: Final = 40
_EVENTS: Final = 60
_TONES: Final = {
    "pending": "wait", "firing": "bad", "evicting": "wait", "resolved": "good",
    "critical": "bad", "warning": "wait", "info": "info",
}  # fmt: skip


def incidents(context: Context) -> Node:
    """The open ones, then the latest of the others."""
    every = context.view.incidents
    found = [one for one in every if one.open]
    shown = [*found[:_OPEN], *[one for one in every if not one.open][:_LATEST]]
    inside = _incident_list(context, shown) if shown else nothing("None so far.")
    more = el("p", el("a", "All incidents", href="/incidents"), class_="meta") if every else None
    return section("incidents", "Incidents", inside, more)


def concerning(context: Context, test: Callable[[Incident], bool]) -> Node:
    """Those that concern a group, a host or a rank."""
    found = [one for one in context.view.incidents if test(one)][:_OPEN]
    inside = _incident_list(context, found) if found else nothing("None that is remembered.")
    return section("incidents", "Incidents that concern it", inside)


def _incident_list(context: Context, shown: Sequence[Incident]) -> Node:
    return el("ul", *(_incident(context, one) for one in shown), class_="incidents")


def _incident(context: Context, one: Incident) -> Node:
    first_s = one.milestones.first_seen_s
    return el(
        "li",
        el("span", _tag(str(one.state)), " ", _tag(str(one.severity)), class_="tags"),
        el("a", _title(one), href=path_of("incidents", one.id), class_="what", title=str(one.kind)),
        el("span", sentence(one.verdict.reason), class_="why"),
        el("time", utc(first_s), title=one.id, class_="when"),
        el("span", ago(context.now_s - first_s), class_="ago"),
        class_=_TONES[str(one.state)],
        data_key=one.id,
    )


def _title(one: Incident) -> str:
    """As on its own page."""
    return title({
        "kind": str(one.kind), "state": str(one.state),
        "culprits": one.culprits, "groups": one.groups,
    })  # fmt: skip


def _tag(word: str) -> Node:
    return el("span", word, class_=f"tag {_TONES[word]}")


# -- quarantine ----------------------------------------------------------------------------------

_HEADS: Final = ("who", "since", "until", "by", "why", "incident", "offences", "")


def quarantine(context: Context) -> Node:
    """Hosts and groups that are kept out."""
    entries = (*context.view.quarantine, *context.view.quarantine_groups)
    if not entries:
        return section("quarantine", "Quarantine", nothing("No host and no group is kept out."))
    rows = [(f"{one.scope}/{one.name}", _entry(context, one)) for one in entries]
    return section("quarantine", "Quarantine", table(_HEADS, rows, "Quarantine"))


def _entry(context: Context, entry: QuarantineEntry) -> tuple[Cell, ...]:
    is_host = entry.scope is Scope.HOST
    record = context.view.hosts.get(entry.host) if is_host else None
    incident = entry.incident_id
    return (
        el("a", f"{entry.scope} {entry.name}",
           href=path_of("hosts" if is_host else "groups", entry.name)),
        utc(entry.since_s),
        "a person releases it" if entry.until_s is None else utc(entry.until_s),
        entry.author,
        f"{entry.reason} ({entry.note})" if entry.note else entry.reason,
        el("a", incident, href=path_of("incidents", incident)) if incident else NONE,
        NONE if record is None else str(sum(record.incidents.values())),
        "lemon" if record is not None and record.lemon else "",
    )  # fmt: skip


def history(events: Sequence[QuarantineEvent]) -> Node:
    """What happened to a host or a group, newest first."""
    if not events:
        return section("history", "Quarantine history", nothing("Nothing is on record."))
    rows = [
        (
            one.id,
            (
                utc(one.at_s),
                str(one.change),
                one.author,
                one.reason,
                NONE if one.until_s is None else utc(one.until_s),
                NONE
                if one.incident_id is None
                else el("a", one.incident_id, href=path_of("incidents", one.incident_id)),
            ),
        )
        for one in events[:_EVENTS]
    ]
    heads = ("when", "what", "by", "why", "until", "incident")
    return section("history", "Quarantine history", table(heads, rows, "Quarantine history"))


def record_of(record: HostRecord) -> list[tuple[str, Cell]]:
    """What a host's last weeks say."""
    kinds = ", ".join(f"{plain(kind)} {n}" for kind, n in sorted(record.incidents.items()))
    return [
        ("lemon", record.lemon or "no"),
        ("accused of", kinds or "nothing"),
        ("offences that count", str(record.offences)),
        ("held up other groups", counted(record.wide, "time")),
        ("held up its own group alone", counted(record.narrow, "time")),
        ("evictions", str(record.evictions)),
        ("times in quarantine", f"{record.quarantines}, by people {record.exclusions}"),
        (
            "let in again",
            f"{counted(record.readmissions, 'time')}, {record.failed_readmissions} went wrong",
        ),
    ]
