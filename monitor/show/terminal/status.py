"""What `lightkeeper status` and `get` say, as the monitor gives it. Pure.

Four answers: is it training, who holds it back, what did the keeper do, can the monitor be trusted.
Each has a word that scripts may rely on, a sentence for people, and the facts behind it.
"""

from __future__ import annotations

import heapq
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from markupsafe import Markup

from lightkeeper.monitor.decide.accounts import choose
from lightkeeper.monitor.decide.headline import Headline, JobState, headline_of
from lightkeeper.monitor.decide.view import SCHEMA, IncidentReport, View
from lightkeeper.monitor.decide.view_json import degraded, report_to_json
from lightkeeper.monitor.model.incident import State
from lightkeeper.monitor.model.observation import LighthouseAway, LighthouseView
from lightkeeper.monitor.model.units import LONGEST, age, clean, counted, natural, plain, utc
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import listed, who
from lightkeeper.monitor.show.templating import filled, render_text
from lightkeeper.monitor.show.terminal.tables import Row, RowsAsked, badness, columns_of, cut, table
from lightkeeper.monitor.show.wording import pause_line

_SHOWN: Final = 3
"""Names and incidents in a sentence."""
_DOUBTS: Final = 5
"""Doubts in the monitor that a terminal shows."""
_GROUPS: Final = 10
_RECENT: Final = 20
_HOW: Final = {"evicted": "evicted", "evicting": "is evicting", "failed": "FAILED to evict"}
Answer = dict[str, Any]


def answer_of(word: str, says: str, more: Sequence[str] = (), **facts: Any) -> Answer:
    """`more`: further lines for people."""
    more = [clean(line, 800) for line in more]
    return {"is": word, "says": clean(says, 400), "more": more, **facts}


def status_to_json(view: View, tick_age_s: float, not_ready: str = "") -> dict[str, Any]:
    """The body of `GET /v1/status`.

    Args:
        tick_age_s: since the view was made.
        not_ready: why the monitor is not ready.
    """
    headline = headline_of(view)
    healths = view.result.rank_health
    ranks = [str(healths.get(seen.rank, "unknown")) for seen in view.snapshot.observations]
    lighthouse = view.snapshot.lighthouse
    by_name = sorted(view.groups, key=lambda group: natural(group.group))
    worst = heapq.nsmallest(_GROUPS, by_name, key=lambda group: badness(group.shown))
    return {
        "schema": SCHEMA,
        "now_s": view.snapshot.now_s,
        "tick": view.snapshot.tick,
        "headline": str(headline),
        "training": training(view, headline),
        "held_back_by": held_back(view, headline),
        "keeper": keeper(view),
        "monitor": trust_answer(view, tick_age_s, not_ready),
        "quorum_id": lighthouse.quorum_id if isinstance(lighthouse, LighthouseView) else None,
        "groups": _counted([group.shown for group in view.groups]),
        "ranks": _counted(ranks),
        "watch_only": view.snapshot.alone,
        "worst_groups": [asdict(group) for group in worst],
    }


def _counted(healths: Sequence[str]) -> dict[str, int]:
    """All, then how many have each health, worst first."""
    by_health = sorted(Counter(healths).items(), key=lambda item: badness(item[0]))
    return {"all": len(healths), **dict(by_health)}


def training(view: View, headline: Headline) -> Answer:
    """Are steps committed, and what is wrong if anything?"""
    then = headline.next
    text = f"{headline.says}, {then[:1].lower()}{then[1:]}" if then else headline.says
    more: Sequence[str] = view.warnings
    if headline.trains:
        pace = "" if headline.step_s is None else f", {headline.step_s:.3g} s a step"
        text = f"step {headline.step}{pace}"
        if isinstance(lighthouse := view.snapshot.lighthouse, LighthouseView):
            inside = sum(group.in_quorum is True for group in view.groups)
            of = counted(len(view.groups), "group")
            text += f", {inside:,} of {of} in quorum {lighthouse.quorum_id}"
        lost = [incident for incident in view.opened if incident.kind is Kind.PROGRESS_LOST]
        text += "".join(f"; but {incident.verdict.brief}" for incident in lost)
    elif headline.state is JobState.STOPPED and headline.commit_age_s is not None:
        text = f"no commit for {age(headline.commit_age_s)} (step {headline.step})"
    elif headline.at_s is not None:
        text = f"{age(max(0.0, view.snapshot.now_s - headline.at_s))} ago: {headline.says}"
        more = ()
    return answer_of(
        headline.state.answer, text, more, step=headline.step, step_s=headline.step_s,
        commit_age_s=headline.commit_age_s, warnings=list(view.warnings),
        ended=None if view.ended is None else asdict(view.ended),
    )  # fmt: skip


def held_back(view: View, headline: Headline) -> Answer:
    """Whom the open incidents blame, never ranks that wait for these; else the candidates."""
    by_fault = sorted(view.opened, key=lambda i: (i.state is State.PENDING, i.verdict.since_s))
    reports = [view.report(incident) for incident in by_fault]
    briefs = [_brief(report) for report in reports]
    firing = [report for report in reports if report.incident.state is not State.PENDING]
    if firing:
        accused = any(report.incident.culprits for report in firing)
        word, text = "named" if accused else "unknown", _named(firing)
    elif reports:
        word, text = "suspected", f"{_named(reports)}: not sure yet"
    elif headline.state is JobState.STALLING:
        word, text = "unknown", "nobody is named yet"
    else:
        word, text = "nobody", _busiest(view)
    return answer_of(word, text, list(_reasons(firing or reports)), incidents=briefs)


def _brief(report: IncidentReport) -> dict[str, Any]:
    body = report_to_json(report)
    bundle = body["bundle"]
    return {**{key: body[key] for key in _BRIEFLY}, "bundle": bundle and bundle["url"]}


_BRIEFLY: Final = (
    "id", "kind", "state", "severity", "culprits", "candidates", "groups", "since_s", "reason",
    "says", "next",
)  # fmt: skip


def _named(reports: Sequence[IncidentReport]) -> str:
    incidents = [report.incident for report in reports]
    names: list[str] = []
    for at, incident in enumerate(incidents):
        waits = {victim for earlier in incidents[:at] for victim in earlier.verdict.victims}
        names += [name for name in incident.culprits if name not in waits and name not in names]
    kinds = list(dict.fromkeys(incident.kind for incident in incidents))
    doubts = (clean(who(incident, _SHOWN), 240) for incident in incidents)
    whose = listed(names, _SHOWN) or next(filter(None, doubts), "cannot tell who")
    return f"{whose} ({listed(kinds, _SHOWN)})"


def _reasons(reports: Sequence[IncidentReport]) -> Iterator[str]:
    for report in reports[:_SHOWN]:
        incident = report.incident
        then = f". {report.face.next}" if report.face.next else ""
        work = f", {report.work.says}" if report.work.says else ""
        what = f"{report.face.says}{then} ({incident.id}{work})"
        yield f"{incident.severity}, {incident.state}: {what}"
    if len(reports) > _SHOWN:
        yield f"and {len(reports) - _SHOWN:,} more: lightkeeper incidents list"


def _busiest(view: View) -> str:
    present = view.snapshot.by_rank
    busy = [(tempo.busy_s, rank) for rank, tempo in view.tempos.items() if rank in present]
    if not busy:
        return "no incident is open"
    most_s, name = max(busy)
    middle_s = statistics.median(seconds for seconds, _ in busy)
    return f"busiest is {clean(name, 120)}: {most_s:.3g} s a step, the median {middle_s:.3g} s"


def keeper(view: View) -> Answer:
    """Does it act, and what did it do in the last hour?"""
    word, text = _mode(view)
    lately = choose(view.incidents, {"since": "1h"}, view.snapshot.now_s)[:_RECENT]
    evicted = [r for r in map(view.report, lately) if r.account.outcome in _HOW]
    hosts = [entry.name for entry in view.quarantine]
    groups = [entry.name for entry in view.quarantine_groups]
    more = list(_done(view, evicted))
    for what, names in (("host", hosts), ("group", groups)):
        if names:
            more.append(f"in quarantine: {counted(len(names), what)}: {listed(names, _SHOWN)}")
    silences = view.work.silences(view.snapshot.now_s)
    more += [f"{row.says}: {row.what}, until {utc(row.until_s)}" for row in silences[:_SHOWN]]
    return answer_of(
        word, text, more, quarantined_hosts=hosts, quarantined_groups=groups,
        evicted_last_hour=[
            {"id": r.incident.id, "groups": list(r.incident.groups), "outcome": r.account.outcome}
            for r in evicted
        ],
    )  # fmt: skip


def _mode(view: View) -> tuple[str, str]:
    pause = view.snapshot.pause
    if (standing := view.standing) is not None and not standing.active:
        who = f"this monitor stands by; active: {standing.holder or 'nobody yet'}"
        return "standby", who if standing.problem is None else standing.sentence()
    if pause is not None:
        return "paused", pause_line(asdict(pause))
    if view.snapshot.alone:
        lacks = "no Lighthouse and no token are" if view.tokenless else "no Lighthouse is"
        return "watching", f"watch-only: {lacks} configured"
    if view.observe:
        return "observing", "observe mode: nothing is evicted"
    alone = "through the Lighthouse alone: it has no token"
    return "acting", f"evictions are on, {alone if view.tokenless else 'for confident verdicts'}"


def _done(view: View, evicted: Sequence[IncidentReport]) -> Iterator[str]:
    if not evicted and not view.snapshot.alone:
        yield "no eviction in the last hour"
    for report in evicted[:_SHOWN]:
        account, incident = report.account, report.incident
        asked_s = incident.last_seen_s if report.latest is None else report.latest.asked_s
        what = f"{_HOW[account.outcome]} {listed(incident.groups, _SHOWN)}"
        tail = f", back on {listed(incident.back_on, _SHOWN)}" if incident.back_on else ""
        why = f"{incident.kind} of {listed(incident.culprits, _SHOWN) or 'nobody named'}"
        if incident.kind is Kind.BY_HAND:
            why = "by hand"
        yield f"{what} {age(max(0.0, view.snapshot.now_s - asked_s))} ago: {why}{tail}"
    if len(evicted) > _SHOWN:
        yield f"and {len(evicted) - _SHOWN:,} more evictions in the last hour"


def trust_answer(view: View, tick_age_s: float, not_ready: str = "") -> Answer:
    """Reasons to doubt the other answers."""
    doubts = [clean(doubt, 300) for doubt in (not_ready, *_doubts(view)) if doubt]
    facts: dict[str, Any] = {"doubts": doubts, "last_tick_age_s": round(tick_age_s, 3)}
    count = len(view.snapshot.observations)
    ranks = counted(count, "rank")
    if not doubts:
        answering = f"{ranks} answering" if count == 1 else f"all {ranks} answer"
        return answer_of("trusted", f"looked {age(tick_age_s)} ago, {answering}", (), **facts)
    tail = f" (and {len(doubts) - 1:,} more)" if len(doubts) > 1 else ""
    more = doubts[1:_DOUBTS]
    if (unsaid := len(doubts) - _DOUBTS) > 0:
        more.append(f"and {unsaid:,} more: --format json has them")
    return answer_of("doubtful", doubts[0] + tail, more, **facts)


def _doubts(view: View) -> Iterator[str]:
    health, lighthouse, seen = view.result.health, view.snapshot.lighthouse, view.snapshot
    yield from health.conditions.values()
    if health.hold and not view.snapshot.alone:
        yield f"evicts nobody: {health.hold}"
    yield from degraded(view)
    if isinstance(lighthouse, LighthouseAway) and lighthouse.missed:
        yield f"Lighthouse away: {lighthouse.reason}"
    silent = [each.rank for each in seen.observations if each.report is None]
    if silent:
        share = f"{len(silent):,} of {counted(len(seen.observations), 'rank')}"
        yield f"{share} do not answer: {listed(silent, _SHOWN)}"


def rows_to_json(
    what: str, rows: Sequence[Row], asked: RowsAsked, width: int | None, *, watch_only: bool
) -> dict[str, Any]:
    """The body of `GET /v1/ranks`, `/v1/groups` and `/v1/hosts`.

    Args:
        width: rows become lines of text of at most so many cells (0: of any length); None: rows.
    """
    chosen = asked.among(rows)
    shown = chosen[: asked.limit]
    body: dict[str, Any] = {"schema": SCHEMA, "watch_only": watch_only}
    if width is None:
        body[what] = shown
    else:
        columns = columns_of(what, wide=asked.wide, watch_only=watch_only)
        body["text"] = table(columns, shown, width or None)
    return {**body, "more": len(chosen) - len(shown)}


# Answers as lines of text.

_LABEL: Final = 14
"""Width of the names at the left of `status`."""


def screen(name: str, body: Row, width: int | None, **more: Any) -> list[str]:
    """What templates/NAME.txt makes of an answer. Texts are wrapped, and tables cut, to `width`
    cells; links never: people copy them.
    """

    def rows(what: str, some: Iterable[Any], *, wide: bool = False) -> Markup:
        columns = columns_of(what, wide=wide, watch_only=body.get("watch_only", False))
        return Markup("\n".join(table(columns, some, width)))  # noqa: S704 - no HTML

    def line(label: str, word: str, text: str) -> Markup:
        said = f"{plain(label):<{_LABEL}}{word}  {clean(text)}".rstrip()
        return Markup(cut(said, width))  # noqa: S704 - no HTML

    def wrapped(text: str) -> Markup:
        most = LONGEST if width is None else max(20 + _LABEL, width)
        return filled(" " * _LABEL, text, most)

    given = {"body": body, "table": rows, "line": line, "wrapped": wrapped, **more}
    return render_text(f"{name}.txt", **given).splitlines()


def top_screen(
    status: Row, rows: Iterable[Row], asked: RowsAsked, width: int, height: int
) -> list[str]:
    """At most `height` lines of at most `width` cells; `rows`: of all ranks."""
    ranks = asked.among(rows)
    shown = ranks[: max(1, height - _AROUND)]
    lines = screen("top", status, width, asked=asked, ranks=ranks, shown=shown)
    return [cut(line, width) for line in lines[:height]]


_AROUND: Final = 7
"""Lines around the ranks of `top`."""
