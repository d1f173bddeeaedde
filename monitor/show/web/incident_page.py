"""One incident as a page that needs no JavaScript and as text, and the list of all.

At its top are the incident in one sentence and the five facts that people ask for first: who,
since when, what was done, is it over, does the job train again; or that this is not known.
Both pages are made from `IncidentReport`s (templates/incident.html, incidents.html). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from markupsafe import Markup

from lightkeeper.monitor.decide.accounts import OPEN
from lightkeeper.monitor.decide.view import IncidentReport, View, bundle_url
from lightkeeper.monitor.model.eviction import (
    Decision,
    Eviction,
    Guard,
    Rung,
    RungOutcome,
    RungResult,
    rulings,
)
from lightkeeper.monitor.model.incident import Incident, State, Training
from lightkeeper.monitor.model.units import ago, clean, counted, plain, span
from lightkeeper.monitor.model.verdict import OF_LIGHTHOUSE, Kind
from lightkeeper.monitor.model.wording import listed, title_of, who
from lightkeeper.monitor.model.work import MATCHERS
from lightkeeper.monitor.show.graph_svg import draw_graph
from lightkeeper.monitor.show.templating import filled, moment, render, render_text


@dataclass(frozen=True, slots=True)
class Fact:
    """One of the five, beside each other at the top of the page."""

    name: str
    word: str
    more: str
    tone: str


def five_facts(report: IncidentReport, now_s: float) -> Iterator[Fact]:
    incident, account = report.incident, report.account
    nobody = "the Lighthouse" if incident.kind in OF_LIGHTHOUSE else "nobody"
    whose = clean(who(incident, 3), 240) or _names(incident.groups) or nobody
    accused = incident.kind not in {Kind.BY_HAND, *OF_LIGHTHOUSE}
    sure = str(incident.verdict.confidence) if accused else ""
    yield Fact("who", whose, ", ".join(filter(None, (_names(incident.hosts), sure))), "idle")
    first_s, last_s = incident.began_s, incident.ended_s
    yield Fact("since", moment(first_s), ago(max(0.0, now_s - first_s)), "idle")
    word, tone = _DONE.get(account.outcome, (account.outcome, "idle"))
    more = _who_did(report)
    if not account.evicted and any(map(_freed, report.decisions)):
        more = f"they do not wait for {_names(incident.groups)}"
        word, tone = "others released", "good"
    yield Fact("done", word, more, tone)
    if last_s is None:
        yield Fact("over", "no", f"for {span(max(0.0, now_s - first_s))} by now", "bad")
    else:
        yield Fact("over", "yes", f"after {span(max(0.0, last_s - first_s))}", "good")
    yield _training(report)


_DONE: Final = {
    "evicted": ("evicted", "good"),
    "evicting": ("being evicted", "wait"),
    "failed": ("eviction failed", "bad"),
    "observed": ("nothing: observe mode", "start"),
    "held": ("nothing: held back", "away"),
    "watched": ("nothing", "idle"),
    "passed": ("nothing to do", "idle"),
    "open": ("nothing yet", "wait"),
}


def _who_did(report: IncidentReport) -> str:
    account = report.account
    if account.outcome == "watched":
        return "this monitor watches only"
    if not account.evicted:
        rows = rulings(report.decisions)
        return f"by {plain(rows[-1].guard)}" if rows and rows[-1].guard else ""
    began_s, asked_s = report.incident.began_s, report.incident.milestones.evict_asked_s
    after = f", after {span(asked_s - began_s)}" if asked_s and asked_s > began_s else ""
    return f"{_names(report.incident.groups)}, by {clean(account.decided_by, 80)}{after}"


def _freed(row: Decision) -> bool:
    return row.action == "release" and row.state != "failed"


def _training(report: IncidentReport) -> Fact:
    """Does the job train? Judged only by commits that were seen."""
    incident, marks = report.incident, report.incident.milestones
    groups, committed = _names(incident.groups), (marks.rejoined_s, marks.survivor_commit_s)
    if incident.open and (committed == (None, None) or incident.training is Training.STANDS):
        return _still(report)
    if marks.rejoined_s is not None:
        after = span(max(0.0, marks.rejoined_s - incident.began_s))
        detail = f"{groups} is back, {after} after it began, and the job trains again"
        return Fact("training", "yes", detail, "good")
    if marks.survivor_commit_s is None:
        if incident.training is Training.TRAINS and not incident.stood:
            return Fact("training", "yes", "the job was training all the while", "good")
        return Fact("training", "not known", "whether the job trains again was not seen", "away")
    since, at = Markup("{} since {}").format, moment(marks.survivor_commit_s)
    if report.account.evicted:
        detail = since("the other groups train", at)
        return Fact("training", f"yes, without {groups} so far", detail, "wait")
    return Fact("training", "yes", since("the job trains", at), "good")


def _still(report: IncidentReport) -> Fact:
    waits = f", {counted(report.waiting, 'rank')} {'waits' if report.waiting == 1 else 'wait'}"
    waits = waits if report.waiting else ""
    match report.incident.training:
        case Training.TRAINS:
            detail = "steps are committed: the job continues, slower or at risk"
            return Fact("training", "yes, disturbed", detail, "wait")
        case Training.STANDS:
            return Fact("training", "no", f"the job stands: nobody commits{waits}", "bad")
        case Training.UNKNOWN:
            detail = f"no commit was seen since it began, so far{waits}"
            return Fact("training", "not known yet", detail, "away")


def _names(names: Sequence[str], at_most: int = 3) -> str:
    return listed([clean(name, 80) for name in names], at_most)


# What happened when, in order of beginning.

STEPS: Final = {
    Rung.EVIDENCE: "evidence saved",
    Rung.QUARANTINE: "quarantine",
    Rung.GATE: "gate refuses it",
    Rung.LIGHTHOUSE_KILL: "Lighthouse kill",
    Rung.WORKER_EVICT: "WorkerServers",
    Rung.SCHEDULER: "scheduler",
    Rung.PAGE: "page a person",
}
"""In the order in which an eviction climbs them."""
_ALWAYS: Final = tuple(STEPS)[2:]
"""Also shown if not climbed: people want to know that."""
_RESULTS: Final = {
    None: "wait", RungResult.WORKED: "good", RungResult.FAILED: "bad",
    RungResult.UNKNOWN: "away", RungResult.SKIPPED: "idle",
}  # fmt: skip
_EVENTS: Final = 40
_FACTS: Final = 40
_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class TimelineRow:
    """One row: a stretch of time, or a moment where both ends are the same."""

    label: str
    start_s: float
    end_s: float | None
    """None: not over."""
    tone: str
    detail: str = ""

    def lasted(self, until_s: float) -> str:
        """How long, up to this moment; empty for a moment."""
        end_s = until_s if self.end_s is None else self.end_s
        goes_on = " so far" if self.end_s is None else ""
        return "" if end_s <= self.start_s else f"{span(end_s - self.start_s)}{goes_on}"


def timeline(report: IncidentReport) -> list[TimelineRow]:
    """All rows, in order of beginning."""
    rows = [*_seen(report), *list(_held(report))[-8:], *_steps(report), *_came_of_it(report)]
    return sorted(rows, key=lambda event: event.start_s)[:_EVENTS]


def _seen(report: IncidentReport) -> Iterator[TimelineRow]:
    incident, marks, began_s = report.incident, report.incident.milestones, report.incident.began_s
    first_s, firing_s, ended_s = marks.first_seen_s, marks.firing_s, incident.ended_s
    if incident.kind is Kind.BY_HAND:
        return
    if first_s > began_s:
        detail = "from its beginning to first sight"
        yield TimelineRow("not seen yet", began_s, first_s, "idle", detail)
    until_s = firing_s if firing_s is not None else ended_s
    yield TimelineRow("first seen", first_s, until_s, "wait", "seen, and watched until it is sure")
    if firing_s is not None:
        until_s = marks.evict_asked_s or ended_s
        detail = "until somebody acted, or it was over"
        yield TimelineRow("firing", firing_s, until_s, "bad", detail)


def _held(report: IncidentReport) -> Iterator[TimelineRow]:
    """Guards that held; a guard that only changed its words has one row, with the latest."""
    rows = rulings(report.decisions)
    ends_s = [*(row.at_s for row in rows[1:]), report.incident.ended_s]
    pairs = zip(rows, ends_s, strict=False)  # without decisions there is no end
    for guard, together in groupby(pairs, lambda pair: pair[0].guard):
        if guard is not None and guard != Guard.WATCH_ONLY:
            held = list(together)
            start_s, (last, end_s) = held[0][0].at_s, held[-1]
            detail = ". ".join(filter(None, (last.reason, last.release)))
            yield TimelineRow(f"held: {plain(guard)}", start_s, end_s, "away", detail)


def _steps(report: IncidentReport) -> Iterator[TimelineRow]:
    for row in report.decisions:
        if isinstance(row, Eviction):
            yield TimelineRow("decided", row.at_s, row.at_s, "start", row.reason)
        elif row.action == "release":
            label, tone = ("others released", "good") if _freed(row) else ("not released", "bad")
            detail = ": ".join(filter(None, (row.reason, row.outcome)))
            yield TimelineRow(label, row.at_s, row.ended_s, tone, detail)
    for eviction in report.evictions[-3:]:
        asked_s = eviction.asked_s
        detail = "the eviction was asked for"
        yield TimelineRow(f"asked: {eviction.group}", asked_s, asked_s, "start", detail)
        for step in eviction.rungs:
            detail = step.detail if step.result is None else f"{step.result}: {step.detail}"
            label, tone = STEPS[step.rung], _RESULTS[step.result]
            yield TimelineRow(label, step.started_s, step.finished_s, tone, detail)


def _came_of_it(report: IncidentReport) -> Iterator[TimelineRow]:
    incident, marks = report.incident, report.incident.milestones
    last = report.evictions[-1] if report.evictions else None
    gone_s, left_s = (last.gone_s, last.left_quorum_s) if last else (None, None)
    for label, at_s, why in (
        ("processes gone", gone_s, "every accused process was gone"),
        ("left the quorum", marks.left_quorum_s or left_s, "a quorum without it was seen"),
        ("others commit", marks.survivor_commit_s, "the first commit of another group"),
        ("back", marks.rejoined_s, "its first commit as a new replica"),
        ("resolved", incident.ended_s, incident.resolution or ""),
    ):
        if at_s is not None:
            yield TimelineRow(label, at_s, at_s, "good", why)


# The page of one.


@dataclass(frozen=True, slots=True)
class BundleStacks:
    """What is shown of one bundle."""

    markup: str = ""
    why: str = ""
    """Why there are none, for a person."""


_SIMILAR: Final = 8


def _earlier(view: View, incident: Incident) -> Iterator[tuple[Incident, str, str]]:
    """Earlier incidents that share a host or a group with it, their outcome and what is shared."""
    for other in view.incidents:
        before = other.milestones.first_seen_s < incident.milestones.first_seen_s
        same = [f"host {name}" for name in sorted({*incident.hosts} & {*other.hosts})[:2]]
        same += [f"group {name}" for name in sorted({*incident.groups} & {*other.groups})[:2]]
        if before and same:
            yield other, view.account(other).outcome, ", ".join(same)


def incident_page(view: View, report: IncidentReport, stacks: BundleStacks | None = None,
                  base: str = "", why_not: str | None = None) -> str:  # fmt: skip
    """`stacks`: None if this reader may not see what ranks said; `base`: URL of the monitor;
    `why_not`: why nothing can be changed from here.
    """
    incident, rows, now_s = report.incident, timeline(report), view.snapshot.now_s
    ends = [row.start_s if row.end_s is None else row.end_s for row in rows]
    end_s = max([*ends, *([now_s] if incident.open else [])], default=now_s)
    final = not incident.open and report.account.final
    silenced = {"kind": str(incident.kind), "group": "".join(incident.groups[:1])}
    return render(
        "incident.html",
        title=title_of(incident),
        view=view,
        every_s=None if final else 2.0 if incident.open else 5.0,
        report=report,
        incident=incident,
        account=report.account,
        bundle_url=bundle_url(incident.id),
        now_s=now_s,
        stacks=stacks,
        base=base,
        why_not=why_not,
        matchers=[  # fields of the dialog that silences: name, label, value at first, if required
            (name, f"{name.capitalize()} (empty: any)", silenced.get(name, ""), False)
            for name in MATCHERS
        ],
        facts=list(five_facts(report, now_s)),
        waits=draw_graph(incident.verdict.waits),
        events=rows,
        end_s=end_s,
        observed=list(_observed(report)),
        steps=steps_of,
        step_names=STEPS,
        decisions=() if report.account.outcome == "watched" else report.decisions[-_ROWS:],
        earlier=list(islice(_earlier(view, incident), _SIMILAR)),
    )


def _observed(report: IncidentReport) -> Iterator[tuple[str, str]]:
    """The suspects now, and what the detector saw."""
    for rank, detail in report.seen.items():
        yield f"{rank} now", detail
    evidence = list(report.incident.verdict.evidence.items())
    for name, detail in evidence[:_FACTS]:
        if detail:
            yield name, detail
    if len(evidence) > _FACTS:
        yield "and", f"{len(evidence) - _FACTS} more: as JSON"


def steps_of(eviction: Eviction) -> Iterator[tuple[Rung, RungOutcome | None]]:
    """Every step in the order of the ladder; None where it was not climbed."""
    climbed = {outcome.rung: outcome for outcome in eviction.rungs}
    return ((rung, climbed.get(rung)) for rung in STEPS if rung in climbed or rung in _ALWAYS)


# The same as text.

_NAMED: Final = 12


def incident_text(report: IncidentReport, base: str, journal: Path | None) -> str:
    """`base`: URL of the monitor; `journal`: its folder, for `lightkeeper replay`."""
    incident, rows = report.incident, timeline(report)
    ends = [row.start_s if row.end_s is None else row.end_s for row in rows]
    return render_text(
        "incident.txt", report=report, incident=incident, account=report.account, base=base,
        journal=journal, bundle_url=bundle_url(incident.id), events=rows,
        end_s=max(ends, default=0.0), names=_many, filled=filled,
        waits=draw_graph(incident.verdict.waits),
        row=lambda name, text: filled(f"  {name:<16}", text),
    )  # fmt: skip


def _many(names: Sequence[str], count: int = 0) -> str:
    shown = _names(names, _NAMED)
    return f"{shown} and {count - len(names):,} more" if count > len(names) else shown


# The list of all.

_LISTED: Final = 100
"""Most incidents listed."""
_SPANS: Final = (("", "ever"), ("1h", "last hour"), ("1d", "last day"), ("7d", "last 7 days"),
                 ("4w", "last 4 weeks"))  # fmt: skip


def incidents_page(
    view: View, incidents: Sequence[Incident], asked: Mapping[str, str], wrong: str = ""
) -> str:
    """The newest of those that match what is asked for (kind, group, state, since, run)."""
    alone, now_s = view.snapshot.alone, view.snapshot.now_s
    never = OF_LIGHTHOUSE if alone else ()
    states = (OPEN, *(state for state in State if not alone or state is not State.EVICTING))
    kind, state, since, run = (asked.get(n, "") for n in ("kind", "state", "since", "run"))
    spans = list(_SPANS)
    if since and since not in dict(spans):
        spans.append((since, since))
    return render(
        "incidents.html",
        view=view,
        asked=asked,
        selects=(
            ("kind", [("", "all kinds"), *((k, plain(k)) for k in Kind if k not in never)], kind),
            ("state", [("", "open and over"), *((s, s) for s in states)], state),
            ("since", spans, since),
            ("run", [("", "all runs"), *((each.id, each.id) for each in view.runs)], run),
        ),
        wrong=wrong,
        totals=view.totals(incidents) if incidents else None,
        rows=[(report, title_of(report.incident),
               {fact.name: fact for fact in five_facts(report, now_s)})
              for report in map(view.report, incidents[:_LISTED])],
        now_s=now_s,
        total=len(incidents),
        remembered=len(view.incidents),
    )  # fmt: skip
