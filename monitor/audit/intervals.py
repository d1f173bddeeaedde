"""How long each part of an incident took, how long guards held, how long each rung. Pure.

The parts follow one another and add up: from when the fault began to the last thing seen of it.
Up to the request their order is that of cause and effect; what follows it comes in any order (where
a straggler was evicted the others commit at once, its processes go later). A clock that jumped back
makes a part 0 s long, never negative, and the part says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from monitor.audit.case import Case, is_time
from monitor.detectors.verdict import Kind
from monitor.snapshot import EvictionProgress
from monitor.store import DecisionRow


@dataclass(frozen=True, slots=True)
class Interval:
    """One part, up to the moment whose name it bears."""

    until: str
    """`seen`, `firing`, `decided`, `asked`, `gone`, `left`, `survivors`, `rejoined`."""
    start_s: float
    end_s: float
    jumped: bool = False
    """Whether the moment was told to be before the one that caused it."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True)
class RungSpan:
    """One rung of one eviction."""

    rung: str
    start_s: float
    end_s: float | None
    """None while it is under way, or where nobody saw its end."""
    result: str | None
    detail: str
    deadline_s: float | None = None
    """Seconds that it was given."""

    @property
    def seconds(self) -> float | None:
        """Its length."""
        return None if self.end_s is None else max(0.0, self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class HoldSpan:
    """A guard that held an eviction back."""

    guard: str
    start_s: float
    end_s: float | None
    """None while it holds."""
    reason: str
    """The latest."""
    release: str | None = None
    """What would release it."""
    ended_by: str | None = None
    """What came when it let go; None while it holds."""

    @property
    def seconds(self) -> float | None:
        """Its length."""
        return None if self.end_s is None else max(0.0, self.end_s - self.start_s)


def intervals(case: Case) -> tuple[Interval, ...]:
    """All parts that are over, in order; they add up."""
    at_s, found = case.began_s, []
    for name, moment_s in (*_causes(case), *_effects(case)):
        end_s = max(at_s, moment_s)
        found.append(Interval(name, at_s, end_s, jumped=moment_s < at_s))
        at_s = end_s
    return tuple(found)


def _causes(case: Case) -> Iterator[tuple[str, float]]:
    marks = case.incident.milestones
    moments = (
        ("seen", marks.first_seen_s),
        ("firing", marks.firing_s),
        ("decided", decided_s(case)),
        ("asked", case.asked_s),
    )
    skipped = ("seen", "firing") if case.incident.kind is Kind.BY_HAND else ()
    return ((name, at_s) for name, at_s in moments if is_time(at_s) and name not in skipped)


def _effects(case: Case) -> list[tuple[str, float]]:
    marks, last = case.incident.milestones, _latest(case)
    left_s = marks.left_quorum_s
    if left_s is None and last is not None:
        left_s = last.left_quorum_s
    moments = (
        ("gone", None if last is None else last.gone_s),
        ("left", left_s),
        ("survivors", marks.survivor_commit_s),
        ("rejoined", marks.rejoined_s),
    )
    found = [(name, at_s) for name, at_s in moments if is_time(at_s)]
    return sorted(found, key=lambda one: one[1])


def _latest(case: Case) -> EvictionProgress | None:
    return case.evictions[-1] if case.evictions else None


def decided_s(case: Case) -> float | None:
    """When the latest eviction was decided."""
    rows = [row.at_s for row in case.decisions if row.action == "evict"]
    return rows[-1] if rows else None


def rung_spans(case: Case) -> tuple[RungSpan, ...]:
    """Every rung of every eviction, in the order in which they began."""
    found = [
        RungSpan(
            rung=str(rung.rung),
            start_s=rung.started_s,
            end_s=rung.finished_s,
            result=None if rung.result is None else str(rung.result),
            detail=rung.detail,
            deadline_s=rung.deadline_s,
        )
        for progress in case.evictions
        for rung in progress.rungs
    ]
    return tuple(sorted(found, key=lambda span: span.start_s))


def _ended_by(case: Case, after: DecisionRow | None) -> str | None:
    if after is None:
        return None if case.incident.open else f"it was over: {case.incident.resolution or '?'}"
    return "it was decided to evict" if after.guard is None else f"{after.guard} held instead"


def hold_spans(case: Case) -> tuple[HoldSpan, ...]:
    """Guards that held, oldest first; one that only changed its words goes on."""
    found: list[HoldSpan] = []
    rows = sorted(case.decisions, key=lambda row: row.at_s)
    for number, row in enumerate(rows):
        after = rows[number + 1] if number + 1 < len(rows) else None
        end_s = case.ended_s if after is None else after.at_s
        if row.action == "evict" or row.guard is None:
            continue
        start_s = row.at_s
        if found and found[-1].guard == row.guard and found[-1].end_s == row.at_s:
            start_s = found.pop().start_s
        release = row.body.get("release")
        told = None if release is None else str(release)
        ended_by = _ended_by(case, after)
        found.append(HoldSpan(row.guard, start_s, end_s, row.reason, told, ended_by))
    return tuple(found)
