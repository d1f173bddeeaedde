"""One incident as a page that reads from top to bottom without JavaScript, and the list of all.

Made from the incident's JSON, as `GET /v1/incidents/ID` answers it, and from the stacks in its
evidence (templates/incident.html, templates/incidents.html). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from monitor.decide.accounts import bounds
from monitor.model.verdict import Kind
from monitor.show.incident_words import (
    Fact,
    began_s,
    ended_s,
    facts,
    moment_of,
    rung_words,
    sentence_of,
    title,
)
from monitor.show.templating import document, sections, ui
from monitor.show.wording import plain, sentence, span, time_of_day, utc

STEPS: Final = {
    "evidence": "evidence saved",
    "quarantine": "quarantine",
    "gate": "gate refuses it",
    "lighthouse_kill": "Lighthouse kill",
    "worker_evict": "WorkerServers",
    "scheduler": "scheduler",
    "page": "page a person",
}
"""In the order in which an eviction climbs them."""
_ALWAYS: Final = ("gate", "lighthouse_kill", "worker_evict", "scheduler", "page")
"""Shown where they were not climbed too: that is news to a person."""
_RESULTS: Final = {"worked": "good", "failed": "bad", "unknown": "away", "skipped": "idle"}
_ACTIONS: Final = {"evict": "evict", "would_evict": "would evict", "hold": "hold"}
_PARTS: Final = {
    "seen": "seen", "firing": "sure", "decided": "decided", "asked": "asked",
    "gone": "its processes were gone", "left": "it left the quorum",
    "survivors": "the others committed", "rejoined": "it was back",
}  # fmt: skip
_AMOUNTS: Final = {
    "lost_by_others": "the others lost", "lost_by_own": "it was away itself",
    "without_us": "without us", "saved": "saved",
}  # fmt: skip
_ASKED: Final = {
    "who": "Who?", "since": "Since when?", "done": "What was done?", "over": "Is it over?",
    "training": "Does the job train?",
}  # fmt: skip
_STORY_GLYPHS: Final = {"good": "✓", "bad": "✗", "wait": "…", "away": "?"}
_SINCE: Final = re.compile(r"\bsince ([0-9]{10})\b")
_BRIEF_S: Final = 0.05
"""Shorter ones are seen by nobody."""
_EVENTS: Final = 40
_FACTS: Final = 40
_ROWS: Final = 100
STYLE: Final = "/static/incident.css"
SCRIPT: Final = "/static/incident.js"
Cells = tuple[str | None, tuple[str, ...]]
"""A row of a table: its key, where it has one, and its cells."""


# What happened when, in the order in which things began; above it what the job did meanwhile: it
# stood, it trained without a group, it was whole again.


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
    found = [*_seen(body), *_held(body), *_steps(body), *_came_of_it(body)]
    return sorted(found, key=lambda one: one.start_s)[:_EVENTS]


def course(body: Mapping[str, Any], now_s: float) -> tuple[list[tuple[Event, str]], list[Cells]]:
    """What the job did, each with how long, and the rows; none where no time is known."""
    rows = events(body)
    if not rows:
        return [], []
    first_s, end_s = rows[0].start_s, _last_s(body, rows, now_s)
    phases = [(one, _long(one, end_s)) for one in _phases(body, first_s, end_s)]
    return phases, [
        (None, (_after(one.start_s - first_s), ui.chip(one.label, one.tone),
                _long(one, end_s), one.told))
        for one in rows
    ]  # fmt: skip


def _after(seconds: float) -> str:
    return f"+{seconds:.1f} s" if seconds < 600 else f"+{span(seconds)}"


def _long(one: Event, end_s: float) -> str:
    until = end_s if one.end_s is None else one.end_s
    goes_on = " so far" if one.end_s is None else ""
    return "" if until <= one.start_s else f"{span(until - one.start_s)}{goes_on}"


def _last_s(body: Mapping[str, Any], rows: Sequence[Event], now_s: float) -> float:
    known = [one.start_s if one.end_s is None else one.end_s for one in rows]
    return max(known + ([now_s] if body["state"] != "resolved" else []))


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


def _steps(body: Mapping[str, Any]) -> Iterator[Event]:
    for row in body["decisions"]:
        at = moment_of(row["at_s"])
        if row["action"] == "evict" and at is not None:
            yield Event("decided", at, at, "bad", str(row["reason"]))
    for one in body["evictions"][-3:]:
        asked = moment_of(one["asked_s"])
        if asked is not None:
            yield Event(f"asked: {one['group']}", asked, asked, "bad", "the eviction was asked for")
        for step in one["rungs"]:
            start = moment_of(step["started_s"])
            if start is not None:
                tone = _RESULTS.get(step["result"] or "", "wait")
                label = STEPS.get(step["rung"], plain(step["rung"]))
                end = moment_of(step["finished_s"])
                yield Event(label, start, end, tone, f"{step['result']}: {step['detail']}")


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


# The page of one.


@dataclass(frozen=True, slots=True)
class Stacks:
    """What is shown of one bundle."""

    markup: str = ""
    why: str = ""
    """Why there are none, for a person."""
    stamp: str = ""
    """Of the bundle that they are from."""
    kept: bool = False
    """Whether the reader's page shows them already."""


@dataclass(frozen=True, slots=True)
class Access:
    """Whether this reader may see what ranks said, and how else one gets it."""

    allowed: bool
    why: str = ""
    url: str = ""
    """Of the bundle, whole, for a command."""
    page: str = ""
    """Of the page, whole."""


def incident_page(
    body: Mapping[str, Any],
    *,
    now_s: float,
    stacks: Stacks | None = None,
    access: Access | None = None,
    earlier: Sequence[Mapping[str, Any]] = (),
) -> str:
    """The whole document."""
    account, bundle = body["account"], body["bundle"]
    phases, rows = course(body, now_s)
    over = body["state"] == "resolved"
    made = sections(
        "incident.html",
        body=body,
        stacks=stacks or Stacks(),
        access=access or Access(allowed=True),
        live="open" if not over else "over" if account["final"] else "followed",
        sentence=sentence_of(body),
        facts=list(facts(body, now_s)),
        asked=_ASKED,
        story_glyphs=_STORY_GLYPHS,
        phases=phases,
        course=rows,
        intervals=[_interval(part) for part in account["intervals"]],
        seen=list(_seen_of(body)),
        began_s=began_s(body),
        steps=lambda eviction: [_step(row, began_s(body)) for row in steps_of(eviction)],
        decisions=[_decision(row, began_s(body)) for row in body["decisions"][-_ROWS:]],
        holds=[_hold(held) for held in account["holds"][-_ROWS:]],
        amounts=[
            (key, (name, bounds(account[key]),
                   sentence(account[key]["words"].removeprefix("cannot tell: "))))
            for key, name in _AMOUNTS.items()
        ],
        earlier=[_before(one, now_s) for one in earlier],
        analyze=f"lightkeeper analyze {body['id']}.zip --html report.html",
        size="" if bundle is None else f"{max(1, round(bundle['bytes'] / 1024)):,} KiB",
    )  # fmt: skip
    return document(title(body), *made.values(), script=SCRIPT, styles=(STYLE,), here="/incidents")


def _seen_of(body: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What culprits show now, and what the detector saw, which writes moments as Unix times."""
    for rank, told in body["seen"].items():
        yield f"{rank} now", str(told)
    evidence = list(body["evidence"].items())
    for name, told in evidence[:_FACTS]:
        if said := _SINCE.sub(lambda at: f"since {time_of_day(float(at[1]))}", str(told)):
            yield name, said
    if len(evidence) > _FACTS:
        yield "and", f"{len(evidence) - _FACTS} more: as JSON"


def steps_of(eviction: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every step in the order of the ladder; `started_s` is None where it was not climbed."""
    climbed = {row["rung"]: row for row in eviction["rungs"]}
    for name in (*STEPS, *(other for other in climbed if other not in STEPS)):
        if name in climbed:
            yield climbed[name]
        elif name in _ALWAYS:
            yield {"rung": name, "started_s": None}


def _step(row: Mapping[str, Any], first_s: float) -> Cells:
    key, name = row["rung"], STEPS.get(row["rung"], row["rung"])
    if row["started_s"] is None:
        return key, (name, ui.chip("not climbed"), "", "", "", "")
    over = row["finished_s"] is not None
    took_s = max(0.0, row["finished_s"] - row["started_s"]) if over else None
    result = row["result"] or ("ended" if over else "under way")
    return key, (
        name, ui.chip(result), f"+{row['started_s'] - first_s:.1f} s", _seconds(took_s),
        _seconds(row["deadline_s"]), rung_words(row).removeprefix(f"{result}: "),
    )  # fmt: skip


def _decision(row: Mapping[str, Any], first_s: float) -> Cells:
    came = f"{row['state']}: {row['outcome']}" if row["outcome"] else row["state"]
    return None, (
        f"+{row['at_s'] - first_s:.1f} s", _ACTIONS.get(row["action"], row["action"]),
        plain(row["guard"] or ""), row["author"], row["reason"], came,
    )  # fmt: skip


def _hold(held: Mapping[str, Any]) -> Cells:
    return None, (
        plain(held["guard"]),
        "still" if held["end_s"] is None else _seconds(held["seconds"]),
        held["reason"],
        held["release"] or "nothing is said",
        plain(held["ended_by"] or "it holds"),
    )


def _interval(part: Mapping[str, Any]) -> Cells:
    jumped = " (the clock jumped)" if part["jumped"] else ""
    until = _PARTS.get(part["until"], part["until"])
    return part["until"], (f"until {until}", _seconds(part["seconds"]) + jumped)


def _before(one: Mapping[str, Any], now_s: float) -> Cells:
    first_s = one["first_seen_s"]
    return one["id"], (
        ui.link("incidents", one["id"], plain(one["kind"])),
        f"{span(max(0.0, now_s - first_s))} ago", utc(first_s), one["what"], one["same"],
    )  # fmt: skip


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


# The list of all.

STATES: Final = ("open", "pending", "firing", "evicting", "resolved")
_SPANS: Final = (("", "ever"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days"),
                 ("4w", "last 4 weeks"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class IncidentQuery:
    """What the form asks for, as it was written."""

    kind: str = ""
    group: str = ""
    state: str = ""
    since: str = ""

    @property
    def anything(self) -> bool:
        """Whether not all are asked for."""
        return bool(self.kind or self.group or self.state or self.since)


@dataclass(frozen=True, slots=True)
class Listed:
    """One incident in the list."""

    body: Mapping[str, Any]
    title: str
    ago: str
    lasted: str
    done: Fact
    training: Fact | None
    """Whether the job trains; None of one that is over."""
    lost: str


def incidents_page(
    bodies: Sequence[Mapping[str, Any]],
    *,
    now_s: float,
    asked: IncidentQuery,
    total: int,
    remembered: int,
    totals: Mapping[str, Any] | None,
    wrong: str = "",
) -> str:
    """The newest of them; `total` fit what is asked for, of `remembered` in all."""
    spans = list(_SPANS)
    if asked.since and asked.since not in dict(spans):
        spans.append((asked.since, asked.since))
    made = sections(
        "incidents.html",
        asked=asked,
        selects=(
            ("kind", [("", "all kinds"), *((str(kind), plain(kind)) for kind in Kind)], asked.kind),
            ("state", [("", "open and over"), *((one, one) for one in STATES)], asked.state),
            ("since", spans, asked.since),
        ),
        wrong=wrong,
        totals=[] if totals is None else (
            ("fired", f"{totals['incidents']:,}", "incidents that were sure"),
            ("evictions", f"{totals['evictions']:,}", "of replica groups"),
            ("lost", bounds(totals["lost"]), _of(totals["lost"])),
            ("saved", bounds(totals["saved"]), _of(totals["saved"])),
        ),
        rows=[_listed(one, now_s) for one in bodies],
        shown=f"the newest {len(bodies)} of {total:,}" if total > len(bodies) else f"{total:,}",
        remembered=remembered,
    )  # fmt: skip
    return document("Incidents", *made.values(), styles=(STYLE,), here="/incidents")


def _of(amount: Mapping[str, Any]) -> str:
    missing = f"; not known of {amount['unknown']}" if amount["unknown"] else ""
    return f"rank-seconds{missing}"


def _listed(body: Mapping[str, Any], now_s: float) -> Listed:
    last_s, first_s = ended_s(body), began_s(body)
    told = {fact.name: fact for fact in facts(body, now_s)}
    lasted = span(max(0.0, (now_s if last_s is None else last_s) - first_s))
    return Listed(
        body=body,
        title=title(body),
        ago=f"{span(max(0.0, now_s - body['milestones']['first_seen_s']))} ago",
        lasted=lasted if last_s is not None else f"{lasted} by now",
        done=told["done"],
        training=told["training"] if last_s is None else None,
        lost=bounds(body["account"]["lost_by_others"]),
    )
