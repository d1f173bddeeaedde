"""The report on flight records: one value, printed as text, as a page to mail, and as JSON.

The verdict first, then who waits for whom, then detail on demand. The page loads nothing and runs
nothing. For evidence bundles the report also has the monitor's verdict when it saved them. It comes
first, since the monitor saw more than flight records hold (phases, processes, many ticks); the
analysis of the records is a second look, and the report says whether both agree.

A job has thousands of ranks and a page has room for a few dozen rows. Ranks that wait in the
same collective for the same others form a crowd. If that leaves too many crowds, ranks that wait
in similar collectives for ranks of similar roles form one: eight tensor-parallel groups that do the
same are shown once, but ranks that wait for the culprit stay apart from those behind them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Final

import numpy as np

from lightkeeper.monitor.model.incident import Incident, incident_from_json, incident_to_json
from lightkeeper.monitor.model.plain import to_plain
from lightkeeper.monitor.model.units import clean, counted, grouped, sentence, time_of_rank, utc
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wait_map import WaitEdge, WaitMap, WaitNode, WaitPart
from lightkeeper.monitor.model.wording import listed, plural, who
from lightkeeper.monitor.records.files import Bundle
from lightkeeper.monitor.records.findings import Analysis, Fault, Finding, RecordedWait
from lightkeeper.monitor.records.job import NONE, CollectiveState, Group, Job
from lightkeeper.monitor.show.graph_svg import draw_graph

# -- who waits for whom ----------------------------------------------------------------------------

_UNFINISHED = (CollectiveState.UNKNOWN, CollectiveState.SCHEDULED, CollectiveState.STARTED)


class Role(StrEnum):
    """A rank's part in the fault; the first that fits, in this order."""

    CULPRIT = "culprit"
    SUSPECT = "suspect"  # on one of the sides of an undecided fault
    SILENT = "silent"  # no record
    VICTIM = "victim"
    WAITING = "waiting"  # in a collective, and no finding explains it
    FREE = "free"  # nothing unfinished


_ROLES = tuple(Role)


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a table; ranks in one situation share it."""

    role: str
    """`Role`, or empty."""
    cells: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReportTable:
    title: str
    heads: tuple[str, ...]
    rows: tuple[ReportRow, ...]
    left_out: int = 0
    """Ranks for which there was no room."""


def roles(job: Job, analysis: Analysis) -> dict[int, Role]:
    """Every rank's part, sorted by rank."""
    by_rank: dict[int, Role] = dict.fromkeys({*job.expected, *job.ranks}, Role.FREE)
    by_rank.update((wait.rank, Role.WAITING) for wait in analysis.waits)
    for finding in analysis.findings:
        by_rank.update(dict.fromkeys(finding.victims, Role.VICTIM))
    by_rank.update(dict.fromkeys(job.silent, Role.SILENT))
    for finding in analysis.findings:
        by_rank.update(dict.fromkeys(finding.tied, Role.SUSPECT))
    by_rank.update(dict.fromkeys(analysis.culprits, Role.CULPRIT))
    return dict(sorted(by_rank.items()))


def _waits(analysis: Analysis) -> defaultdict[int, list[RecordedWait]]:
    """Rank -> the collectives in which it waits."""
    return defaultdict(list, grouped((wait.rank, wait) for wait in analysis.waits))


def crowds(job: Job, analysis: Analysis, at_most: int) -> tuple[tuple[int, ...], ...]:
    """All ranks in crowds, by role (culprits first), then by rank.

    Grouped as finely as `at_most` allows: by the exact collective and the ranks waited for; by
    the kind of collective and the roles of those ranks; by role alone. Culprits of different
    faults stay apart.
    """
    role, waits = roles(job, analysis), _waits(analysis)
    marks: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, finding in enumerate(analysis.findings):
        for rank in {*finding.culprits, *finding.tied}:
            marks[rank] = (*marks[rank], index)

    def exact(wait: RecordedWait) -> Hashable:
        members = job.groups[wait.group].members
        everybody = len(wait.waits_for) == len(members) - 1 > 1
        all_others = everybody and wait.rank not in wait.waits_for
        return wait.group, wait.sequence, wait.op, None if all_others else wait.waits_for

    def alike(wait: RecordedWait) -> Hashable:
        group = job.groups[wait.group]
        awaited = frozenset(role.get(rank) for rank in wait.waits_for)
        return group.desc or len(group.members), wait.op, awaited

    by_key: dict[Hashable, list[int]] = {}
    for inside in (exact, alike):
        by_key = grouped(((role[r], marks[r], *map(inside, waits[r])), r) for r in role)
        if len(by_key) <= at_most:
            break
    else:
        by_key = grouped(((role[rank], marks[rank][:1]), rank) for rank in role)
    every = sorted(by_key.values(), key=lambda ranks: (_ROLES.index(role[ranks[0]]), ranks))
    return tuple(map(tuple, every))


def wait_table(job: Job, analysis: Analysis, at_most: int) -> ReportTable:
    """Who waits for whom: a row for each collective in which one of `at_most` crowds waits."""
    role, waits, every = roles(job, analysis), _waits(analysis), crowds(job, analysis, at_most)
    rows = [
        ReportRow(role[ranks[0]], (rank_list(job, ranks), str(role[ranks[0]]), *cells))
        for ranks in every[:at_most]
        for cells in _waiting(job, ranks, waits)
    ]
    heads = ("ranks", "are", "in", "since", "wait for", "called at")
    return ReportTable("who waits for whom", heads, tuple(rows), sum(map(len, every[at_most:])))


def _waiting(
    job: Job, ranks: tuple[int, ...], waits: Mapping[int, Sequence[RecordedWait]]
) -> Iterator[tuple[str, ...]]:
    """The collectives in which the first rank of a crowd waits, since when, for whom, and where."""
    first, every = waits[ranks[0]], [wait for rank in ranks for wait in waits[rank]]
    if not first:
        column = job.columns["rank"]
        ends = np.array([ranks[0], ranks[0] + 1], column.dtype)  # another would convert the column
        states = job.columns["state"][slice(*np.searchsorted(column, ends))]
        unfinished = np.count_nonzero(np.isin(states, _UNFINISHED)) or "nothing"
        yield f"{unfinished} unfinished" if ranks[0] in job.ranks else "no record", "-", "-", "-"
    groups = len({wait.group for wait in every})
    awaited = {rank for wait in every for rank in wait.waits_for}
    whom = "each other" if awaited else "nobody: all are there"
    if awaited - set(ranks):
        whom = rank_list(job, awaited - set(ranks))
    for wait in first:
        op, group = clean(wait.op, 80), job.groups[wait.group]
        inside = f"{op} {wait.sequence} of {_label(group)}"
        if groups > 1:
            inside = f"{op} of {clean(group.desc or group.name, 80)} and its like ({groups} groups)"
        yield inside, time_of_rank(wait.since_ns), whom, _called_at(job, wait.row) or "-"


def _called_at(job: Job, row: int) -> str:
    index = int(job.columns["site"][row])
    return "" if index == NONE else clean(job.sites[index], 200)


_BOXES: Final = 12
_PARTS: Final = dict.fromkeys((Role.SUSPECT, Role.SILENT), WaitPart.CANDIDATE)
_PARTS[Role.CULPRIT] = WaitPart.CULPRIT


def records_map(job: Job, analysis: Analysis) -> WaitMap | None:
    """The analysis as a graph of crowds; None: nobody waits for others."""
    role, waits = roles(job, analysis), _waits(analysis)
    some = crowds(job, analysis, _BOXES)[:_BOXES]
    every = [ranks for ranks in some if role[ranks[0]] is not Role.FREE]
    place = {rank: node for node, ranks in enumerate(every) for rank in ranks}
    calls = {
        (node, place[awaited]): clean(wait.op, 40)
        for node, ranks in enumerate(every)
        for wait in waits[ranks[0]]
        for awaited in wait.waits_for
        if place.get(awaited, node) != node
    }
    parts = [_PARTS.get(role[ranks[0]], WaitPart.WAITS) for ranks in every]
    near = {waiter for waiter, holder in calls if parts[holder] != WaitPart.WAITS}
    nodes = []
    for node, (ranks, part) in enumerate(zip(every, parts, strict=True)):
        depth = (part == WaitPart.WAITS) * (1 + (node not in near))
        hosts = sorted({clean(job.hosts[rank], 80) for rank in ranks if rank in job.hosts})
        name = rank_word(job, ranks) if len(ranks) == 1 else rank_list(job, ranks, 4)
        does, at = next(_waiting(job, ranks, waits))[0], (tuple(hosts[:3]), len(hosts))
        nodes.append(WaitNode(part, (name,), len(ranks), depth, does, (), 0, *at))
    edges = (WaitEdge(*pair, op) for pair, op in sorted(calls.items()))
    return WaitMap(0.0, tuple(nodes), tuple(edges)[: 4 * _BOXES]) if calls else None


# -- findings in words: who did what, where --------------------------------------------------------

TITLES: Final[Mapping[Fault, str]] = {
    Fault.NOT_ENTERED: "did not come to a collective",
    Fault.NOT_ENQUEUING: "stopped launching collectives",
    Fault.SILENT: "no record, and others wait for it",
    Fault.GPU_BEHIND: "GPU stopped before its peers'",
    Fault.STUCK_INSIDE: "a whole group is stuck inside a collective",
    Fault.MISMATCH: "called something else than its peers",
    Fault.SKIPPED: "left a collective out",
    Fault.EXTRA: "called one collective too many",
    Fault.SILENT_MISMATCH: "another dtype than its peers: no hang, wrong numbers",
    Fault.ORDER_INVERSION: "deadlock: collectives in different order",
    Fault.POINT_TO_POINT: "a send or recv that nobody answers",
    Fault.TWO_THREADS: "two threads use one group in no order",
    Fault.TIMED_OUT: "ended by its timeout or an error everywhere",
}
"""What the culprits of each kind did."""

MEANINGS: Final[Mapping[Confidence, str]] = {
    Confidence.CERTAIN: "seen directly, or the only explanation of what every rank shows",
    Confidence.LIKELY: "a strict majority or the rank's own history says so, nothing contradicts",
    Confidence.UNSURE: "the evidence ties or is incomplete: nobody is accused",
}


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
    whose = "no rank to accuse"
    if finding.culprits:
        whose = rank_word(job, finding.culprits)
    elif finding.between:  # undecided between sides
        sides = [rank_word(job, side) for side in finding.between]
        whose = f"cannot tell between {listed(sides, len(sides))}"
    ranks = job.ranks
    dead = [rank for rank in finding.culprits if rank in ranks and ranks[rank].alive is False]
    facts = (
        ("shows at", shows_at(job, finding)),
        ("victims", rank_list(job, finding.victims)),
        ("hosts", with_hosts(job, finding.culprits)),
        ("process", f"{rank_word(job, dead)} had ended" if dead else ""),
        *((clean(name, 80), clean(seen)) for name, seen in finding.evidence.items()),
    )
    what = TITLES[finding.kind]
    return FindingWords(whose, what, finding.kind, finding.confidence, finding.reason, facts)


def rank_word(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`rank 9`, `ranks 9 and 14`, `ranks 0-7 and 9`; by name if ranks have names."""
    distinct = set(ranks)
    return f"{plural(distinct, 'rank', 'ranks')} {listed(_rank_parts(job, distinct), at_most)}"


def rank_list(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`0-7, 9`; a dash for nobody."""
    parts = _rank_parts(job, ranks)
    return listed(parts, at_most) if len(parts) > at_most else ", ".join(parts) or "-"


def _rank_parts(job: Job, ranks: Iterable[int]) -> list[str]:
    """Runs of ranks: `0-7`, `9`; by name `rg_1.0-3`."""
    ordered = sorted(set(ranks))
    if not job.names:
        return _runs("", ordered)
    parts: list[str] = []
    by_prefix: dict[str, list[int]] = {}
    for rank in ordered:
        prefix, dot, number = job.name(rank).rpartition(".")
        if dot and number.isascii() and number.isdigit() and str(int(number)) == number:
            by_prefix.setdefault(prefix, []).append(int(number))
        else:
            parts.append(clean(job.name(rank), 80))
    for prefix, numbers in by_prefix.items():
        parts += _runs(clean(prefix, 80) + ".", sorted(numbers))
    return parts


def _runs(prefix: str, numbers: list[int]) -> list[str]:
    by_start = grouped((number - at, number) for at, number in enumerate(numbers)).values()
    return [
        f"{prefix}{run[0]}" if len(run) == 1 else f"{prefix}{run[0]}-{run[-1]}" for run in by_start
    ]


def _label(group: Group) -> str:
    """A process group's name; a bare number from torch gets `group`."""
    label = clean(group.label, 120)
    return f"group {label}" if label[:1].isdigit() or not label else label


def shows_at(job: Job, finding: Finding) -> str:
    """The collective where a fault shows: `all_reduce 12 of dp (3)`."""
    number = "" if finding.sequence is None else f" {finding.sequence}"
    what = clean(finding.op or "collective", 80) + number
    if finding.group is None:
        return what if finding.op or number else "-"
    return f"{what} of {_label(job.groups[finding.group])}"


def with_hosts(job: Job, ranks: Iterable[int]) -> str:
    """`9 on node17, 14 on node18`; empty where no host is known."""
    by_host = grouped((job.hosts[rank], rank) for rank in sorted(set(ranks)) if rank in job.hosts)
    places = [f"{rank_list(job, ranks)} on {clean(host, 80)}" for host, ranks in by_host.items()]
    return listed(places, 8)


def found_line(noun: str, faults: int, unsure: int, culprits: str, source: str) -> str:
    """`2 faults found, caused by rank 1; the records do not tell who caused 1 of them`.

    Args:
        unsure: faults without a culprit.
        culprits: in words, empty without any.
    """
    if not faults:
        return f"no {noun} found"
    caused = f", caused by {culprits}" if culprits else ""
    which = f"{unsure} of them" if culprits else "it" if faults == 1 else "them"
    more = f"; {source} not tell who caused {which}" if unsure else ""
    return f"{counted(faults, 'fault')} found{caused}{more}"


# -- the monitor's own verdict, in a bundle --------------------------------------------------------

_AGREEMENT = {
    "same": "the flight records by themselves say the same",
    "none": "the flight records by themselves show no fault: whoever works slowly, has died, or "
    "waits outside of collectives leaves none in them",
    "unsure": "the flight records by themselves do not tell who it was",
    "other": "the flight records by themselves name others: read both",
}
_OF_INCIDENT = ("kind", "state", "culprits", "candidates", "groups", "confidence", "reason")


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
            ("second look", _AGREEMENT[self.agreement]),
        )

    def body(self) -> dict[str, Any]:
        plain, ranks = incident_to_json(self.incident), list(self.suspects)
        return {
            "bundle": self.path,
            "incident": self.incident.id,
            **{key: plain[key] for key in _OF_INCIDENT},
            "culprit_ranks": ranks if self.sure else [],
            "candidate_ranks": [] if self.sure else ranks,
            "records_of": self.records_of,
            "records_say": self.agreement,
        }


def _monitor_verdict(job: Job, analysis: Analysis, bundle: Bundle | None) -> MonitorVerdict | None:
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
        records_of = f"{bundle.moment.name}, {utc(bundle.moment.began_s)}"
    suspects = sorted(number[name] for name in incident.suspects if name in number)
    named = {job.name(rank) for rank in analysis.culprits}
    sure, agreement = incident.verdict.confidence is not Confidence.UNSURE, "other"
    if not analysis.findings:
        agreement = "none"
    elif not named:
        agreement = "unsure" if sure else "same"
    elif sure and named == set(incident.culprits):
        agreement = "same"
    return MonitorVerdict(bundle.path, incident, records_of, agreement, tuple(suspects))


# -- the report ------------------------------------------------------------------------------------

SCHEMA: Final = 1
_LINES: Final = 20
_ROWS: Final = 40


@dataclass(frozen=True)  # no slots: a cached property needs `__dict__`
class Report:
    """What the records of a job say, and beside it what the monitor said when it saved them."""

    job: Job
    analysis: Analysis
    bundle: Bundle | None = field(default=None)
    """The evidence bundle from which the records are, if any."""

    @cached_property
    def live(self) -> MonitorVerdict | None:
        return _monitor_verdict(self.job, self.analysis, self.bundle)

    @property
    def accused(self) -> bool:
        return bool(self.analysis.culprits)

    @property
    def answer(self) -> str:
        """The whole answer in one line."""
        job, findings, culprits = self.job, self.analysis.findings, self.analysis.culprits
        if findings or not job.silent:
            whose = rank_word(job, culprits) if culprits else ""
            unsure = sum(not finding.culprits for finding in findings)
            return found_line("fault", len(findings), unsure, whose, "the records do")
        all_of = counted(len({*job.expected, *job.ranks}), "rank")
        return f"no fault found in the records of {len(job.ranks):,} of {all_of}"

    @property
    def read(self) -> str:
        """How much of the job was read: `records of 15 of 16 ranks, 1 silent (3)`."""
        job = self.job
        all_of = counted(max(len(job.expected), len(job.ranks)), "rank")
        entries = "1 entry" if len(job) == 1 else f"{len(job):,} entries"
        text = f"records of {len(job.ranks):,} of {all_of}, {entries}"
        return f"{text}; no record of {rank_word(job, job.silent)}" if job.silent else text

    @cached_property
    def findings(self) -> tuple[FindingWords, ...]:
        return tuple(finding_words(self.job, finding) for finding in self.analysis.findings)

    @cached_property
    def waits(self) -> ReportTable | None:
        """Who waits for whom; None: nobody waits."""
        return wait_table(self.job, self.analysis, _ROWS) if self.analysis.waits else None

    @property
    def limits(self) -> list[str]:
        """What could not be read, and the analysis's own notes."""
        lines: list[str] = []
        for problem in self.job.problems:
            rank = problem.rank
            missing = "" if rank is None else f" ({rank_word(self.job, (rank,))} has no record)"
            lines.append(f"{clean(problem.path, 300)}: {clean(problem.reason, 300)}{missing}")
        lines += map(clean, self.analysis.notes)
        more = len(lines) - _LINES
        return [*lines[:_LINES], *([f"and {more} more; --format json has them"] * (more > 0))]

    def body(self) -> dict[str, Any]:
        """What `--format json` prints; keys may be added, none is removed. Text from records is
        unchanged; JSON escapes it.
        """
        job, analysis, live = self.job, self.analysis, self.live
        sure = live is not None and live.sure
        body: dict[str, Any] = {
            "schema": SCHEMA,
            "ranks_expected": len({*job.expected, *job.ranks}),
            "ranks_read": sorted(job.ranks),
            "ranks_silent": list(job.silent),
            "verdicts": [_verdict(job, finding) for finding in analysis.findings],
            "culprits": list(live.suspects if live is not None and sure else analysis.culprits),
            "problems": [to_plain(problem) for problem in job.problems],
            "notes": list(analysis.notes),
        }
        for key, by_rank in (("names", job.names), ("hosts", job.hosts)):
            if by_rank:
                body[key] = {str(rank): by_rank[rank] for rank in sorted(by_rank)}
        return body if live is None else {**body, "monitor": live.body()}

    def page(self) -> str:
        from lightkeeper.monitor.show.templating import render  # noqa: PLC0415 - nobody else needs templates here

        live = None if self.live is None else self.live.incident.verdict.waits
        recorded = records_map(self.job, self.analysis)
        pictures = draw_graph(live), draw_graph(recorded)
        return render("report.html", report=self, pictures=pictures)


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
