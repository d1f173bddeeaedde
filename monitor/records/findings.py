"""The analysis of a job's flight records, in sentences for people who were woken up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from lightkeeper.monitor.model.units import grouped
from lightkeeper.monitor.model.verdict import Confidence
from lightkeeper.monitor.model.wording import listed, plural, seconds
from lightkeeper.monitor.records.job import CollectiveState, Job
from lightkeeper.monitor.records.waits import Graph, Index, StuckCollective


class Fault(StrEnum):
    """Kinds of faults, each with its class in ALGORITHMS.md section 0."""

    NOT_ENTERED = "not_entered"  # H1: finished its own work and did not arrive
    NOT_ENQUEUING = "not_enqueuing"  # H1: its CPU stopped launching; GIL, exception, stop
    SILENT = "silent"  # H1 or D: no record at all, and others wait for it
    GPU_BEHIND = "gpu_behind"  # H3 localised: launched all, its GPU stopped before its peers'
    STUCK_INSIDE = "stuck_inside"  # H3: all are inside the same call; a group, not a rank
    MISMATCH = "mismatch"  # H2: another op, size, dtype, reduce op or root
    SKIPPED = "skipped_collective"  # H2: its sequence has one fewer than its peers'
    EXTRA = "extra_collective"  # H2: its sequence has one more than its peers'
    SILENT_MISMATCH = "silent_mismatch"  # H2: same bytes, another dtype: no hang, wrong numbers
    ORDER_INVERSION = "order_inversion"  # H2: a cycle of collectives, each waiting for the other
    POINT_TO_POINT = "point_to_point"  # H1 or H2: a send or recv whose peer does not answer
    TIMED_OUT = "timed_out"  # H3: ended everywhere by its timeout or an error
    TWO_THREADS = "two_threads"  # H2: two threads of a rank use one group in no order; nobody's
    # Add a kind only where none above fits; each is explained in docs/offline.md.


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: who caused it, who waits for them, and why that is so."""

    kind: Fault
    reason: str
    """One English sentence that a tired person understands."""
    culprits: tuple[int, ...] = ()
    """Global ranks, sorted. Empty where the records cannot tell: nobody is accused."""
    between: tuple[tuple[int, ...], ...] = ()
    """Sides between which the records cannot decide, sorted; empty when they can."""
    victims: tuple[int, ...] = ()
    """Ranks that wait, directly or not, for the culprits, sorted; no culprit of any finding."""
    group: int | None = None
    """Index into `Job.groups`, for the collective where the fault shows."""
    sequence: int | None = None
    op: str | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    """Supporting observations, in order: subject -> observation."""
    scene: tuple[StuckCollective, ...] = field(default=(), compare=False, repr=False)
    """The collectives where the fault shows, the most convincing first."""
    live: bool = field(default=False, compare=False, repr=False)
    """True if ranks still wait in it."""

    @property
    def tied(self) -> frozenset[int]:
        """The ranks of all sides in `between`."""
        return frozenset(rank for side in self.between for rank in side)

    @property
    def confidence(self) -> Confidence:
        """Never certain from records alone; unsure if nobody is accused."""
        return Confidence.LIKELY if self.culprits else Confidence.UNSURE


@dataclass(frozen=True, slots=True)
class RecordedWait:
    """What a rank waits for, in reports."""

    rank: int
    waits_for: tuple[int, ...]
    """Ranks that hold it up, sorted; empty if all are there and nothing moves."""
    group: int
    sequence: int
    op: str
    row: int
    """Row in `Job.columns` of the entry in which it is stuck."""
    since_ns: int = -1
    """When it enqueued that, Unix time of its own clock; -1 if unknown."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The result of analysing a job's flight records."""

    findings: tuple[Finding, ...]
    """Most certain first, then by group and sequence; deterministic."""
    waits: tuple[RecordedWait, ...]
    """By rank."""
    notes: tuple[str, ...] = ()
    """What limits the findings (missing ranks, wrapped buffers, unknown members), for people."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The union over all findings, sorted."""
        return tuple(sorted({rank for finding in self.findings for rank in finding.culprits}))


_LISTED = 8
"""With more ranks than this, only some are named and the rest counted."""


def ranks_listed(job: Job, ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 3 and 5`, `ranks 0, 1, 2 and 13 more`."""
    names = [job.name(rank) for rank in ranks]
    shown = listed(names, 3 if len(names) > _LISTED else _LISTED)
    return f"{plural(names, 'rank', 'ranks')} {shown}"


def collective(index: Index, stuck: StuckCollective) -> str:
    """`all_reduce 12 of DATA_PARALLEL_GROUP (7)`."""
    label = index.job.groups[stuck.group].label
    if stuck.transfer is not None:
        name = index.job.name
        way = f"rank {name(stuck.transfer.source)} to rank {name(stuck.transfer.target)}"
        return f"the transfer from {way} in {label}"
    return f"{index.op(stuck.row)} {stuck.sequence} of {label}"


def spot(index: Index, row: int) -> str:
    """` at train.py:66 (log_step)`, or nothing."""
    text = index.site(row)
    if text is None:
        return ""
    line, _, function = text.partition(" ")
    return f" at {line} ({function})" if function else f" at {line}"


def call(index: Index, row: int) -> str:
    """`all_gather 7 of tp at data.py:12 (load)`."""
    group, sequence = (int(index.job.columns[name][row]) for name in ("group", "seq"))
    return f"{index.op(row)} {sequence} of {index.job.groups[group].label}{spot(index, row)}"


def waiting(index: Index, stuck: StuckCollective, where: str = "") -> str:
    """`ranks 0 and 1 wait in all_reduce 12 of dp at train.py:66 (step) for 31 s`; also which ranks
    left, and how. `where` stands for the collective if it was named before.
    """
    job, columns = index.job, index.job.columns
    rows = [
        row for rank in stuck.inside for row in index.heads[rank] if index.place(row) == stuck.place
    ]
    where = where or f"in {collective(index, stuck)}"
    by_end = grouped((bool(columns["state"][row] == CollectiveState.FAILED), row) for row in rows)
    parts = []
    for failed, chosen in sorted(by_end.items(), reverse=True):
        who = [int(columns["rank"][row]) for row in chosen]
        spans = (index.stayed_ns(row) if failed else _age_ns(index, row) for row in chosen)
        longest_ns = max((ns for ns in spans if ns is not None), default=None)
        did = "waited" if failed else plural(who, "waits", "wait")
        long = "" if longest_ns is None else f" for {seconds(max(longest_ns, 0) / 1e9)}"
        end = " and left by a timeout or an error" if failed else ""
        parts.append(f"{ranks_listed(job, who)} {did} {where}{spot(index, chosen[0])}{long}{end}")
    return "; ".join(parts)


def _age_ns(index: Index, row: int) -> int | None:
    """An entry's age, only where a WorkerServer dated the record: a file may be a copy."""
    dated = index.job.ranks[int(index.job.columns["rank"][row])].alive is not None
    return index.age_ns(row) if dated else None


def last_call(index: Index, ranks: Sequence[int]) -> str:
    """`Its last call was all_gather 7 of tp at data.py:12 (load), 33 s before its dump.`

    Empty if the ranks' last calls differ or are not recorded.
    """
    columns = index.job.columns
    rows = [int(np.searchsorted(columns["rank"], rank, side="right")) - 1 for rank in ranks]
    if any(row < 0 or columns["rank"][row] != rank for row, rank in zip(rows, ranks, strict=True)):
        return ""
    if len({tuple(int(columns[c][row]) for c in ("group", "seq", "payload")) for row in rows}) > 1:
        return ""
    ages_s = [max(ns, 0) / 1e9 for row in rows if (ns := _age_ns(index, row)) is not None]
    whose = plural(ranks, "its", "their")
    dumps = plural(ranks, "its dump", "their dumps")
    when = f", {seconds(max(ages_s))} before {dumps}" if ages_s else ""
    return f" {whose.capitalize()} last call was {call(index, rows[0])}{when}."


def at_scene(
    graph: Graph,
    kind: Fault,
    reason: str,
    scene: tuple[StuckCollective, ...],
    *,
    culprits: Sequence[int] = (),
    sides: Iterable[tuple[int, ...]] = (),
    victims: tuple[int, ...] = (),
    row: int | None = None,
    evidence: Mapping[str, str],
) -> Finding:
    """A finding that shows in an entry, by default that of the scene's first collective.

    `sides` are used only if nobody is accused.
    """
    index, first = graph.index, scene[0]
    columns = index.job.columns
    return Finding(
        kind=kind,
        reason=reason,
        culprits=tuple(culprits),
        between=() if culprits else tuple(sides),
        victims=victims,
        group=first.group if row is None else int(columns["group"][row]),
        sequence=first.sequence if row is None else int(columns["seq"][row]),
        op=index.op(first.row if row is None else row),
        evidence=evidence,
        scene=scene,
        live=True,
    )


def evidence_of(
    graph: Graph, ranks: Iterable[int], scene: tuple[StuckCollective, ...]
) -> dict[str, str]:
    """Where each rank is in a scene's collectives, and how far `ranks` got in the first."""
    index, job = graph.index, graph.index.job
    evidence: dict[str, str] = {}
    for stuck in scene[:4]:
        whereabouts = {
            "inside": stuck.inside,
            "not come": stuck.absent,
            "stuck before it": stuck.held,
            "without a record": stuck.silent,
        }
        evidence[collective(index, stuck)] = "; ".join(
            f"{where}: {ranks_listed(job, there)}" for where, there in whereabouts.items() if there
        )
    if not scene:
        return evidence
    first = scene[0]
    if (called_at := index.site(first.row)) is not None:
        evidence["called at"] = called_at
    if first.transfer is None:
        at, label = index.groups[first.group], job.groups[first.group].label
        for rank in list(ranks)[:4]:
            last = int(at.enqueued[at.members == rank].max(initial=0))
            evidence[f"rank {job.name(rank)}"] = f"enqueued up to {last} in {label}"
    return evidence


def victims_of(graph: Graph, nodes: Iterable[int], culprits: Iterable[int]) -> tuple[int, ...]:
    """Ranks that wait, directly or not, for these nodes of the graph."""
    own = set(culprits)
    return tuple(rank for rank in graph.reaching(nodes) if rank not in own)
