"""Where ranks are by their flight records, and the findings in words. Pure.

A job has thousands of ranks and a page has room for a few dozen rows. Ranks that wait in the
same collective for the same others form a crowd. If that leaves too many crowds, ranks that wait
in similar collectives for ranks of similar roles form one: eight tensor-parallel groups that do the
same are shown once, but ranks that wait for the culprit stay apart from those behind them.

For one group: what each member passed to one of its collectives, the detail behind a finding
(`lightkeeper analyze --group NAME`, and the page's sections by group).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.grouping import grouped
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import counted
from lightkeeper.monitor.records.findings import Analysis, Fault, Finding, Wait
from lightkeeper.monitor.records.job import NONE, CollectiveState, Group, GroupStatus, Job
from lightkeeper.monitor.show.wording import clean

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
class Crowd:
    """Ranks in the same situation."""

    ranks: tuple[int, ...]
    role: Role
    waits: tuple[Wait, ...]
    """Of its first rank; empty when that rank waits for nothing."""
    waits_for: tuple[int, ...]
    """Ranks that its members wait for, sorted."""
    groups: int
    """Process groups in which its members wait."""
    unfinished: int | None
    """Unfinished entries of its first rank; None without a record."""


def rows_of(job: Job, rank: int) -> slice:
    """A rank's rows in `Job.columns`."""
    ranks = job.columns["rank"]
    ends = np.array([rank, rank + 1], ranks.dtype)  # another dtype would convert the whole column
    first, last = np.searchsorted(ranks, ends)
    return slice(int(first), int(last))


def unfinished(job: Job, rank: int | None = None) -> NDArray[np.bool_]:
    """Mask of the unfinished entries, of one rank or of all."""
    states = job.columns["state"]
    return np.isin(states if rank is None else states[rows_of(job, rank)], UNFINISHED)


def roles(job: Job, analysis: Analysis) -> dict[int, Role]:
    """Every rank's part, sorted by rank."""
    by_rank: dict[int, Role] = dict.fromkeys({*job.expected, *job.ranks}, Role.FREE)
    by_rank.update((wait.rank, Role.WAITING) for wait in analysis.waits)
    for finding in analysis.findings:
        by_rank.update(dict.fromkeys(finding.victims, Role.VICTIM))
    by_rank.update(dict.fromkeys(job.silent, Role.SILENT))
    for finding in analysis.findings:
        by_rank.update((rank, Role.SUSPECT) for side in finding.between for rank in side)
    by_rank.update(dict.fromkeys(analysis.culprits, Role.CULPRIT))
    return dict(sorted(by_rank.items()))


def crowds(job: Job, analysis: Analysis, at_most: int) -> tuple[Crowd, ...]:
    """All ranks in crowds, by role (culprits first), then by rank.

    Grouped as finely as `at_most` allows: by the exact collective and the ranks waited for; by
    the kind of collective and the roles of those ranks; by role alone.
    """
    role, marks = roles(job, analysis), _marks(analysis)
    waits = defaultdict(list, grouped((wait.rank, wait) for wait in analysis.waits))

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
    folded = (_crowd(job, tuple(members), role, waits) for members in by_key.values())
    return tuple(sorted(folded, key=lambda crowd: (ORDER.index(crowd.role), crowd.ranks)))


def _whom(job: Job, wait: Wait) -> tuple[int, ...] | None:
    """The ranks that a rank waits for; None: all others of its group."""
    members = job.groups[wait.group].members
    everybody = len(wait.waits_for) == len(members) - 1 > 1
    return None if everybody and wait.rank not in wait.waits_for else wait.waits_for


def _marks(analysis: Analysis) -> Mapping[int, tuple[int, ...]]:
    """Rank -> findings against it: culprits of different faults stay apart."""
    marks: dict[int, tuple[int, ...]] = defaultdict(tuple)
    for index, finding in enumerate(analysis.findings):
        for rank in {*finding.culprits, *(rank for side in finding.between for rank in side)}:
            marks[rank] = (*marks[rank], index)
    return marks


def _crowd(
    job: Job,
    members: tuple[int, ...],
    role: Mapping[int, Role],
    waits: Mapping[int, Sequence[Wait]],
) -> Crowd:
    every = [wait for rank in members for wait in waits[rank]]
    return Crowd(
        members,
        role[members[0]],
        tuple(waits[members[0]]),
        tuple(sorted({to for wait in every for to in wait.waits_for})),
        len({wait.group for wait in every}),
        int(unfinished(job, members[0]).sum()) if members[0] in job.ranks else None,
    )


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of a table; ranks in one situation share it."""

    role: str
    """`Role`, or empty."""
    cells: tuple[str, ...]


def stands(job: Job, analysis: Analysis, group: int) -> list[ReportRow]:
    """How far each member of a group is (`STAND_HEADS`), culprits first.

    Counts collectives, or sends and recvs where the group has nothing else. Where it has both,
    pg_status mixes their numbers (ProcessGroupNCCL counts them apart and keeps the last of
    either), so only the entries can be trusted.
    """
    columns = job.columns
    of_group = columns["group"] == group
    both = bool((of_group & columns["p2p"]).any()), bool((of_group & ~columns["p2p"]).any())
    if both[1]:
        of_group &= ~columns["p2p"]
    role_of = roles(job, analysis)
    by_key: dict[tuple[Role, *tuple[int | None, ...]], list[int]] = defaultdict(list)
    for rank in members(job, group):
        rows = rows_of(job, rank)
        at = np.flatnonzero(of_group[rows]) + rows.start
        seqs, states = columns["seq"][at], columns["state"][at]
        waiting = seqs[np.isin(states, UNFINISHED)]
        info = job.ranks.get(rank)
        reported = {} if info is None or all(both) else info.status
        status = reported.get(group, GroupStatus())
        key = (
            role_of.get(rank, Role.FREE),
            _most(status.enqueued, seqs),
            _most(status.completed, seqs[states == CollectiveState.COMPLETED]),
            int(waiting.min()) if len(waiting) else None,
            len(waiting),
        )
        by_key[key].append(rank)
    ordered = sorted(by_key.items(), key=lambda item: (ORDER.index(item[0][0]), item[1]))
    return [
        ReportRow(
            role, (rank_list(job, ranks), role, *("-" if n is None else str(n) for n in numbers))
        )
        for (role, *numbers), ranks in ordered
    ]


def members(job: Job, group: int) -> tuple[int, ...]:
    """Global ranks of a group, sorted; if not declared, those seen in it."""
    declared = job.groups[group].members
    if declared:
        return tuple(sorted(declared))
    seen = job.columns["rank"][job.columns["group"] == group]
    return tuple(int(rank) for rank in np.unique(seen))


def _most(reported: int, seen: NDArray[np.int64]) -> int | None:
    most = max(reported, int(seen.max()) if len(seen) else NONE)
    return None if most < 0 else most


def offers(job: Job, group: int, sequence: int, *, p2p: bool = False) -> list[ReportRow]:
    """What each member passed to one collective (`CALL_HEADS`), and which have no such entry.

    For a point-to-point operation only the two sides.
    """
    columns = job.columns
    at = np.flatnonzero(
        (columns["group"] == group) & (columns["seq"] == sequence) & (columns["p2p"] == p2p)
    )
    if p2p:
        at = _of_stuck_pairs(job, at)
    by_key: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    seen = set()
    for row in at:
        rank = int(columns["rank"][row])
        seen.add(rank)
        by_key[what(job, row), state_word(job, row), site(job, row)].append(rank)
    for rank in () if p2p else members(job, group):
        if rank not in seen:
            by_key["-", _why_absent(job, rank, group, sequence), ""].append(rank)
    return [
        ReportRow("", (rank_list(job, ranks), payload, state, called_at or "-"))
        for (payload, state, called_at), ranks in sorted(by_key.items(), key=lambda item: item[1])
    ]


def _of_stuck_pairs(job: Job, rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Rows of the pairs with a stuck side; all rows if no side is stuck."""
    ranks, peers = job.columns["rank"][rows], job.columns["peer"][rows]
    pairs = list(zip(np.minimum(ranks, peers), np.maximum(ranks, peers), strict=True))
    stuck = np.isin(job.columns["state"][rows], UNFINISHED)
    open_pairs = {pair for pair, is_stuck in zip(pairs, stuck, strict=True) if is_stuck}
    return rows[[pair in open_pairs for pair in pairs]] if open_pairs else rows


def _why_absent(job: Job, rank: int, group: int, sequence: int) -> str:
    info = job.ranks.get(rank)
    if info is None:
        return "no record of this rank"
    mixed = (job.columns["group"] == group) & job.columns["p2p"]
    status = GroupStatus() if mixed.any() else info.status.get(group, GroupStatus())
    if status.completed >= sequence:
        return "completed"
    if status.enqueued >= sequence:
        return "enqueued, entry not in the record"
    rows = rows_of(job, rank)
    ours = (job.columns["group"][rows] == group) & ~job.columns["p2p"][rows]
    seen = job.columns["seq"][rows][ours]
    if status.enqueued >= 0 or (len(seen) and seen.min() < sequence):
        return "not enqueued"
    return "not in the record" if info.dropped or info.only_active else "not enqueued"


def what(job: Job, row: int | np.int64) -> str:
    """An entry's payload: `all_reduce float32[1000, 2]`, `send -> 8 bfloat16[4]`."""
    payload = job.payloads[job.columns["payload"][row]]
    words = [clean(payload.op, 80)]
    peer = int(job.columns["peer"][row])
    if peer != NONE:
        towards = "from" if payload.op.endswith("recv") else "to"
        words.append(f"{towards} {clean(job.name(peer), 80)}")
    if payload.root is not None:
        words.append(f"root {clean(job.name(payload.root), 80)}")
    if payload.reduce_op:
        words.append(clean(payload.reduce_op, 40))
    inputs = _tensors(payload.dtypes_in, payload.sizes_in)
    outputs = _tensors(payload.dtypes_out, payload.sizes_out)
    if inputs or outputs:
        words.append(
            inputs if inputs == outputs or not outputs else f"{inputs or 'nothing'} -> {outputs}"
        )
    return " ".join(words)


def _tensors(dtypes: Iterable[str], sizes: tuple[tuple[int, ...], ...], at_most: int = 3) -> str:
    kinds = [clean(dtype, 40) for dtype in dtypes]
    shown = [
        (kinds[index] if index < len(kinds) else "") + str(list(size))
        for index, size in enumerate(sizes[:at_most])
    ]
    if len(sizes) > at_most:
        shown.append(f"and {len(sizes) - at_most} more")
    return ", ".join(shown)


def site(job: Job, row: int | np.int64) -> str:
    index = int(job.columns["site"][row])
    return "" if index == NONE else clean(job.sites[index], 200)


def state_word(job: Job, row: int | np.int64) -> str:
    state = CollectiveState(int(job.columns["state"][row]))
    return "unfinished" if state is CollectiveState.UNKNOWN else state.name.lower()


def named(job: Job, name: str) -> tuple[int, ...]:
    """Indices of the groups with this name, else this label, else this description."""
    for key in ("name", "label", "desc"):
        indices = tuple(i for i, group in enumerate(job.groups) if getattr(group, key) == name)
        if indices:
            return indices
    return ()


def concerned(analysis: Analysis) -> tuple[int, ...]:
    """Groups of the findings, in their order, then those in which ranks wait."""
    of_findings = [finding.group for finding in analysis.findings if finding.group is not None]
    crowded: dict[int, int] = defaultdict(int)
    for wait in analysis.waits:
        crowded[wait.group] += 1
    waiting = sorted(crowded, key=lambda group: (-crowded[group], group))
    return tuple(dict.fromkeys((*of_findings, *waiting)))


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

UNSOLVED: Final[Mapping[Fault, str]] = {
    **TITLES,
    Fault.NOT_ENTERED: "somebody did not come to a collective",
    Fault.NOT_ENQUEUING: "somebody stopped launching collectives",
    Fault.SILENT: "ranks without a record, and others wait for them",
    Fault.GPU_BEHIND: "a GPU stopped before its peers'",
    Fault.MISMATCH: "members of a group call different things",
    Fault.SKIPPED: "somebody left a collective out",
    Fault.EXTRA: "somebody called one collective too many",
    Fault.SILENT_MISMATCH: "different dtypes of the same size: no hang, wrong numbers",
}
"""A kind, if nobody is accused."""

MEANINGS: Final[Mapping[Confidence, str]] = {
    Confidence.CERTAIN: "seen directly, or the only explanation of what every rank shows",
    Confidence.LIKELY: "a strict majority or the rank's own history says so, nothing contradicts",
    Confidence.UNSURE: "the evidence ties or is incomplete: nobody is accused",
}


def rank_word(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`rank 9`, `ranks 9 and 14`, `ranks 0-7, 9`; by name if ranks have names."""
    distinct = set(ranks)
    parts = rank_parts(job, distinct)
    text = " and ".join(parts) if len(parts) == 2 else _joined(parts, at_most)
    return f"{'rank' if len(distinct) == 1 else 'ranks'} {text}"


def rank_list(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`0-7, 9`; a dash for nobody."""
    return _joined(rank_parts(job, ranks), at_most) or "-"


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


def _joined(parts: list[str], at_most: int) -> str:
    if len(parts) <= at_most:
        return ", ".join(parts)
    return f"{', '.join(parts[: at_most - 1])} and {len(parts) - at_most + 1:,} more"


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
    """Who did what; or what happened, and between which sides it is undecided."""
    if finding.culprits:
        return rank_word(job, finding.culprits), TITLES[finding.kind]
    if finding.between:
        sides = [rank_word(job, side) for side in finding.between]
        last = f"{', '.join(sides[:-1])} and {sides[-1]}" if len(sides) > 1 else sides[0]
        return UNSOLVED[finding.kind], f"cannot tell between {last}"
    return UNSOLVED[finding.kind], "no rank to accuse"


def with_hosts(job: Job, ranks: Iterable[int]) -> str:
    """`9 on node17, 14 on node18`; empty where no host is known."""
    by_host = grouped((job.hosts[rank], rank) for rank in sorted(set(ranks)) if rank in job.hosts)
    places = [f"{rank_list(job, ranks)} on {clean(host, 80)}" for host, ranks in by_host.items()]
    return _joined(places, 8)


def ended(job: Job, ranks: Iterable[int]) -> str:
    """Those of these ranks whose process was seen to be gone; empty if not checked."""
    dead = [rank for rank in ranks if rank in job.ranks and job.ranks[rank].alive is False]
    return f"{rank_word(job, dead)} had ended" if dead else ""


def headline(job: Job, findings: tuple[Finding, ...], culprits: tuple[int, ...]) -> str:
    """The whole answer in one line."""
    if not findings:
        if job.silent:
            all_of = counted(len({*job.expected, *job.ranks}), "rank")
            return f"no fault found in the records of {len(job.ranks):,} of {all_of}"
        return "no fault found"
    faults = counted(len(findings), "fault")
    unsure = sum(not finding.culprits for finding in findings)
    if not culprits:
        which = "it" if len(findings) == 1 else "them"
        return f"{faults} found; the records do not tell who caused {which}"
    more = f"; the records do not tell who caused {unsure} of them" if unsure else ""
    return f"{faults} found, caused by {rank_word(job, culprits)}{more}"


def read_line(job: Job) -> str:
    """How much of the job was read: `records of 15 of 16 ranks, 1 silent (3)`."""
    all_of = max(len(job.expected), len(job.ranks))
    entries = "1 entry" if len(job) == 1 else f"{len(job):,} entries"
    text = f"records of {len(job.ranks):,} of {counted(all_of, 'rank')}, {entries}"
    return f"{text}; no record of {rank_word(job, job.silent)}" if job.silent else text
