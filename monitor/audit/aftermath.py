"""What comes after an eviction by hand: who commits again, when the group is back. Pure.

The tracker does the same for incidents, with all of its history; this looks at one tick.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from monitor.names import RankName
from monitor.snapshot import EvictionProgress, Observation, Snapshot


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What was seen since a person asked for an eviction."""

    ran: Mapping[RankName, str] = field(default_factory=dict)
    """Incarnations of the group's ranks when it was first seen."""
    survivors_s: float | None = None
    """First commit of another group that was seen once this one was gone: a commit before that was
    made together with it."""
    rejoined_s: float | None = None
    """When it was seen to commit again, all its ranks being other processes, and alive."""

    @property
    def over(self) -> bool:
        """Whether there is nothing left to be seen."""
        return self.survivors_s is not None and self.rejoined_s is not None


def begun(snapshot: Snapshot, progress: EvictionProgress) -> Aftermath:
    """As it begins."""
    mine = [one for one in snapshot.observations if one.identity.group == progress.group]
    return Aftermath({one.rank: one.identity.incarnation for one in mine})


def followed(after: Aftermath, snapshot: Snapshot, progress: EvictionProgress) -> Aftermath:
    """The same, with what this tick shows."""
    moments = (progress.gone_s, progress.unseen_s, progress.left_quorum_s)
    out_s = min((at_s for at_s in moments if at_s is not None), default=None)
    if out_s is None:
        return after
    others: list[Observation] = []
    own: list[Observation] = []
    for one in snapshot.observations:
        (own if one.identity.group == progress.group else others).append(one)
    if after.survivors_s is None:
        told = [_commit_s(one, snapshot.now_s) for one in others]
        commits = [at_s for at_s in told if at_s is not None and at_s > out_s]
        after = replace(after, survivors_s=min(commits, default=None))
    if after.rejoined_s is None:
        after = replace(after, rejoined_s=_rejoined_s(after, own, snapshot.now_s))
    return after


def _rejoined_s(after: Aftermath, own: list[Observation], now_s: float) -> float | None:
    if not own or len(own) < own[0].identity.world_size:
        return None
    commits: list[float] = []
    for one in own:
        commit_s = _commit_s(one, now_s)
        if commit_s is None or after.ran.get(one.rank) == one.identity.incarnation:
            return None
        commits.append(commit_s)
    return max(commits)


def _commit_s(one: Observation, now_s: float) -> float | None:
    """When a rank that is alive committed last."""
    report = one.report
    if report is None or report.step is None or not report.process.alive:
        return None
    age_s = report.step.last_commit_age_s
    if age_s is None or not math.isfinite(age_s) or report.step.commits < 1:
        return None
    return now_s - age_s


def aftermath_to_json(after: Aftermath) -> dict[str, Any]:
    """Plain JSON types."""
    return {**asdict(after), "ran": dict(after.ran)}


def aftermath_from_json(body: Any) -> Aftermath | None:
    """Inverse of `aftermath_to_json`; None for anything else."""
    try:
        ran = {RankName(str(rank)): str(one) for rank, one in body["ran"].items()}
        return Aftermath(ran, _time(body["survivors_s"]), _time(body["rejoined_s"]))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def _time(value: Any) -> float | None:
    at_s = None if value is None else float(value)
    return at_s if at_s is None or math.isfinite(at_s) else None
