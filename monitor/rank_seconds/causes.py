"""Why a rank-second is lost: one tick's situation, of the fleet and of each rank. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from monitor.detectors.verdict import Severity
from monitor.incident import Incident
from monitor.names import GroupName
from monitor.pipeline import RankHealth, TickResult
from monitor.snapshot import Observation, Snapshot
from worker_server.wire import LONG_PHASES

RECOVERING: Final = "recovering"
STARTING: Final = "starting"
FAILED_COMMIT: Final = "failed_commit"
UNEXPLAINED: Final = "unexplained"

_INIT: Final = "init"
"""The declared phase that is a start."""
_PAUSES: Final = tuple(sorted(LONG_PHASES - {_INIT}))
_ORDER: Final = (RECOVERING, STARTING, *_PAUSES)
"""What others do, the first that anybody does."""
_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_RECENT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Situation:
    """What stands in one tick."""

    open: tuple[Incident, ...]
    """Worst first, then oldest."""
    named: dict[GroupName, str]
    """Group -> kind of the worst open incident that names it."""
    fell: dict[GroupName, float]
    """Group -> when an incident of it fired last, or it was to be evicted, within the last hour."""
    going: frozenset[GroupName]
    """Groups whose eviction is under way."""
    others: str | None
    """What somebody does for which all may have to wait; None: nothing of that sort."""

    @property
    def quiet(self) -> bool:
        """Whether this tick shows the usual pace."""
        return not self.open and self.others is None

    def against(self, group: GroupName) -> bool:
        """Whether an open incident names a group, or it is being evicted."""
        return group in self.named or group in self.going

    def cause(self, group: GroupName, own: str | None, *, failed: bool) -> str | None:
        """Why a second of a rank of this group is lost; None: nobody knows (yet).

        Args:
            group: the rank's.
            own: what the rank itself does, by `own_cause`.
            failed: whether its last attempt was not committed.
        """
        kind = str(self.open[0].kind) if self.open else None
        found = self.named.get(group) or own or kind or self.others
        return FAILED_COMMIT if found is None and failed else found

    def explains(self, at_s: float) -> str | None:
        """The kind of an open incident that began before a loss at `at_s`."""
        return next((str(one.kind) for one in self.open if one.verdict.since_s <= at_s), None)


def own_cause(seen: Observation, health: RankHealth | None, *, recovering: bool) -> str | None:
    """What a rank does that is no training; `recovering`: whether its group comes back."""
    step = None if seen.report is None else seen.report.step
    if step is None:
        return None
    begins = step.commits == 0 or health is RankHealth.STARTING or step.phase == _INIT
    if step.healing or (begins and recovering):
        return RECOVERING
    if begins:
        return STARTING
    return step.phase if step.phase in _PAUSES else None


def situation(snapshot: Snapshot, result: TickResult, own: Iterable[str | None]) -> Situation:
    """One tick's; `own`: what each of its ranks does."""
    standing = [one for one in result.incidents if one.open]
    standing.sort(
        key=lambda one: (
            _WORST_FIRST.index(one.severity), one.milestones.first_seen_s, one.id
        )
    )  # fmt: skip
    named: dict[GroupName, str] = {}
    for one in standing:
        for group in one.groups:
            named.setdefault(group, str(one.kind))
    times = [
        (group, one.milestones.firing_s)
        for one in result.incidents
        if one.milestones.firing_s is not None
        for group in one.groups
    ]
    recent = [one for one in snapshot.evictions if snapshot.now_s - one.asked_s <= _RECENT_S]
    times += [(one.group, one.asked_s) for one in recent]
    fell: dict[GroupName, float] = {}
    for group, at_s in times:
        fell[group] = max(at_s, fell.get(group, at_s))
    going = frozenset(one.group for one in recent if not one.out and one.failed is None)
    doing = set(own)
    others = next((cause for cause in _ORDER if cause in doing), None)
    return Situation(tuple(standing), named, fell, going, others)
