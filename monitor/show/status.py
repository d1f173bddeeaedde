"""The fleet on a terminal: the answers of `status`, and every screen. Pure.

Four answers: is it training, who holds it back, what did the keeper do, can the monitor be trusted.
Each has a word that scripts may rely on, a sentence for people, and the facts behind it.
"""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lightkeeper.monitor.decide.headline import JobState
from lightkeeper.monitor.decide.view import GroupView, IncidentReport
from lightkeeper.monitor.decide.view_json import RankJson
from lightkeeper.monitor.model.incident import Incident, State
from lightkeeper.monitor.model.observation import NO_LIGHTHOUSE
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.verdict import Kind
from lightkeeper.monitor.model.wording import who
from lightkeeper.monitor.show.tables import (
    GROUP_COLUMNS,
    STYLES,
    Fleet,
    Line,
    RowFilter,
    age,
    clock,
    count,
    cut,
    rank_columns,
    sorted_groups,
    sorted_ranks,
    table,
    text_of,
    width_of,
)
from lightkeeper.monitor.show.wording import clean, counted, listed

_SHOWN: Final = 3
"""Incidents that `status` names."""
_DOUBTS: Final = 5
"""Doubts in the monitor that it shows."""
_HOW: Final = {"evicted": "evicted", "evicting": "is evicting", "failed": "FAILED to evict"}


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """The monitor's answers to one look."""

    fleet: Fleet
    recent: tuple[IncidentReport, ...] = ()
    """Incidents of the last hour, newest first."""
    tick_age_s: float | None = None
    not_ready: str = ""
    """Why the monitor is not ready."""
    pause: str = ""
    """The pause switch, in one line."""


@dataclass(frozen=True, slots=True)
class StatusAnswer:
    about: str
    word: str
    style: str
    text: str
    more: tuple[str, ...] = ()
    """Further lines."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"is": self.word, "says": self.text, **self.facts}


def answers(look: StatusFacts) -> tuple[StatusAnswer, ...]:
    """All four, in the order in which people ask."""
    return (training(look.fleet), held_back(look.fleet), keeper(look), trust(look))


def answers_to_json(look: StatusFacts) -> dict[str, Any]:
    fleet = look.fleet
    return {
        "schema": 1,
        "now_s": fleet.now_s,
        "tick": fleet.tick,
        "headline": str(fleet.headline),
        **{answer.about.replace(" ", "_"): answer.to_json() for answer in answers(look)},
        "quorum_id": fleet.lighthouse.quorum_id,
        "groups": {"all": len(fleet.groups), **count(fleet.groups)},
        "ranks": {"all": len(fleet.ranks), **count(fleet.ranks)},
    }


_TRAINS: Final = {
    JobState.WAITING: ("no", "bold red"), JobState.STARTING: ("starting", "blue"),
    JobState.WATCHING: ("starting", "blue"),
    JobState.TRAINING: ("yes", "green"), JobState.DISTURBED: ("disturbed", "yellow"),
    JobState.LATE: ("disturbed", "yellow"),
    JobState.PAUSING: ("pausing", "yellow"), JobState.STALLING: ("stalling", "bold red"),
    JobState.STOPPED: ("no", "bold red"), JobState.FINISHED: ("finished", "green"),
    JobState.ENDED: ("ended", "bold red"), JobState.INTERRUPTED: ("stopped", "yellow"),
}  # fmt: skip
"""Word and style: scripts rely on the words."""


def training(fleet: Fleet) -> StatusAnswer:
    """Whether steps are committed, and what is wrong if anything."""
    headline = fleet.headline
    word, style = _TRAINS[headline.state]
    warnings = tuple(clean(warning, 300) for warning in fleet.warnings)
    ended = None if fleet.ended is None else to_plain(fleet.ended)
    facts = {
        "step": headline.step,
        "step_s": headline.step_s,
        "commit_age_s": headline.commit_age_s,
        "warnings": list(warnings),
        "ended": ended,
    }
    then = headline.next
    text = f"{headline.says}, {then[:1].lower()}{then[1:]}" if then else headline.says
    if headline.trains:
        pace = "" if headline.step_s is None else f", {headline.step_s:.3g} s a step"
        text = f"step {headline.step}{pace}{_quorum(fleet)}"
    elif (
        headline.state is JobState.STOPPED and headline.commit_age_s is not None
    ):  # who it is: next answer
        text = f"no commit for {age(headline.commit_age_s)} (step {headline.step})"
    elif headline.at_s is not None:
        text = f"{age(max(0.0, fleet.now_s - headline.at_s))} ago: {headline.says}"
        warnings = ()
    return StatusAnswer("training", word, style, clean(text, 400), warnings, facts)


def _quorum(fleet: Fleet) -> str:
    if not fleet.lighthouse.up:
        return ""
    inside = sum(group.in_quorum is True for group in fleet.groups)
    groups = counted(len(fleet.groups), "group")
    return f", {inside:,} of {groups} in quorum {fleet.lighthouse.quorum_id}"


def held_back(fleet: Fleet) -> StatusAnswer:
    """Whom the open incidents blame, never ranks that wait for these; else the candidates."""
    about = "held back by"
    oldest = sorted(fleet.incidents, key=lambda report: report.incident.verdict.since_s)
    firing = [report for report in oldest if report.incident.state is not State.PENDING]
    pending = [report for report in oldest if report.incident.state is State.PENDING]
    facts = {"incidents": [_brief(report) for report in (*firing, *pending)]}
    if firing:
        incidents = [report.incident for report in firing]
        word = "named" if any(incident.culprits for incident in incidents) else "unknown"
        return StatusAnswer(
            about, word, "bold red", _named(incidents), tuple(_reasons(firing)), facts
        )
    if pending:
        text = f"{_named([report.incident for report in pending])}: not sure yet"
        return StatusAnswer(about, "suspected", "yellow", text, tuple(_reasons(pending)), facts)
    if training(fleet).word == "stalling":
        return StatusAnswer(about, "unknown", "yellow", "nobody is named yet", (), facts)
    return StatusAnswer(about, "nobody", "green", _busiest(fleet), (), facts)


def _brief(report: IncidentReport) -> dict[str, Any]:
    incident = report.incident
    return {
        "id": incident.id,
        "kind": incident.kind,
        "state": incident.state,
        "severity": incident.severity,
        "culprits": list(incident.culprits),
        "candidates": list(incident.candidates),
        "groups": list(incident.groups),
        "since_s": incident.verdict.since_s,
        "reason": incident.verdict.reason,
        "says": report.face.says,
        "next": report.face.next,
    }


def _named(incidents: Sequence[Incident]) -> str:
    names: list[str] = []
    for at, incident in enumerate(incidents):
        waits = {victim for earlier in incidents[:at] for victim in earlier.verdict.victims}
        names += [name for name in incident.culprits if name not in waits and name not in names]
    kinds = list(dict.fromkeys(incident.kind for incident in incidents))
    doubts = (clean(who(incident, _SHOWN), 240) for incident in incidents)
    whose = listed(names, _SHOWN) or next(filter(None, doubts), "it cannot be told who")
    return f"{whose} ({listed(kinds, _SHOWN)})"


def _reasons(reports: Sequence[IncidentReport]) -> Iterator[str]:
    for report in reports[:_SHOWN]:
        incident = report.incident
        then = f". {report.face.next}" if report.face.next else ""
        what = f"{report.face.says}{then} ({incident.id})"
        yield clean(f"{incident.severity}, {incident.state}: {what}", 800)
    if len(reports) > _SHOWN:
        yield f"and {len(reports) - _SHOWN:,} more: lightkeeper incidents list"


def _busiest(fleet: Fleet) -> str:
    busy = [(rank.busy_s, clean(rank.rank, 120)) for rank in fleet.ranks if rank.busy_s is not None]
    if not busy:
        return "no incident is open"
    most_s, name = max(busy)
    middle_s = statistics.median(seconds for seconds, _ in busy)
    return f"busiest is {name}: {most_s:.3g} s a step, the median {middle_s:.3g} s"


def keeper(look: StatusFacts) -> StatusAnswer:
    """Whether it acts, and what it did in the last hour."""
    word, style, text = _mode(look)
    hosts = [entry.host for entry in look.fleet.quarantine]
    groups = [entry.group for entry in look.fleet.quarantine_groups]
    evicted = [report for report in look.recent if report.account.outcome in _HOW]
    facts = {
        "evicted_last_hour": [
            {
                "id": report.incident.id,
                "groups": list(report.incident.groups),
                "outcome": report.account.outcome,
            }
            for report in evicted
        ],
        "quarantined_hosts": hosts,
        "quarantined_groups": groups,
    }
    more = (*_done(look.fleet, evicted), *_refused(hosts, groups))
    return StatusAnswer("keeper", word, style, text, more, facts)


def _mode(look: StatusFacts) -> tuple[str, str, str]:
    lease, window = look.fleet.monitor, look.fleet.maintenance
    if lease is not None and lease.role == "standby":
        holder = clean(lease.holder or "nobody yet", 80)
        return "standby", "yellow", f"this monitor stands by; active: {holder}"
    if look.pause:
        return "paused", "bold red", look.pause
    if look.fleet.observe:
        return "observing", "bold cyan", "observe mode: nothing is evicted"
    if window is not None:
        text = f"maintenance {clean(window.name, 80)} until {clock(window.until_s)}"
        return "maintenance", "yellow", f"{text}: nothing is evicted"
    alone = look.fleet.tokenless
    if look.fleet.lighthouse.reason == NO_LIGHTHOUSE:
        lacks = "no Lighthouse and no token are" if alone else "no Lighthouse is"
        return "watching", "cyan", f"watch-only: {lacks} configured"
    how = "through the Lighthouse alone: it has no token" if alone else "for confident verdicts"
    return "acting", "green", f"evictions are on, {how}"


def _done(fleet: Fleet, evicted: Sequence[IncidentReport]) -> Iterator[str]:
    if not evicted:
        yield "no eviction in the last hour"
    for report in evicted[:_SHOWN]:
        account, incident = report.account, report.incident
        asked_s = incident.last_seen_s if report.latest is None else report.latest.asked_s
        what = f"{_HOW[account.outcome]} {listed(incident.groups, _SHOWN)}"
        tail = f", back on {listed(account.back_on, _SHOWN)}" if account.back_on else ""
        why = f"{incident.kind} of {listed(incident.culprits, _SHOWN) or 'nobody named'}"
        if incident.kind is Kind.BY_HAND:
            why = "by hand"
        yield clean(f"{what} {age(max(0.0, fleet.now_s - asked_s))} ago: {why}{tail}", 300)
    if len(evicted) > _SHOWN:
        yield f"and {len(evicted) - _SHOWN:,} more evictions in the last hour"


def _refused(hosts: Sequence[str], groups: Sequence[str]) -> Iterator[str]:
    for what, names in (("host", hosts), ("group", groups)):
        if names:
            yield f"in quarantine: {counted(len(names), what)}: {listed(names, _SHOWN)}"


def trust(look: StatusFacts) -> StatusAnswer:
    """Reasons to doubt the other answers."""
    doubts = [clean(doubt, 300) for doubt in _doubts(look)]
    facts = {"doubts": doubts, "last_tick_age_s": look.tick_age_s}
    if doubts:
        tail = f" (and {len(doubts) - 1:,} more)" if len(doubts) > 1 else ""
        more = doubts[1:_DOUBTS]
        if (unsaid := len(doubts) - _DOUBTS) > 0:
            more.append(f"and {unsaid:,} more: --format json has them")
        return StatusAnswer("monitor", "doubtful", "yellow", doubts[0] + tail, tuple(more), facts)
    tick = "" if look.tick_age_s is None else f"looked {age(look.tick_age_s)} ago, "
    answering = f"all {counted(len(look.fleet.ranks), 'rank')} answer"
    if len(look.fleet.ranks) <= 1:
        answering = f"{counted(len(look.fleet.ranks), 'rank')} answering"
    return StatusAnswer("monitor", "trusted", "green", f"{tick}{answering}", (), facts)


def _doubts(look: StatusFacts) -> Iterator[str]:
    fleet = look.fleet
    if look.not_ready:
        yield look.not_ready
    yield from fleet.self_health.conditions.values()
    if fleet.self_health.hold:
        yield f"evicts nobody: {fleet.self_health.hold}"
    for fault in fleet.unknown:
        yield f"unknown: {fault.kind}: {fault.why}"
    yield from fleet.troubles
    if not fleet.lighthouse.up and fleet.lighthouse.reason != NO_LIGHTHOUSE:
        yield f"Lighthouse away: {fleet.lighthouse.reason}"
    silent = [rank.rank for rank in fleet.ranks if rank.unreachable is not None]
    if silent:
        share = f"{len(silent):,} of {counted(len(fleet.ranks), 'rank')}"
        yield f"{share} do not answer: {listed(silent, _SHOWN)}"


# -- The fleet on a terminal: the screens of `status` and `top`. Pure ------------------------------

_LABEL: Final = 14
"""Width of the names at the left."""
_INCIDENTS: Final = 3
"""Incidents whose evidence is shown."""
_GROUPS: Final = 10
"""Groups listed, the worst."""
Link = Callable[[IncidentReport], str]


def short(look: StatusFacts, width: int | None, link: Link) -> list[Line]:
    """`link`: where an incident's evidence is, or empty."""
    lines: list[Line] = []
    for answer in answers(look):
        lines += _answer(answer, width)
        if answer.about == "held back by":
            lines += _evidence(look.fleet, link)
    lines += [_counted("groups", look.fleet.groups), _counted("ranks", look.fleet.ranks)]
    return lines + list(_groups(look.fleet, width))


def _answer(answer: StatusAnswer, width: int | None) -> Iterator[Line]:
    label = f"{answer.about:<{_LABEL}}"
    said: Line = [(label, "bold"), (answer.word, answer.style)]
    sentence = f"  {answer.text}"
    room = None if width is None else max(0, width - _LABEL - len(answer.word))
    yield [*said, (sentence if room is None else cut(sentence, room), "")]
    for text in answer.more:
        for part in [text] if width is None else _wrapped(text, max(20, width - _LABEL)):
            yield [(" " * _LABEL, ""), (part, "")]


def _evidence(fleet: Fleet, link: Link) -> Iterator[Line]:
    """Never cut: people copy it."""
    for report in fleet.incidents[:_INCIDENTS]:
        where = link(report)
        if where:
            yield [(" " * _LABEL, ""), (f"evidence: {where}", "dim")]


def _counted(about: str, rows: tuple[GroupView, ...] | tuple[RankJson, ...]) -> Line:
    line: Line = [(f"{about:<{_LABEL}}", "bold"), (f"{len(rows):,}", "")]
    for at, (health, number) in enumerate(count(rows).items()):
        line += [("  " if at == 0 else ", ", ""), (f"{number:,} {health}", STYLES.get(health, ""))]
    return line


def _groups(fleet: Fleet, width: int | None) -> Iterator[Line]:
    if not fleet.groups:
        return
    worst = sorted_groups(fleet.groups, "health")
    yield [("", "")]
    yield from table(GROUP_COLUMNS, worst[:_GROUPS], width)
    more = len(worst) - _GROUPS
    if more > 0:
        yield [(f"and {more:,} more, none of them worse: lightkeeper get groups", "dim")]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


_COLUMN_OF: Final = {"phase-age": "for", "commit-age": "commit"}
"""Orders whose column has another name."""
_ALL: Final = RowFilter()


def top_screen(
    look: StatusFacts,
    width: int,
    height: int,
    *,
    order: str = "busy",
    wide: bool = False,
    wanted: RowFilter = _ALL,
) -> list[Line]:
    """The whole screen: at most `height` lines of at most `width` cells."""
    head = _head(look, width)
    ranks = sorted_ranks(filter(wanted.rank, look.fleet.ranks), order)
    shown = ranks[: max(1, height - len(head) - 3)]
    rows = table(rank_columns(wide=wide), shown, width)
    chosen = _COLUMN_OF.get(order, order)
    titles = [(text, "bold reverse" if text == chosen else style) for text, style in rows[0]]
    which = "unhealthy " if wanted.unhealthy else ""
    foot = f"{len(shown):,} of {len(ranks):,} {which}ranks by {order}   Ctrl-C: leave"
    return [*head, [("", "")], titles, *rows[1:], [(cut(foot, width), "dim")]][:height]


def _head(look: StatusFacts, width: int) -> list[Line]:
    fleet = look.fleet
    trains, held_by, keeps, trusted = answers(look)
    title = [("lightkeeper top", "bold"), (f"  {clock(fleet.now_s)}  {trains.text}", "")]
    words: Line = []
    for answer in (trains, held_by, keeps, trusted):
        words += [
            ("  " if words else "", ""),
            (f"{answer.about} ", ""),
            (answer.word, answer.style),
        ]
    counts = _counts(fleet)
    said = next(iter((*held_by.more, *trusted.more)), held_by.text)
    return [fitted(line, width) for line in (title, words, counts, [(said, "")])]


def _counts(fleet: Fleet) -> Line:
    line: Line = []
    for name, rows in (("ranks", fleet.ranks), ("groups", fleet.groups)):
        line.append((f"{'   ' if line else ''}{len(rows):,} {name}:", ""))
        for health, number in count(rows).items():
            line.append((f" {number:,} {health}", STYLES.get(health, "")))
    return line


def fitted(line: Line, width: int) -> Line:
    spans: Line = []
    room = width
    for text, style in line:
        shown = cut(text, room)
        spans.append((shown, style))
        room -= width_of(shown)
        if shown != text:
            break
    return spans


def plain(lines: list[Line]) -> str:
    """A screen without styles, as text."""
    return "\n".join(text_of(line) for line in lines)
