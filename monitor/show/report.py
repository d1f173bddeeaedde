"""The report on flight records: text for a terminal, a page to mail, JSON for programs.

The verdict first, then who waits for whom, then detail on demand. The page loads nothing and runs
nothing. For evidence bundles the report also has the monitor's verdict when it saved them. It comes
first, since the monitor saw more than flight records hold (phases, processes, many ticks); the
analysis of the records is a second look, and the report says whether both agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightkeeper.monitor.model.incident import Incident, IncidentError, incident_from_json
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import counted, who
from lightkeeper.monitor.records.files import Bundle
from lightkeeper.monitor.records.findings import Analysis, Finding, Wait
from lightkeeper.monitor.records.job import Job
from lightkeeper.monitor.records.signature import POINT_TO_POINT
from lightkeeper.monitor.show.standing import (
    MEANINGS,
    Crowd,
    ReportRow,
    Role,
    concerned,
    crowds,
    ended,
    group_label,
    headline,
    members,
    offers,
    rank_list,
    rank_word,
    read_line,
    site,
    stands,
    title,
    where,
    with_hosts,
)
from lightkeeper.monitor.show.wording import clean, moment, sentence

_LINES: Final = 12
_TEXT_ROWS: Final = 40
_PAGE_ROWS: Final = 60
_PAGE_GROUPS: Final = 12


@dataclass(frozen=True, slots=True)
class FindingWords:
    who: str
    what: str
    kind: str
    confidence: Confidence
    reason: str
    facts: tuple[tuple[str, str], ...]
    """Names and values, some of them empty."""

    @property
    def known(self) -> list[tuple[str, str]]:
        return [fact for fact in self.facts if fact[1] and fact[1] != "-"]


@dataclass(frozen=True, slots=True)
class Called:
    """What the members of a group passed to one collective."""

    sequence: int
    p2p: bool
    rows: tuple[ReportRow, ...]


@dataclass(frozen=True, slots=True)
class GroupTable:
    """How far the members of one process group are."""

    label: str
    ranks: tuple[int, ...]
    inferred: bool
    """Whether its members are known only from its entries."""
    rows: tuple[ReportRow, ...]
    called: tuple[Called, ...]


STAND_HEADS: Final = ("ranks", "are", "enqueued", "completed", "first unfinished", "unfinished")
CALL_HEADS: Final = ("ranks", "gave", "state", "called at")


def finding_words(job: Job, finding: Finding) -> FindingWords:
    who, what = title(job, finding)
    facts = (
        ("shows at", where(job, finding)),
        ("victims", rank_list(job, finding.victims) if finding.victims else ""),
        ("hosts", with_hosts(job, finding.culprits)),
        ("process", ended(job, finding.culprits)),
        *((clean(name, 80), clean(seen)) for name, seen in finding.evidence.items()),
    )
    return FindingWords(who, what, finding.kind, finding.confidence, finding.reason, facts)


def wait_heads(analysis: Analysis) -> tuple[str, ...]:
    """Headings; no rank is called stuck where nothing is wrong."""
    within = "stuck in" if analysis.findings else "in"
    return ("ranks", "are", within, "since", "wait for", "called at")


def wait_rows(
    job: Job, analysis: Analysis, at_most: int, *, free: bool
) -> tuple[list[ReportRow], int]:
    """A row for each collective in which a crowd waits, and how many ranks are left out.

    Args:
        at_most: crowds.
        free: whether to include ranks that wait for nothing.
    """
    every = [
        crowd for crowd in crowds(job, analysis, at_most) if free or crowd.role is not Role.FREE
    ]
    rows = []
    for crowd in every[:at_most]:
        waits: tuple[Wait | None, ...] = crowd.waits or (None,)
        for wait in waits:
            cells = (idle(crowd), "-", "-", "-") if wait is None else (
                stuck_in(job, crowd, wait), moment(wait.since_ns), awaited(job, crowd),
                site(job, wait.row) or "-",
            )  # fmt: skip
            rows.append(
                ReportRow(crowd.role, (rank_list(job, crowd.ranks), str(crowd.role), *cells))
            )
    return rows, sum(len(crowd.ranks) for crowd in every[at_most:])


def stuck_in(job: Job, crowd: Crowd, wait: Wait) -> str:
    """The collective in which a crowd waits; of several groups, without its number."""
    op = clean(wait.op, 80)
    group = job.groups[wait.group]
    if crowd.groups == 1:
        return f"{op} {wait.sequence} of {group_label(group)}"
    return f"{op} of {clean(group.desc or group.name, 80)} and its like ({crowd.groups} groups)"


def idle(crowd: Crowd) -> str:
    """The state of a crowd that waits in no collective."""
    if crowd.role is Role.SILENT or crowd.unfinished is None:
        return "no record"
    return f"{crowd.unfinished} unfinished" if crowd.unfinished else "nothing unfinished"


def awaited(job: Job, crowd: Crowd) -> str:
    others = tuple(rank for rank in crowd.waits_for if rank not in crowd.ranks)
    if crowd.waits_for and not others:
        return "each other"
    return rank_list(job, others or crowd.waits_for) if crowd.waits_for else "nobody: all are there"


def standing(job: Job, analysis: Analysis, group: int, at_most: int) -> GroupTable:
    """One process group; `at_most` rows a table."""
    process_group = job.groups[group]
    rows = tuple(stands(job, analysis, group)[:at_most])
    called = tuple(
        Called(sequence, p2p, tuple(offers(job, group, sequence, p2p=p2p)[:at_most]))
        for sequence, p2p in _sequences(job, analysis, group)
    )
    inferred = process_group.inferred or not process_group.members
    return GroupTable(group_label(process_group), members(job, group), inferred, rows, called)


def _sequences(job: Job, analysis: Analysis, group: int) -> tuple[tuple[int, bool], ...]:
    """The collectives of a group that matter, and whether they are point-to-point; a few."""
    calls: dict[tuple[int, bool], None] = {}
    for wait in analysis.waits:
        if wait.group == group:
            calls[wait.sequence, bool(job.columns["p2p"][wait.row])] = None
    for finding in analysis.findings:
        if finding.group == group and finding.sequence is not None:
            calls[finding.sequence, finding.op in POINT_TO_POINT] = None
    return tuple(sorted(calls))[:6]


def limits(job: Job, analysis: Analysis) -> list[str]:
    """What could not be read, a line each, and the analysis's own notes."""
    lines = []
    for problem in job.problems:
        rank = problem.rank
        missing = "" if rank is None else f" ({rank_word(job, (rank,))} has no record)"
        lines.append(f"{clean(problem.path, 300)}: {clean(problem.reason, 300)}{missing}")
    return [*lines, *map(clean, analysis.notes)]


# On a terminal.

_INDENT = (0, 0, 0, 3)
_STYLES = {
    Role.CULPRIT: "bold red",
    Role.SUSPECT: "magenta",
    Role.SILENT: "magenta",
    Role.VICTIM: "yellow",
    Role.WAITING: "yellow",
}


def verdict(number: int, words: FindingWords, width: int) -> Iterator[RenderableType]:
    """Lines of one verdict; `width` is that of the facts' names. Empty facts are left out.

    Texts are printed as they are: clean those from files first.
    """
    confidence = words.confidence
    unsure = confidence is Confidence.UNSURE
    heading = Text(f"{number}. {words.who}", "bold magenta" if unsure else "bold red")
    heading.append(f": {words.what}", "bold")
    heading.append(f"  ({words.kind}, {confidence})", "dim")
    yield heading
    yield Padding(Text(sentence(words.reason)), _INDENT)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", max_width=width)
    grid.add_column(overflow="fold")
    for name, seen in (*words.known, ("confidence", f"{confidence}: {MEANINGS[confidence]}")):
        grid.add_row(Text(name), Text(seen))
    yield Padding(grid, _INDENT)


def print_report(out: Console, job: Job, analysis: Analysis, groups: Sequence[int] = ()) -> None:
    """Write the report; detail for `groups`, indices into `Job.groups`."""
    for part in _parts(job, analysis, groups):
        out.print(part)


def _parts(job: Job, analysis: Analysis, groups: Sequence[int]) -> Iterator[RenderableType]:
    style = "bold red" if analysis.findings else "bold green"
    yield Text(headline(job, analysis.findings, analysis.culprits), style)
    yield Text(read_line(job), "dim")
    for number, finding in enumerate(analysis.findings, start=1):
        yield Text()
        yield from verdict(number, finding_words(job, finding), 44)
    if analysis.waits and (analysis.findings or groups):  # a healthy job waits at any moment
        rows, more = wait_rows(job, analysis, _TEXT_ROWS, free=False)
        table = _table("who waits for whom", wait_heads(analysis), rows)
        if more:
            table.caption = f"and {counted(more, 'rank')} more; --format json has them all"
        yield Text()
        yield table
    for group in groups:
        yield Text()
        yield from _group(job, standing(job, analysis, group, _TEXT_ROWS))
    lines = limits(job, analysis)
    if lines:
        yield Text("\nwhat limits this", "bold")
    more = len(lines) - _LINES
    rest = [f"and {more} more; --format json has them"] if more > 0 else []
    for line in (*lines[:_LINES], *rest):
        yield Padding(Text(f"- {line}"), (0, 0, 0, 2))


def _group(job: Job, table: GroupTable) -> Iterator[RenderableType]:
    caveat = ", as far as its entries tell" if table.inferred else ""
    yield Text(f"group {table.label.removeprefix('group ')}: {rank_word(job, table.ranks)}{caveat}",
               "bold")  # fmt: skip
    yield _table("", STAND_HEADS, table.rows)
    for called in table.called:
        yield _table(f"at {called.sequence}", CALL_HEADS, called.rows)


def _table(title: str, heads: Iterable[str], rows: Iterable[ReportRow]) -> Table:
    """The first two cells of a row with a role have its colour."""
    table = Table(
        title=title or None, title_justify="left", title_style="bold", header_style="bold"
    )
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        style = _STYLES.get(Role(row.role), "") if row.role else ""
        table.add_row(*(Text(cell, style if at < 2 else "") for at, cell in enumerate(row.cells)))
    return table


# As a page to mail.


def page(job: Job, analysis: Analysis, live: MonitorVerdict | None = None) -> str:
    """The whole document; `live`: the monitor's verdict, for evidence bundles."""
    from lightkeeper.monitor.show.templating import render  # noqa: PLC0415 - nobody else needs templates here

    rows, more = wait_rows(job, analysis, _PAGE_ROWS, free=True)
    shown = concerned(analysis)
    groups = [standing(job, analysis, group, _PAGE_ROWS) for group in shown[:_PAGE_GROUPS]]
    return render(
        "report.html",
        answer=headline(job, analysis.findings, analysis.culprits),
        tone="bad" if analysis.culprits else "doubt" if analysis.findings or live else "good",
        read=read_line(job),
        live=None if live is None else lines(job, live),
        findings=[finding_words(job, finding) for finding in analysis.findings],
        meanings=MEANINGS,
        waits=rows if analysis.waits else [],
        wait_heads=wait_heads(analysis),
        waits_left=more,
        groups=[(table, rank_word(job, table.ranks, 12)) for table in groups],
        groups_left=max(0, len(shown) - _PAGE_GROUPS),
        stand_heads=STAND_HEADS,
        call_heads=CALL_HEADS,
        limits=limits(job, analysis),
    )


# For programs: schema 1; keys may be added, none is removed.

SCHEMA: Final = 1


def report(job: Job, analysis: Analysis, live: MonitorVerdict | None = None) -> dict[str, Any]:
    """What `--format json` prints. Text from records is unchanged; JSON escapes it."""
    body: dict[str, Any] = {
        "schema": SCHEMA,
        "ranks_expected": len({*job.expected, *job.ranks}),
        "ranks_read": sorted(job.ranks),
        "ranks_silent": list(job.silent),
        "verdicts": [_verdict(job, finding) for finding in analysis.findings],
        "culprits": list(culprits(analysis, live)),
        "problems": [
            {"path": problem.path, "rank": problem.rank, "reason": problem.reason}
            for problem in job.problems
        ],
        "notes": list(analysis.notes),
    }
    if job.names:
        body["names"] = {str(rank): job.names[rank] for rank in sorted(job.names)}
    if live is not None:
        body["monitor"] = to_json(live)
    if job.hosts:
        body["hosts"] = {str(rank): job.hosts[rank] for rank in sorted(job.hosts)}
    return body


def no_answer(reason: str, done: int, total: int) -> dict[str, Any]:
    """The report when a limit was reached: partial evidence accuses nobody."""
    return {
        "schema": SCHEMA,
        "cannot_tell": {"reason": reason, "files_read": done, "files": total},
        "verdicts": [],
        "culprits": [],
        "problems": [],
        "notes": [],
    }


def _verdict(job: Job, finding: Finding) -> dict[str, Any]:
    group = None if finding.group is None else job.groups[finding.group]
    return {
        "kind": str(finding.kind),
        "culprits": list(finding.culprits),
        "cannot_tell_between": [list(side) for side in finding.between],
        "victims": list(finding.victims),
        "group": None if group is None else group.name,
        "group_label": None if group is None else group.label,
        "sequence": finding.sequence,
        "op": finding.op,
        "confidence": str(finding.confidence),
        "reason": finding.reason,
        "evidence": dict(finding.evidence),
    }


@dataclass(frozen=True, slots=True)
class MonitorVerdict:
    """The verdict of one bundle's incident."""

    path: str
    incident: Incident
    records_of: str
    """The moment whose flight records were read, or why none were."""
    agreement: str
    """One of `same`, `none` (the records show no fault), `unsure`, `other`."""
    suspects: tuple[int, ...]
    """Global ranks of the culprits or candidates, if they have one."""

    @property
    def sure(self) -> bool:
        return self.incident.verdict.confidence is not Confidence.UNSURE


def monitor_verdict(job: Job, analysis: Analysis, bundle: Bundle | None) -> MonitorVerdict | None:
    """The bundle's verdict; None without an incident, as for an eviction by hand."""
    if bundle is None:
        return None
    try:
        incident = incident_from_json(bundle.manifest.incident)
    except IncidentError:
        return None
    number = {name: rank for rank, name in job.names.items()}
    records_of = "no flight record was to be had"
    if bundle.moment is not None:
        records_of = f"{bundle.moment.name}, {moment(int(bundle.moment.began_s * 1e9))} UTC"
    suspects = sorted(number[name] for name in incident.suspects if name in number)
    agreement = _agreement(job, analysis, incident)
    return MonitorVerdict(bundle.path, incident, records_of, agreement, tuple(suspects))


def culprits(analysis: Analysis, live: MonitorVerdict | None) -> tuple[int, ...]:
    """Whom the report accuses: the monitor's culprits if it was sure, else the records'."""
    return live.suspects if live is not None and live.sure else analysis.culprits


def _agreement(job: Job, analysis: Analysis, incident: Incident) -> str:
    named = {job.name(rank) for rank in analysis.culprits}
    sure = incident.verdict.confidence is not Confidence.UNSURE
    if not analysis.findings:
        return "none"
    if not named:
        return "unsure" if sure else "same"
    return "same" if sure and named == set(incident.culprits) else "other"


_SAID = {
    "same": "the flight records by themselves say the same",
    "none": "the flight records by themselves show no fault: whoever works slowly, has died, or "
    "waits outside of collectives leaves none in them",
    "unsure": "the flight records by themselves do not tell who it was",
    "other": "the flight records by themselves name others: read both",
}


def lines(job: Job, live: MonitorVerdict) -> tuple[str, list[tuple[str, str]]]:
    incident = live.incident
    whose = clean(who(incident, 12), 300) or "nobody"
    heading = f"the monitor's verdict: {whose} ({incident.kind}, {incident.verdict.confidence})"
    facts = [
        ("", sentence(incident.verdict.reason)),
        ("incident", f"{clean(incident.id, 200)}, {incident.state}"),
        ("records of", live.records_of),
        ("second look", _SAID[live.agreement]),
    ]
    if live.suspects and not live.sure:
        facts.insert(1, ("ranks", rank_list(job, live.suspects)))
    return heading, facts


def to_json(live: MonitorVerdict) -> dict[str, Any]:
    incident = live.incident
    return {
        "bundle": live.path,
        "incident": incident.id,
        "kind": str(incident.kind),
        "state": str(incident.state),
        "culprits": list(incident.culprits),
        "candidates": list(incident.candidates),
        "culprit_ranks": list(live.suspects) if live.sure else [],
        "candidate_ranks": [] if live.sure else list(live.suspects),
        "groups": list(incident.groups),
        "confidence": str(incident.verdict.confidence),
        "reason": incident.verdict.reason,
        "records_of": live.records_of,
        "records_say": live.agreement,
    }
