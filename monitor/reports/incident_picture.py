"""The course of an incident as one drawing: a row for each thing that happened, on one axis. Pure.

Behind the rows stands what the job did meanwhile: it stood, it trained without a group, it was
whole again. A long stretch in which nothing happened is cut short, and the cut is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from monitor.reports.incident_pieces import lasting, plain
from monitor.reports.incident_words import began_s, ended_s, moment_of
from monitor.reports.markup import drawing, element, fitted, words

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
_NAME, _TIMES, _PLOT = 124.0, 130.0, 820.0
_LABEL = _NAME + _TIMES
"""Names and times stand on the left: a phone shows them without scrolling."""
_TOP, _ROW, _BAR = 46.0, 22.0, 12.0
_STEPS: Final = (0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400)


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


def picture(body: Mapping[str, Any], now_s: float) -> str:
    """The drawing; empty where no time is known."""
    rows = events(body)
    if not rows:
        return ""
    end_s = _last_s(body, rows, now_s)
    axis = _Axis(_points(body, rows, end_s))
    height = _TOP + len(rows) * _ROW + 6
    phases = _phases(body, axis.first, end_s)
    label = f"what happened when: {len(rows)} rows from {rows[0].label} to {rows[-1].label}"
    return drawing(
        _LABEL + _PLOT + 30,
        height,
        label,
        *(_phase(axis, one, height) for one in phases),
        *_ticks(axis, height),
        *(_row(axis, one, index, end_s) for index, one in enumerate(rows)),
    ) + _legend(phases)


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


# -- the axis ------------------------------------------------------------------------------------


class _Axis:
    """From times to places; the longest stretch gets half of the room at most."""

    def __init__(self, points: Sequence[float]) -> None:
        self.first, self.last = points[0], max(points[-1], points[0] + 1e-3)
        gaps = [(b - a, a, b) for a, b in pairwise(points)]
        longest, a, b = max(gaps, default=(0.0, self.first, self.last))
        rest = (self.last - self.first) - longest
        self.cut = (a, b) if rest > 0 and longest > 3 * rest else None
        self._shown = rest if self.cut else longest  # how long the longest is drawn
        self._longest = longest
        self._scale = _PLOT / max(rest + self._shown, 1e-3)

    def x(self, at_s: float) -> float:
        at = min(max(at_s, self.first), self.last)
        if self.cut is None:
            return _LABEL + (at - self.first) * self._scale
        a, b = self.cut
        inside = min(max(at - a, 0.0), b - a) * self._shown / self._longest
        return _LABEL + (min(at, a) - self.first + inside + max(at - b, 0.0)) * self._scale


def _last_s(body: Mapping[str, Any], rows: Sequence[Event], now_s: float) -> float:
    known = [one.start_s if one.end_s is None else one.end_s for one in rows]
    goes_on = body["state"] != "resolved" or any(one.end_s is None for one in rows)
    return max(known + ([now_s] if goes_on and body["state"] != "resolved" else []))


def _points(body: Mapping[str, Any], rows: Sequence[Event], end_s: float) -> list[float]:
    told = [moment_of(at_s) for at_s in body["milestones"].values()]
    inside = [at_s for at_s in told if at_s is not None and rows[0].start_s <= at_s <= end_s]
    ends = [one.end_s for one in rows if one.end_s is not None]
    return sorted({*inside, *ends, *(one.start_s for one in rows), end_s})


def _ticks(axis: _Axis, height: float) -> Iterator[str]:
    span = axis.last - axis.first
    if axis.cut is not None:
        a, b = axis.cut
        for x in (axis.x(a), axis.x(b)):
            yield element("line", x1=x, x2=x, y1=_TOP - 8, y2=height, class_="cut")
        middle = (axis.x(a) + axis.x(b)) / 2
        told = f"≈ {lasting(b - a)}, cut short ≈"
        yield words("text", told, x=middle, y=_TOP - 12, text_anchor="middle", class_="scale")
        return
    step = next((one for one in _STEPS if span / one <= 8), span)
    for number in range(int(span / step) + 1):
        x = axis.x(axis.first + number * step)
        yield element("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=_TOP - 6, y2=height, class_="grid")
        told = f"+{lasting(number * step)}" if number else "0"
        yield words("text", told, x=f"{x:.1f}", y=_TOP - 12, text_anchor="middle", class_="scale")


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


def _phase(axis: _Axis, one: Event, height: float) -> str:
    until = one.start_s if one.end_s is None else one.end_s
    x, wide = axis.x(one.start_s), axis.x(until) - axis.x(one.start_s)
    return element(
        "g",
        words("title", f"{one.label}: {lasting(until - one.start_s)}"),
        element("rect", x=f"{x:.1f}", y=0, width=f"{wide:.1f}", height=f"{height:.0f}"),
        words("text", fitted(one.label, wide - 8) if wide > 60 else "", x=f"{x + 5:.1f}", y=15),
        class_=f"phase {one.tone}",
    )


def _legend(phases: Sequence[Event]) -> str:
    """The same in words: narrow ones bear no name, and some people tell no colours apart."""
    told = (
        element("li", element("i", class_=f"phase {one.tone}"),
                words("span", f"{one.label}: {lasting((one.end_s or 0.0) - one.start_s)}"))
        for one in phases
    )  # fmt: skip
    return element("ul", *told, class_="legend")


def _row(axis: _Axis, one: Event, index: int, end_s: float) -> str:
    y = _TOP + index * _ROW
    open_end = one.end_s is None
    until = end_s if one.end_s is None else max(one.start_s, one.end_s)
    x, right = axis.x(one.start_s), axis.x(until)
    text_y = y + _BAR + 1
    after = (
        f"+{one.start_s - axis.first:.1f} s"
        if one.start_s - axis.first < 600
        else (f"+{lasting(one.start_s - axis.first)}")
    )
    long = "" if until <= one.start_s else f", {lasting(until - one.start_s)}"
    told = f"{after}{long}{' and on' if open_end else ''}"
    if until <= one.start_s or right - x < 4:
        shape = element("path", d=_diamond(x, y + _BAR / 2 + 3), class_="mark")
    else:
        shape = element("rect", x=f"{x:.1f}", y=y + 3, width=f"{right - x:.1f}", height=_BAR, rx=3)
    return element(
        "g",
        words("title", f"{one.label} {told}. {one.told}"),
        words("text", fitted(one.label, _NAME - 4, 12.5), x=0, y=text_y, class_="what"),
        shape,
        words("text", told, x=_NAME, y=text_y, class_="at"),
        class_=f"event {one.tone}",
    )


def _diamond(x: float, y: float) -> str:
    return f"M{x - 6:.1f},{y:.1f} L{x:.1f},{y - 7:.1f} L{x + 6:.1f},{y:.1f} L{x:.1f},{y + 7:.1f} z"
