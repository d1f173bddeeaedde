"""What earlier evictions taught: where the same fault was before, and what an eviction costs.

The cost is fleet seconds, as a straggler's `lost_s` is: seconds in which all groups stood still
(from asking to the survivors' next commit), and those in which one of them was missing (until it
committed again) by its share of the fleet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from monitor.config import KeeperConfig
from monitor.detectors.verdict import Kind
from monitor.incident import Incident
from monitor.names import GroupName, Host, IncidentId

COSTS_KEPT: Final = 16
"""Evictions from which the cost is learned: the latest. More answers later to a change of the job,
fewer to one odd restart."""
COST_BOUNDS: Final = (0.2, 20.0)
"""Times the configured cost, between which a learned one is believed: a launcher that waits for a
person is no cost of evicting."""
_TOLD: Final = re.compile(r"\bmin_replicas\s+(\d{1,6})\b")


@dataclass(frozen=True, slots=True)
class Lesson:
    """One eviction that ended, or that observe mode held back."""

    incident_id: IncidentId
    signature: str
    groups: tuple[GroupName, ...]
    hosts: tuple[Host, ...]
    """Of the culprits; empty when that was not known."""
    ended_s: float
    stall_s: float | None = None
    """From asking to the first commit of another group; None when none was seen."""
    away_s: float | None = None
    """From asking to the group's own first commit after it; None when none was seen."""
    observed: bool = False
    """Whether observe mode held it back: it counts where another would be held back."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What an eviction costs, in fleet seconds."""

    seconds: float
    evictions: int = 0
    """From which it was learned; 0: as configured."""


def lesson_of(incident: Incident, *, observed: bool = False) -> Lesson | None:
    """What an incident taught that is over; None when nobody was evicted for it, nor did it die.

    `observed`: somebody would have been, were it not for observe mode.
    """
    marks = incident.milestones
    told = marks.evict_asked_s is not None or observed or incident.kind is Kind.DEAD
    if incident.open or not told:
        return None
    asked_s = marks.evict_asked_s
    back_s, again_s = marks.survivor_commit_s, marks.rejoined_s
    ended = [line.at_s for line in incident.story if line.to == "resolved"]
    return Lesson(
        incident_id=incident.id,
        signature=incident.signature,
        groups=incident.groups,
        hosts=incident.hosts,
        ended_s=ended[-1] if ended else incident.last_seen_s,
        stall_s=_span_s(asked_s, back_s),
        away_s=_span_s(asked_s, again_s),
        observed=observed and asked_s is None,
    )


def _span_s(asked_s: float | None, at_s: float | None) -> float | None:
    return None if asked_s is None or at_s is None else max(0.0, at_s - asked_s)


def cost(lessons: Sequence[Lesson], groups: int, config: KeeperConfig) -> Cost:
    """What an eviction costs a fleet of so many groups: the median of those measured."""
    measured = [
        one.stall_s + max(0.0, one.away_s - one.stall_s) / max(1, groups)
        for one in lessons
        if one.stall_s is not None and one.away_s is not None
    ][-COSTS_KEPT:]
    if not measured:
        return Cost(config.eviction_cost_s)
    low, high = (times * config.eviction_cost_s for times in COST_BOUNDS)
    return Cost(min(max(median(measured), low), high), len(measured))


def same_fault(lessons: Iterable[Lesson], incident: Incident, since_s: float) -> list[Lesson]:
    """Evictions for the same signature that ended since then, this incident's own left out."""
    return [
        one
        for one in lessons
        if incident.signature
        and one.signature == incident.signature
        and one.incident_id != incident.id
        and one.ended_s >= since_s
    ]


def min_replicas_told(status: str) -> int | None:
    """`--min_replicas` as the Lighthouse's sentence about the next quorum names it, if it does.

    TorchFT 0.2.0 names it whenever fewer participants have asked than that, so between any two
    quorums: `New quorum not ready, only have 0 participants, need min_replicas 3 [...]`.
    """
    found = _TOLD.search(status)
    return None if found is None else int(found[1])
