"""The report on flight records: text for a terminal, a page to mail, JSON for programs.

The verdict first, then who waits for whom, then detail on demand. The page loads nothing and runs
nothing. For evidence bundles the report also has the monitor's verdict when it saved them. It comes
first, since the monitor saw more than flight records hold (phases, processes, many ticks); the
analysis of the records is a second look, and the report says whether both agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lightkeeper.monitor.model.incident import Incident, incident_from_json
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import counted, who
from lightkeeper.monitor.records.files import Bundle
from lightkeeper.monitor.records.findings import Analysis, Finding
from lightkeeper.monitor.records.job import Job
from lightkeeper.monitor.show.standing import (
    MEANINGS,
    ReportTable,
    Role,
    answer,
    ended,
    rank_list,
    rank_word,
    read_line,
    title,
    wait_table,
    where,
    with_hosts,
)
from lightkeeper.monitor.show.wording import clean, moment, sentence

_LINES: Final = 20
_ROWS: Final = 40


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
        confidence = "confidence", f"{self.confidence}: {MEANINGS[self.confidence]}"
        return [fact for fact in (*self.facts, confidence) if fact[1] and fact[1] != "-"]


def finding_words(job: Job, finding: Finding) -> FindingWords:
    who, what = title(job, finding)
    facts = (
        ("shows at", where(job, finding)),
        ("victims", rank_list(job, finding.victims)),
        ("hosts", with_hosts(job, finding.culprits)),
        ("process", ended(job, finding.culprits)),
        *((clean(name, 80), clean(seen)) for name, seen in finding.evidence.items()),
    )
    return FindingWords(who, what, finding.kind, finding.confidence, finding.reason, facts)


@dataclass(frozen=True, slots=True)
class ReportWords:
    """What the terminal and the page show."""

    answer: str
    accused: bool
    read: str
    live: MonitorVerdict | None
    """For evidence bundles."""
    findings: tuple[FindingWords, ...]
    waits: ReportTable | None
    limits: list[str]
    """What could not be read, and the analysis's own notes."""


def report_words(
    job: Job, analysis: Analysis, live: MonitorVerdict | None = None, *, details: bool = False
) -> ReportWords:
    """The report; `details`: who waits for whom, also without a fault."""
    lines: list[str] = []
    for problem in job.problems:
        rank = problem.rank
        missing = "" if rank is None else f" ({rank_word(job, (rank,))} has no record)"
        lines.append(f"{clean(problem.path, 300)}: {clean(problem.reason, 300)}{missing}")
    lines += map(clean, analysis.notes)
    more = len(lines) - _LINES
    waits = bool(analysis.waits and (analysis.findings or details))  # a healthy job always waits
    return ReportWords(
        answer(job, analysis),
        bool(analysis.culprits),
        read_line(job),
        live,
        tuple(finding_words(job, finding) for finding in analysis.findings),
        wait_table(job, analysis, _ROWS) if waits else None,
        [*lines[:_LINES], *([f"and {more} more; --format json has them"] if more > 0 else [])],
    )


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
    unsure = words.confidence is Confidence.UNSURE
    heading = Text(f"{number}. {words.who}", "bold magenta" if unsure else "bold red")
    heading.append(f": {words.what}", "bold")
    heading.append(f"  ({words.kind}, {words.confidence})", "dim")
    yield heading
    yield Padding(Text(sentence(words.reason)), _INDENT)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", max_width=width)
    grid.add_column(overflow="fold")
    for name, seen in words.known:
        grid.add_row(Text(name), Text(seen))
    yield Padding(grid, _INDENT)


def limits(lines: Sequence[str]) -> Iterator[RenderableType]:
    """What limits an answer."""
    if lines:
        yield Text("\nwhat limits this", "bold")
    for line in lines:
        yield Padding(Text(f"- {line}"), (0, 0, 0, 2))


def print_report(out: Console, words: ReportWords) -> None:
    for part in _parts(words):
        out.print(part)


def _parts(words: ReportWords) -> Iterator[RenderableType]:
    if words.live is not None:
        yield Text(words.live.heading, "bold red" if words.live.sure else "bold magenta")
        for name, seen in words.live.facts:
            yield Text(f"   {name}: {seen}")
        yield Text("\nby the flight records alone:", "dim")
    yield Text(words.answer, "bold red" if words.findings else "bold green")
    yield Text(words.read, "dim")
    for number, finding in enumerate(words.findings, start=1):
        yield Text()
        yield from verdict(number, finding, 44)
    if words.waits is not None:
        yield Text()
        yield drawn(words.waits)
    yield from limits(words.limits)


def drawn(shown: ReportTable) -> Table:
    """The first two cells of a row with a role have its colour."""
    table = Table(
        title=shown.title or None, title_justify="left", title_style="bold", header_style="bold"
    )
    for head in shown.heads:
        table.add_column(head, overflow="fold")
    for row in shown.rows:
        style = _STYLES.get(Role(row.role), "") if row.role else ""
        table.add_row(*(Text(cell, style if at < 2 else "") for at, cell in enumerate(row.cells)))
    if shown.left_out:
        table.caption = f"and {counted(shown.left_out, 'rank')} more"
    return table


# As a page to mail.


def page(words: ReportWords) -> str:
    """The whole document."""
    from lightkeeper.monitor.show.templating import render  # noqa: PLC0415 - nobody else needs templates here

    return render("report.html", report=words)


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
        "problems": [to_plain(problem) for problem in job.problems],
        "notes": list(analysis.notes),
    }
    for key, by_rank in (("names", job.names), ("hosts", job.hosts)):
        if by_rank:
            body[key] = {str(rank): by_rank[rank] for rank in sorted(by_rank)}
    if live is not None:
        body["monitor"] = to_json(live)
    return body


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

    @property
    def heading(self) -> str:
        whose = clean(who(self.incident, 12), 300) or "nobody"
        kind = f"{self.incident.kind}, {self.incident.verdict.confidence}"
        return f"The monitor's verdict: {whose} ({kind})"

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        return (
            ("reason", sentence(self.incident.verdict.reason)),
            ("incident", f"{clean(self.incident.id, 200)}, {self.incident.state}"),
            ("records of", self.records_of),
            ("second look", _SAID[self.agreement]),
        )


def monitor_verdict(job: Job, analysis: Analysis, bundle: Bundle | None) -> MonitorVerdict | None:
    """The bundle's verdict; None without an incident, as for an eviction by hand."""
    if bundle is None:
        return None
    try:
        incident = incident_from_json(bundle.manifest.incident)
    except ValueError:
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
