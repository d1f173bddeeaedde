"""Findings of flight records in words: who did what, where, and how much was read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from monitor.model.verdict import Confidence
from monitor.records.findings import Fault, Finding
from monitor.records.job import Group, Job
from monitor.show.wording import clean, counted

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
    Fault.TIMED_OUT: "ended by its timeout or an error everywhere",
}
"""A kind as the predicate of its culprits."""

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
"""A kind where nobody is accused."""

MEANINGS: Final[Mapping[Confidence, str]] = {
    Confidence.CERTAIN: "seen directly, or the only explanation of what every rank shows",
    Confidence.LIKELY: "a strict majority or the rank's own history says so, nothing contradicts",
    Confidence.UNSURE: "the evidence ties or is incomplete: nobody is accused",
}


def rank_word(job: Job, ranks: Iterable[int], at_most: int = 24) -> str:
    """`rank 9`, `ranks 9 and 14`, `ranks 0-7, 9`; by the names that people use, if any."""
    wanted = set(ranks)
    parts = rank_parts(job, wanted)
    text = " and ".join(parts) if len(parts) == 2 else _joined(parts, at_most)
    return f"{'rank' if len(wanted) == 1 else 'ranks'} {text}"


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
    """A process group for people; torch's bare numbers are called groups."""
    label = clean(group.label, 120)
    return f"group {label}" if label[:1].isdigit() or not label else label


def where(job: Job, finding: Finding) -> str:
    """The collective at which a fault shows: `all_reduce 12 of dp (3)`."""
    what = " ".join(
        [clean(finding.op or "collective", 80)]
        + ([] if finding.sequence is None else [str(finding.sequence)])
    )
    if finding.group is None:
        return what if finding.op or finding.sequence is not None else "-"
    return f"{what} of {group_label(job.groups[finding.group])}"


def title(job: Job, finding: Finding) -> tuple[str, str]:
    """Who did it, and what; or what happened, and between whom it cannot be told."""
    if finding.culprits:
        return rank_word(job, finding.culprits), TITLES[finding.kind]
    if finding.between:
        sides = [rank_word(job, side) for side in finding.between]
        last = f"{', '.join(sides[:-1])} and {sides[-1]}" if len(sides) > 1 else sides[0]
        return UNSOLVED[finding.kind], f"cannot tell between {last}"
    return UNSOLVED[finding.kind], "no rank to accuse"


def with_hosts(job: Job, ranks: Iterable[int]) -> str:
    """`9 on node17, 14 on node18`; empty where no host is known."""
    by_host: dict[str, list[int]] = {}
    for rank in sorted(set(ranks)):
        if rank in job.hosts:
            by_host.setdefault(job.hosts[rank], []).append(rank)
    known = [f"{rank_list(job, mine)} on {clean(host, 80)}" for host, mine in by_host.items()]
    return _joined(known, 8)


def ended(job: Job, ranks: Iterable[int]) -> str:
    """Those of these ranks whose process was seen to be gone; empty where nobody looked."""
    gone = [rank for rank in ranks if rank in job.ranks and job.ranks[rank].alive is False]
    return f"{rank_word(job, gone)} had ended" if gone else ""


def headline(job: Job, findings: tuple[Finding, ...], culprits: tuple[int, ...]) -> str:
    """The whole answer in one line."""
    if not findings:
        if job.silent:
            all_of = counted(len({*job.expected, *job.ranks}), "rank")
            return f"no fault found in the records of {len(job.ranks):,} of {all_of}"
        return "no fault found"
    faults = counted(len(findings), "fault")
    unsure = sum(not one.culprits for one in findings)
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
