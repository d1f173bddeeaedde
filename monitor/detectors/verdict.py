"""What a detector says: who did what, since when, on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from monitor.analysis.finding import Confidence
from monitor.names import GroupName, RankName


class Kind(StrEnum):
    """Fault kinds; the class in ALGORITHMS.md section 0 beside each."""

    DEAD = "dead"  # D
    NOT_ENTERED = "not_entered"  # H1: a hang outside any collective
    MISMATCH = "mismatch"  # H2
    DEADLOCK = "deadlock"  # H2 by order, H3: all wait inside of collectives, nobody is absent
    STRAGGLER = "straggler"  # S1
    STATE_CORRUPT = "state_corrupt"  # X: NaN or Inf, unequal replicas, a loss that jumps


__all__ = ["Confidence", "Kind", "Verdict"]

SLOWS_ONLY: frozenset[Kind] = frozenset({Kind.STRAGGLER, Kind.STATE_CORRUPT})
"""Kinds that stop nobody: beside them the fleet still has a pace to compare."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One detector's finding in one tick."""

    kind: Kind
    culprits: tuple[RankName, ...]
    """Sorted. Those between whom it cannot be told, when `confidence` is UNSURE."""
    groups: tuple[GroupName, ...]
    """Replica groups of the culprits, sorted."""
    reason: str
    """One English sentence that a tired person understands."""
    confidence: Confidence
    since_s: float
    """Unix time at which the fault began, as nearly as it can be known."""
    victims: tuple[RankName, ...] = ()
    """Ranks that wait for the culprits."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """What it rests on: source -> observation."""
    lost_s: float = 0.0
    """Fleet time lost to it so far, for faults that only slow (straggler)."""
    spare: str = ""
    """Why an eviction would not mend it, or is not called for (yet); empty: nothing against it."""
    signature: str = ""
    """Same program place, same signature: `mismatch:intra:all_reduce/all_gather`."""

    @property
    def stops(self) -> bool:
        """Whether anybody stands still because of it; a mismatch that is spared hangs nothing."""
        return self.kind not in SLOWS_ONLY and not (self.kind is Kind.MISMATCH and self.spare)
