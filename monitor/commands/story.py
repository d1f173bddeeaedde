"""One incident as a person reads it at 3 am: what happened, was done, how long, at what cost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from monitor.audit.amounts import bounds
from monitor.commands.tables import moment
from monitor.reports.incident_deeds import rung_words
from monitor.reports.wording import clean, sentence

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
class Line:
    """One line, and how it looks."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a person finds more."""

    monitor: str
    """URL; empty when it is away."""
    journal: str | None = None


def story(body: Mapping[str, Any], places: Places) -> Iterator[Line]:
    """The lines of an incident, from its JSON."""
    account = body.get("account") or {}
    yield from _head(body, account)
    yield from _happened(body, account)
    yield from _done(body, account)
    yield from _took(account)
    yield from _cost(account)
    yield from _next(body, account, places)


def _title(text: str) -> Iterator[Line]:
    yield Line("")
    yield Line(text, "bold cyan")


def _head(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[Line]:
    groups = _list(body["groups"]) or "nobody's fault"
    what = str(body["kind"]).replace("_", " ")
    outcome = account.get("outcome", body["state"])
    style = {"critical": "bold red", "warning": "bold yellow"}.get(body["severity"], "bold")
    yield Line(f"{what} in {groups}: {outcome}, {body['state']}", style)
    began_s = body["milestones"]["first_seen_s"]
    yield Line(f"{clean(str(body['id']), 300)}, {body['severity']}, {moment(began_s)}", "dim")


def _happened(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[Line]:
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


def _blamed(body: Mapping[str, Any], where: str) -> Iterator[Line]:
    blamed = _list(body["culprits"]) or "nobody"
    yield from _row("blamed", f"{blamed}{f' on {where}' if where else ''} ({body['confidence']})")


def _done(body: Mapping[str, Any], account: Mapping[str, Any]) -> Iterator[Line]:
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


def _took(account: Mapping[str, Any]) -> Iterator[Line]:
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
        yield Line(f"  {name:<30}{part['seconds']:>8.1f} s  |{bar}|{odd}")


def _bar(start_s: float, seconds: float, total_s: float) -> str:
    """Where this part lies in the whole."""
    if total_s <= 0:
        return " " * BAR
    start = min(BAR - 1, int(start_s / total_s * BAR))
    length = max(1, round(seconds / total_s * BAR)) if seconds > 0 else 0
    return (" " * start + "#" * length)[:BAR].ljust(BAR)


def _cost(account: Mapping[str, Any]) -> Iterator[Line]:
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


def _next(body: Mapping[str, Any], account: Mapping[str, Any], places: Places) -> Iterator[Line]:
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


def _row(name: str, text: str, style: str = "") -> Iterator[Line]:
    """A fact and its name, in lines that fit a terminal and a mail."""
    yield from _wrapped(f"  {name:<16}", clean(str(text)), style)


def _whole(name: str, text: str) -> Line:
    """One line however long: to be copied."""
    return Line(f"  {name:<16}{clean(text)}")


def _wrapped(start: str, text: str, style: str = "") -> Iterator[Line]:
    made = textwrap.wrap(
        text, WIDTH, initial_indent=start, subsequent_indent=" " * len(start),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    for line in made or [start]:
        yield Line(line, style)


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(clean(str(name), 200) for name in names[:_NAMES])
    return f"{shown} and {len(names) - _NAMES} more" if len(names) > _NAMES else shown


def _span(seconds: float | None) -> str:
    return "as long as is known" if seconds is None else f"{seconds:.1f} s"
