"""The course of an incident as a table, in the order in which things began. Pure.

Above it stands what the job did meanwhile: it stood, it trained without a group, it was
whole again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.reports.incident_pieces import chip, lasting, plain, table
from monitor.reports.incident_words import began_s, ended_s, moment_of
from monitor.reports.markup import element, escaped

RUNGS: Final = {
    "evidence": "evidence saved",
    "quarantine": "quarantine",
    "gate": "gate refuses it",
    "lighthouse_kill": "Lighthouse kill",
    "worker_evict": "WorkerServers",
    "scheduler": "scheduler",
    "page": "page a person",
}
"""In the order in which they are climbed."""
_RESULTS: Final = {"worked": "good", "failed": "bad", "unknown": "away", "skipped": "idle"}
_MOST: Final = 40
_BRIEF_S: Final = 0.05
"""Shorter ones are seen by nobody."""


@dataclass(frozen=True, slots=True)
class Event:
    """One row: a stretch of time, or a moment where both ends are the same."""

    label: str
    start_s: float
    end_s: float | None
    """None: it goes on."""
    tone: str
    told: str = ""


def events(body: Mapping[str, Any]) -> list[Event]:
    """All rows, in the order in which things began."""
    found = [*_seen(body), *_held(body), *_climbed(body), *_came_of_it(body)]
    return sorted(found, key=lambda one: one.start_s)[:_MOST]


def course(body: Mapping[str, Any], now_s: float) -> str:
    """The table; empty where no time is known."""
    rows = events(body)
    if not rows:
        return ""
    first_s, end_s = rows[0].start_s, _last_s(body, rows, now_s)
    did = (
        element("li", chip(one.label, one.tone), escaped(f" {_long(one, end_s)}"))
        for one in _phases(body, first_s, end_s)
    )
    cells = ([_after(one.start_s - first_s), chip(one.label, one.tone),
              _long(one, end_s), escaped(one.told)] for one in rows)  # fmt: skip
    return element("ul", *did, class_="phases") + table(("after", "what", "for", "which is"), cells)


def _after(seconds: float) -> str:
    return f"+{seconds:.1f} s" if seconds < 600 else f"+{lasting(seconds)}"


def _long(one: Event, end_s: float) -> str:
    until = end_s if one.end_s is None else one.end_s
    goes_on = " so far" if one.end_s is None else ""
    return "" if until <= one.start_s else f"{lasting(until - one.start_s)}{goes_on}"


def _last_s(body: Mapping[str, Any], rows: Sequence[Event], now_s: float) -> float:
    known = [one.start_s if one.end_s is None else one.end_s for one in rows]
    return max(known + ([now_s] if body["state"] != "resolved" else []))


# -- rows ----------------------------------------------------------------------------------------


def _seen(body: Mapping[str, Any]) -> Iterator[Event]:
    marks, began = body["milestones"], began_s(body)
    first, firing = moment_of(marks["first_seen_s"]), moment_of(marks["firing_s"])
    if first is None or body["kind"] == "by_hand":
        return
    if first > began:
        yield Event("not seen yet", began, first, "idle", "from its beginning to first sight")
    yield Event("first seen", first, firing if firing is not None else ended_s(body), "wait",
                "seen, and watched until it is sure")  # fmt: skip
    if firing is not None:
        until = moment_of(marks["evict_asked_s"]) or ended_s(body)
        yield Event("firing", firing, until, "bad", "until the eviction was asked, or it was over")


def _held(body: Mapping[str, Any]) -> Iterator[Event]:
    for held in body["account"]["holds"][-8:]:
        start = moment_of(held["start_s"])
        if start is not None:
            label = f"held: {plain(held['guard'])}"
            yield Event(label, start, moment_of(held["end_s"]), "away", str(held["reason"]))


def _climbed(body: Mapping[str, Any]) -> Iterator[Event]:
    for row in body["decisions"]:
        at = moment_of(row["at_s"])
        if row["action"] == "evict" and at is not None:
            yield Event("decided", at, at, "bad", str(row["reason"]))
    for one in body["evictions"][-3:]:
        asked = moment_of(one["asked_s"])
        if asked is not None:
            yield Event(f"asked: {one['group']}", asked, asked, "bad", "the eviction was asked for")
        for rung in one["rungs"]:
            start = moment_of(rung["started_s"])
            if start is not None:
                tone = _RESULTS.get(rung["result"] or "", "wait")
                label = RUNGS.get(rung["rung"], plain(rung["rung"]))
                end = moment_of(rung["finished_s"])
                yield Event(label, start, end, tone, f"{rung['result']}: {rung['detail']}")


def _came_of_it(body: Mapping[str, Any]) -> Iterator[Event]:
    marks, evictions = body["milestones"], body["evictions"]
    gone = evictions[-1]["gone_s"] if evictions else None
    left = marks["left_quorum_s"] or (evictions[-1]["left_quorum_s"] if evictions else None)
    told = (
        ("processes gone", gone, "good", "every accused process was gone"),
        ("left the quorum", left, "good", "a quorum without it was seen"),
        ("others commit", marks["survivor_commit_s"], "good", "the first commit of another group"),
        ("back", marks["rejoined_s"], "good", "its first commit as a new replica"),
        ("whole again", marks["resumed_s"], "good", "as many groups commit as before"),
        ("resolved", ended_s(body), "good", str(body["resolution"] or "")),
    )
    for label, at_s, tone, why in told:
        at = moment_of(at_s)
        if at is not None:
            yield Event(label, at, at, tone, why)


# -- what the job did ----------------------------------------------------------------------------


def _phases(body: Mapping[str, Any], first_s: float, end_s: float) -> list[Event]:
    """What the job did: as far as commits that were seen tell."""
    marks = {name: moment_of(at_s) for name, at_s in body["milestones"].items()}
    evicted = body["account"]["outcome"] in ("evicted", "evicting", "failed")
    others = marks["survivor_commit_s"]
    whole = marks["resumed_s"] or marks["rejoined_s"]
    short_s = whole if whole is not None else end_s if evicted else first_s
    parts = (
        ("bad", _suffers(body), others or whole or end_s),
        ("wait", "a group short", short_s),
        ("good", "the job trains" if whole is None else "all groups train", end_s),
    )
    found, at = [], first_s
    for tone, label, until in parts:
        if min(until, end_s) > at + _BRIEF_S:
            found.append(Event(label, at, min(until, end_s), tone))
            at = min(until, end_s)
    return found


def _suffers(body: Mapping[str, Any]) -> str:
    if body["kind"] == "straggler":
        return "the job is slower"
    stands = body["severity"] == "critical" and body["kind"] != "replica_lag"
    return "the job stands" if stands else "the job is disturbed"
