"""What the analysis says of a job's flight records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """Kinds of faults; the class of ALGORITHMS.md section 0 beside each."""

    NOT_ENTERED = "not_entered"  # H1: has work of its own behind it and did not come
    NOT_ENQUEUING = "not_enqueuing"  # H1: its CPU stopped launching; GIL, exception, stop
    SILENT = "silent"  # H1 or D: no record at all, and others wait for it
    GPU_BEHIND = "gpu_behind"  # H3 localised: launched all, its GPU stopped before its peers'
    STUCK_INSIDE = "stuck_inside"  # H3: all are inside the same thing; a group, not a rank
    MISMATCH = "mismatch"  # H2: another op, size, dtype, reduce op or root
    SKIPPED = "skipped_collective"  # H2: its sequence has one fewer than its peers'
    EXTRA = "extra_collective"  # H2: its sequence has one more than its peers'
    SILENT_MISMATCH = "silent_mismatch"  # H2: same bytes, another dtype: no hang, wrong numbers
    ORDER_INVERSION = "order_inversion"  # H2: a cycle of collectives, each waiting for the other
    POINT_TO_POINT = "point_to_point"  # H1 or H2: a send or recv whose peer does not answer
    TIMED_OUT = "timed_out"  # H3: ended everywhere by its timeout or an error
    # Add one only where no kind above says it; each is explained in docs/analyze.md.


class Confidence(StrEnum):
    """How much an accusation may be trusted to act on."""

    CERTAIN = "certain"
    """Seen directly (a dead process), or the only explanation of what every rank shows."""
    LIKELY = "likely"
    """Supported by a strict majority or by the rank's own history, contradicted by nothing."""
    UNSURE = "unsure"
    """Culprits tie or evidence is missing; never evicts."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: who caused it, who waits for them, and why that is so."""

    kind: Fault
    confidence: Confidence
    reason: str
    """One English sentence that a tired person understands."""
    culprits: tuple[int, ...] = ()
    """Global ranks, sorted. Empty when `confidence` is UNSURE: nobody is accused."""
    between: tuple[tuple[int, ...], ...] = ()
    """Sides between which it cannot be told, sorted; empty when it can."""
    victims: tuple[int, ...] = ()
    """Ranks that wait, directly or not, for the culprits, sorted; no finding's culprit is one."""
    group: int | None = None
    """Index into `Job.groups` of the collective at which it shows."""
    sequence: int | None = None
    op: str | None = None
    evidence: Mapping[str, str] = field(default_factory=dict)
    """What it rests on, in order: what -> observation."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One edge of the wait-for graph, of a rank: for the reports."""

    rank: int
    waits_for: tuple[int, ...]
    """Ranks that hold it up, sorted; empty: everybody is there and nothing moves."""
    group: int
    sequence: int
    op: str
    row: int
    """Of the entry in which it is stuck, in `Job.columns`."""
    since_ns: int = -1
    """When it enqueued that, Unix time of its own clock; -1 unknown."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that follows from a job's flight records."""

    findings: tuple[Finding, ...]
    """Most certain first, then by group and sequence; deterministic."""
    waits: tuple[Wait, ...]
    """By rank."""
    notes: tuple[str, ...] = ()
    """What limits the findings (missing ranks, wrapped buffers, unknown members), for people."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The union over all findings, sorted."""
        return tuple(sorted({rank for one in self.findings for rank in one.culprits}))
