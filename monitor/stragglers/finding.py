"""What is said of a table: verdicts, and every rank's pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.analysis.finding import Confidence
from monitor.stragglers.persist import Stretch

__all__ = ["Confidence", "Kind", "Pace", "Report", "Verdict"]


class Kind(StrEnum):
    """The classes of ALGORITHMS.md section 0 in words."""

    STRAGGLER = "straggler"  # S1: works longer than its peers, who wait for it
    SLOW_TRANSFER = "slow_transfer"  # S2: all come in time, the transfer takes long
    MIXED = "mixed"  # S3: slow at its own work and in its transfers


CLASSES: Mapping[Kind, str] = {
    Kind.STRAGGLER: "S1",
    Kind.SLOW_TRANSFER: "S2",
    Kind.MIXED: "S3",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One fault of the job; ranks are codes of the table."""

    kind: Kind
    confidence: Confidence
    reason: str
    """One English sentence that a tired person understands."""
    stretch: Stretch
    """The steps in which it shows."""
    culprits: tuple[int, ...] = ()
    between: tuple[tuple[int, ...], ...] = ()
    """Sides between which it cannot be told."""
    stage: int | None = None
    replica: int | None = None
    """Data-parallel rank."""
    ratio: float = 1.0
    by_op: Mapping[str, float] = field(default_factory=dict)
    lost_s: float = 0.0
    """Own seconds beyond its peers' between first and last step."""
    evidence: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pace:
    """One rank over the whole table."""

    rank: int
    stage: int
    replica: int | None
    ratio: float
    """Median over the steps of own work against the median of the peers; NaN without peers."""
    slow: int
    seen: int
    by_op: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Report:
    """All that follows from a table."""

    verdicts: tuple[Verdict, ...]
    paces: tuple[Pace, ...]
    """Slowest first."""
    step_s: float
    """Median length of a step."""
    notes: tuple[str, ...] = ()

    @property
    def culprits(self) -> tuple[int, ...]:
        """Codes of all ranks that are named, sorted."""
        return tuple(sorted({rank for one in self.verdicts for rank in one.culprits}))
