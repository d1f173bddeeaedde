"""Where ranks are by their flight records, and the findings in words. Pure.

A job has thousands of ranks and a page has room for a few dozen rows. Ranks that wait in the
same collective for the same others form a crowd. If that leaves too many crowds, ranks that wait
in similar collectives for ranks of similar roles form one: eight tensor-parallel groups that do the
same are shown once, but ranks that wait for the culprit stay apart from those behind them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import counted, listed, plural
from lightkeeper.monitor.records.findings import Analysis, Fault, Finding, Wait
from lightkeeper.monitor.records.job import NONE, CollectiveState, Group, Job
from lightkeeper.monitor.show.wording import clean, moment

UNFINISHED = (CollectiveState.UNKNOWN, CollectiveState.SCHEDULED, CollectiveState.STARTED)


class Role(StrEnum):
    """A rank's part in the fault; the first that fits, in this order."""

    CULPRIT = "culprit"
    SUSPECT = "suspect"  # on one of the sides of an undecided fault
    SILENT = "silent"  # no record
    VICTIM = "victim"
    WAITING = "waiting"  # in a collective, and no finding explains it
    FREE = "free"  # nothing unfinished


ORDER = tuple(Role)


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


def rows_of(job: Job, rank: int) -> slice:
    """A rank's rows in `Job.columns`."""
    ranks = job.columns["rank"]
    ends = np.array([rank, rank + 1], ranks.dtype)  # another dtype would convert the whole column
    first, last = np.searchsorted(ranks, ends)
    return slice(int(first), int(last))


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


def crowds(job: Job, analysis: Analysis, at_most: int) -> tuple[tuple[int, ...], ...]:
    """All ranks in crowds, by role (culprits first), then by rank.

    Grouped as finely as `at_most` allows: by the exact collective and the ranks waited for; by
    the kind of collective and the roles of those ranks; by role alone.
    """
    role, marks, waits = roles(job, analysis), _marks(analysis), _waits(analysis)

    def exact(rank: int) -> Hashable:
        inside = ((w.group, w.sequence, w.op, _whom(job, w)) for w in waits[rank])
        return role[rank], marks[rank], tuple(inside)

    def alike(rank: int) -> Hashable:
        groups = [job.groups[wait.group] for wait in waits[rank]]
        inside = (
            (group.desc or len(group.members), w.op, frozenset(role.get(to) for to in w.waits_for))
            for group, w in zip(groups, waits[rank], strict=True)
        )
        return role[rank], marks[rank], tuple(inside)

    def by_role(rank: int) -> Hashable:
        return role[rank], marks[rank][:1]

    by_key: dict[Hashable, list[int]] = {}
    for key in (exact, alike, by_role):
        by_key = grouped((key(rank), rank) for rank in role)
        if len(by_key) <= at_most:
            break
    return tuple(
        tuple(ranks)
        for ranks in sorted(by_key.values(), key=lambda ranks: (ORDER.index(role[ranks[0]]), ranks))
    )


def _waits(analysis: Analysis) -> defaultdict[int, list[Wait]]:
    """Rank -> the collectives in which it waits."""
    return defaultdict(list, grouped((wait.rank, wait) for wait in analysis.waits))


def _whom(job: Job, wait: Wait) -> tuple[int, ...] | None:
    """The ranks that a rank waits for; None: all others of its group."""
    members = job.groups[wait.group].members
    everybody = len(wait.waits_for) == len(members) - 1 > 1
    return None if everybody and wait.rank not in wait.waits_for else wait.waits_for


def _marks(analysis: Analysis) -> Mapping[int, tuple[int, ...]]:
    """Rank -> findings against it: culprits of different faults stay apart."""
    marks: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, finding in enumerate(analysis.findings):
        for rank in {*finding.culprits, *finding.tied}:
            marks[rank] = (*marks[rank], index)
    return marks


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
    job: Job, ranks: tuple[int, ...], waits: Mapping[int, Sequence[Wait]]
) -> Iterator[tuple[str, ...]]:
    """The collectives in which the first rank of a crowd waits, since when, for whom, and where."""
    first, every = waits[ranks[0]], [wait for rank in ranks for wait in waits[rank]]
    if not first:
        states = job.columns["state"][rows_of(job, ranks[0])]
        unfinished = np.count_nonzero(np.isin(states, UNFINISHED)) or "nothing"
        yield f"{unfinished} unfinished" if ranks[0] in job.ranks else "no record", "-", "-", "-"
    groups = len({wait.group for wait in every})
    awaited = {rank for wait in every for rank in wait.waits_for}
    whom = "each other" if awaited else "nobody: all are there"
    if awaited - set(ranks):
        whom = rank_list(job, awaited - set(ranks))
    for wait in first:
        op, group = clean(wait.op, 80), job.groups[wait.group]
        inside = f"{op} {wait.sequence} of {group_label(group)}"
        if groups > 1:
            inside = f"{op} of {clean(group.desc or group.name, 80)} and its like ({groups} groups)"
        yield inside, moment(wait.since_ns), whom, site(job, wait.row) or "-"


def site(job: Job, row: int | np.int64) -> str:
    index = int(job.columns["site"][row])
    return "" if index == NONE else clean(job.sites[index], 200)


# -- Findings from flight records in words: who did what, where, and how much was read. Pure -------

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


def rank_word(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`rank 9`, `ranks 9 and 14`, `ranks 0-7 and 9`; by name if ranks have names."""
    distinct = set(ranks)
    return f"{plural(distinct, 'rank', 'ranks')} {listed(rank_parts(job, distinct), at_most)}"


def rank_list(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`0-7, 9`; a dash for nobody."""
    parts = rank_parts(job, ranks)
    return listed(parts, at_most) if len(parts) > at_most else ", ".join(parts) or "-"


def rank_parts(job: Job, ranks: Iterable[int]) -> list[str]:
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
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return [f"{prefix}{a}" if a == b else f"{prefix}{a}-{b}" for a, b in runs]


def group_label(group: Group) -> str:
    """A process group's name; a bare number from torch gets `group`."""
    label = clean(group.label, 120)
    return f"group {label}" if label[:1].isdigit() or not label else label


def where(job: Job, finding: Finding) -> str:
    """The collective where a fault shows: `all_reduce 12 of dp (3)`."""
    what = " ".join(
        [clean(finding.op or "collective", 80)]
        + ([] if finding.sequence is None else [str(finding.sequence)])
    )
    if finding.group is None:
        return what if finding.op or finding.sequence is not None else "-"
    return f"{what} of {group_label(job.groups[finding.group])}"


def title(job: Job, finding: Finding) -> tuple[str, str]:
    """Who it was, or between which sides that is undecided; and what happened."""
    who = "no rank to accuse"
    if finding.culprits:
        who = rank_word(job, finding.culprits)
    elif finding.between:
        sides = [rank_word(job, side) for side in finding.between]
        who = f"cannot tell between {listed(sides, len(sides))}"
    return who, TITLES[finding.kind]


def with_hosts(job: Job, ranks: Iterable[int]) -> str:
    """`9 on node17, 14 on node18`; empty where no host is known."""
    by_host = grouped((job.hosts[rank], rank) for rank in sorted(set(ranks)) if rank in job.hosts)
    places = [f"{rank_list(job, ranks)} on {clean(host, 80)}" for host, ranks in by_host.items()]
    return listed(places, 8)


def ended(job: Job, ranks: Iterable[int]) -> str:
    """Those of these ranks whose process was seen to be gone; empty if not checked."""
    dead = [rank for rank in ranks if rank in job.ranks and job.ranks[rank].alive is False]
    return f"{rank_word(job, dead)} had ended" if dead else ""


def answer(job: Job, analysis: Analysis) -> str:
    """The whole answer in one line."""
    culprits = rank_word(job, analysis.culprits) if analysis.culprits else ""
    unsure = sum(not finding.culprits for finding in analysis.findings)
    if analysis.findings or not job.silent:
        return headline("fault", len(analysis.findings), unsure, culprits, "the records do")
    all_of = counted(len({*job.expected, *job.ranks}), "rank")
    return f"no fault found in the records of {len(job.ranks):,} of {all_of}"


def headline(noun: str, faults: int, unsure: int, culprits: str, source: str) -> str:
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


def read_line(job: Job) -> str:
    """How much of the job was read: `records of 15 of 16 ranks, 1 silent (3)`."""
    all_of = max(len(job.expected), len(job.ranks))
    entries = "1 entry" if len(job) == 1 else f"{len(job):,} entries"
    text = f"records of {len(job.ranks):,} of {counted(all_of, 'rank')}, {entries}"
    return f"{text}; no record of {rank_word(job, job.silent)}" if job.silent else text
