"""Goodput: every watched rank-second is effective, or lost to a cause. Pure.

Theory of operation. Each rank has an account of open seconds: those since its last commit. Each
tick adds the seconds since the previous tick. When the rank's own counter shows n commits, the
seconds up to the last of them are closed: n times the job's *usual pace* are effective, the rest is
not. Seconds by which an attempt exceeds the usual pace are booked as ineffective while they pass,
not when it ends. So both counters together grow by the rank-seconds watched, and a step that takes
ten times as long as usual is one tenth effective, whatever the tick.

*Usual pace*: seconds a commit, one number for the job, since its groups commit together:
the median of an hour without standstills. Without a cause a commit may take a quarter longer and
still be effective: that is noise, and needs no explanation. With a cause it may not. Before the
pace is known, every commit is effective. A slowness that lasts longer than half an hour without an
incident becomes usual.

*Cause*, the first that holds: the kind of an open incident that names the rank's group;
what the rank itself does (`recovering` once its group was evicted or died of an incident, until it
commits again; `starting`; a declared `checkpoint`, `evaluation`, `compile`); the kind of any open
incident, the worst first, since groups wait for each other; what any other rank does, in the same
order; `failed_commit`, when the previous attempt was not committed; `unexplained`. An attempt that
became late for a cause keeps it. Seconds without a cause wait for a minute: an incident that opens
meanwhile and began before them takes them.

Unwatched time is not counted. A monitor that starts begins with what it then sees, and also after a
gap of more than a minute (and five ticks). In a shorter gap, and while a rank does not answer,
seconds wait for the rank's commit counter, which shows what they were worth.
A rank that leaves while an incident or an eviction of its group is at most an hour old, and the
group has not trained since, keeps costing `recovering` until as many ranks are there as before,
for an hour at most. Any other rank that leaves has finished, and its open seconds are dropped.
Ranks that report no steps are left out.

*Incident*: a second lost to the kind of an incident is lost to that incident, and `recovering` to
the one that ended the group's processes. The sum is what an incident cost, at least: what nobody
watched, and a straggler's seconds before it was suspected, are missing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from lightkeeper.monitor.model.incident import Incident, oldest_first
from lightkeeper.monitor.model.names import GroupName, IncidentId, RankName, group_of
from lightkeeper.monitor.model.observation import Observation, Snapshot, missing_ranks
from lightkeeper.monitor.model.verdict import RankHealth, Severity
from lightkeeper.worker_server.wire import FINISHED_PHASE, LONG_PHASES, StepState

if TYPE_CHECKING:  # the command line reads what this has counted, and judges nothing
    from lightkeeper.monitor.decide.pipeline import TickResult

# The job's usual pace: seconds a commit without standstills.

_SAMPLE_S: Final = 10.0
"""Span of one sample, so that the median's memory does not depend on the tick."""
_KEPT: Final = 360
"""Samples: an hour of short steps."""
_FEWEST: Final = 3


class UsualPace:
    """A median over an hour of samples, each a median over ranks and ticks."""

    def __init__(self) -> None:
        self._samples: deque[float] = deque(maxlen=_KEPT)
        self._gathered: list[float] = []
        self._since_s: float | None = None
        self.commit_s: float | None = None
        """None until there are three samples."""

    def push(self, now_s: float, paces: Sequence[float]) -> None:
        """Take seconds a commit, of the ranks that committed in a tick without a standstill."""
        if not paces:
            return
        if self._since_s is None:
            self._since_s = now_s
        self._gathered.append(median(paces))
        if len(self._samples) >= _FEWEST and now_s - self._since_s < _SAMPLE_S:
            return
        self._samples.append(median(self._gathered))
        self._gathered, self._since_s = [], None
        if len(self._samples) >= _FEWEST:
            self.commit_s = median(self._samples)


# Why a rank-second is lost: the situation of the fleet and of each rank in one tick.

RECOVERING: Final = "recovering"
STARTING: Final = "starting"
FAILED_COMMIT: Final = "failed_commit"
UNEXPLAINED: Final = "unexplained"

_INIT: Final = "init"
"""The declared phase of a start."""
_PAUSES: Final = tuple(sorted(LONG_PHASES - {_INIT}))
_ORDER: Final = (RECOVERING, STARTING, *_PAUSES)
"""Causes by what other ranks do, in order of precedence."""
_WORST_FIRST: Final = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
_RECENT_S: Final = 3600.0


class Cause(NamedTuple):
    """Why a rank-second is lost."""

    name: str
    incident: IncidentId | None = None
    """The one to which it is lost."""


def _by(incident: Incident) -> Cause:
    return Cause(str(incident.kind), incident.id)


@dataclass(frozen=True, slots=True)
class Situation:
    open: tuple[Incident, ...]
    """Worst first, then oldest."""
    named: dict[GroupName, Cause]
    """Group -> the worst open incident that names it."""
    fell: dict[GroupName, tuple[float, IncidentId]]
    """Group -> when its incident last fired or its eviction was asked, within the last hour."""
    going: frozenset[GroupName]
    """Groups whose eviction is under way."""
    others: Cause | None
    """What some rank does that all may wait for; None: nothing."""

    @property
    def quiet(self) -> bool:
        """True if this tick shows the usual pace."""
        return not self.open and self.others is None

    def against(self, group: GroupName) -> bool:
        """True if an open incident names this group, or it is being evicted."""
        return group in self.named or group in self.going

    def cause(self, group: GroupName, own: Cause | None, *, failed: bool) -> Cause | None:
        """Why a second of a rank of this group is lost; None: not known (yet). `own`: what the rank
        itself does (`own_cause`); `failed`: whether its last attempt was not committed.
        """
        worst = _by(self.open[0]) if self.open else None
        cause = self.named.get(group) or own or worst or self.others
        return Cause(FAILED_COMMIT) if cause is None and failed else cause

    def explains(self, at_s: float) -> Cause | None:
        """An open incident that began before a loss at `at_s`."""
        return next((_by(i) for i in self.open if i.verdict.since_s <= at_s), None)


def own_cause(step: StepState, health: RankHealth | None, recovering: Cause | None) -> Cause | None:
    """What a rank does other than train; `recovering`: from what its group is coming back."""
    begins = step.commits == 0 or health is RankHealth.STARTING or step.phase == _INIT
    if step.healing or (begins and recovering):
        return recovering or Cause(RECOVERING)
    if begins:
        return Cause(STARTING)
    return Cause(step.phase) if step.phase in _PAUSES else None


def situation(snapshot: Snapshot, result: TickResult, own: Iterable[Cause]) -> Situation:
    """The one of this tick; `own`: what each rank does."""
    standing = sorted((i for i in result.incidents if i.open), key=oldest_first)
    standing.sort(key=lambda incident: _WORST_FIRST.index(incident.severity))
    named: dict[GroupName, Cause] = {}
    for incident in standing:
        for group in incident.groups:
            named.setdefault(group, _by(incident))
    times = [
        (group, (incident.milestones.firing_s, incident.id))
        for incident in result.incidents
        if incident.milestones.firing_s is not None
        for group in incident.groups
    ]
    since_s = snapshot.now_s - _RECENT_S
    recent = [eviction for eviction in snapshot.evictions if eviction.asked_s >= since_s]
    times += [(eviction.group, (eviction.asked_s, eviction.incident_id)) for eviction in recent]
    fell: dict[GroupName, tuple[float, IncidentId]] = {}
    for group, at in times:
        fell[group] = max(at, fell.get(group, at))
    going = frozenset(e.group for e in recent if not e.out and e.failed is None)
    doing = {cause.name: cause for cause in own}
    others = next((doing[name] for name in _ORDER if name in doing), None)
    return Situation(tuple(standing), named, fell, going, others)


_BLIND_S: Final = 60.0
_BLIND_TICKS: Final = 5.0
"""A longer gap between two ticks counts as unwatched."""
_SLACK: Final = 0.25
"""Excess over the usual pace, as a share of it, that needs no explanation."""
_PATIENCE_S: Final = 60.0
"""How long a lost second waits for an incident that explains it."""
_INCIDENTS_KEPT: Final = 1000
"""Incidents of a run whose cost is kept: they are stored with it every half minute."""
_AWAY_S: Final = 3600.0
"""After this long a missing rank is given up: the job is smaller now."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Rank-seconds since the monitor started; both only grow."""

    effective_s: float = 0.0
    ineffective_s: Mapping[str, float] = field(default_factory=dict)
    """By cause."""
    usual_s: float | None = None
    """Usual seconds a commit; None until known."""
    lost_to: Mapping[IncidentId, float] = field(default_factory=dict)
    """Seconds of this run, for each incident that was open since the usual pace is known."""


@dataclass(slots=True)
class _Account:
    """One incarnation of one rank."""

    group: GroupName
    incarnation: str
    commits: int
    failures: int
    open_s: float = 0.0
    """Since the last commit, as far as not booked yet."""
    late: bool = False
    """True if the open attempt took longer than allowed: all beyond the pace is lost."""
    why: Cause | None = None
    """The cause when it became late; it may be over when the rank commits."""
    failed: bool = False
    """True if an attempt failed since the last commit."""
    warm: bool = False
    """True if its first steps are over."""


class RankSeconds:
    """Books every watched rank-second once; `monitor.decide.rank_seconds` has the rule."""

    def __init__(self, tick_s: float = 1.0) -> None:
        self._blind_s = max(_BLIND_S, _BLIND_TICKS * tick_s)
        self._usual = UsualPace()
        self._accounts: dict[RankName, _Account] = {}
        self._away: dict[RankName, tuple[float, Cause]] = {}
        """Rank missing since a fault -> since when, and why."""
        self._whole = 0
        """Number of ranks before the first of them left."""
        self._recovering: dict[GroupName, tuple[float, Cause]] = {}
        """Group of which a fault or an eviction ended a process -> when, and which."""
        self._back: dict[GroupName, float] = {}
        """Group in `Situation.fell` -> when it last trained without an incident or eviction."""
        self._untold: dict[float, float] = {}
        """Lost without a cause so far: when -> how many rank-seconds."""
        self._now_s = 0.0
        self._paces: list[float] = []
        """Seconds a commit, of the ranks that committed in this tick."""
        self._effective_s = 0.0
        self._lost_s: dict[str, float] = {}
        self.lost_to: dict[IncidentId, float] = {}

    def turn(self) -> None:
        """A new run begins: nobody of the last one comes back. The counters stay."""
        self.lost_to = {}
        self._accounts, self._away, self._recovering, self._back = {}, {}, {}, {}

    def push(self, snapshot: Snapshot, result: TickResult) -> Spent:
        span_s, self._now_s = snapshot.now_s - self._now_s, snapshot.now_s
        if not 0 < span_s <= self._blind_s:  # the first tick's is the time since 1970
            self._accounts, span_s = {}, 0.0
        health, own = result.rank_health, self._own_causes(snapshot, result)
        stands = situation(snapshot, result, own.values())
        self._paces = []
        self._missing(snapshot.by_rank, stands, span_s)
        for rank, seen in snapshot.by_rank.items():
            warm = health.get(rank) is not RankHealth.STARTING
            self._take(seen, stands, own.get(rank), span_s, warm=warm)
        if stands.quiet or self._usual.commit_s is None:
            self._usual.push(self._now_s, self._paces)
        self._explain(stands)
        for incident in stands.open if self._usual.commit_s is not None else ():
            self.lost_to.setdefault(incident.id, 0.0)
        self.lost_to = dict([*self.lost_to.items()][-_INCIDENTS_KEPT:])
        since_s = self._now_s - _AWAY_S
        self._recovering = {g: at for g, at in self._recovering.items() if at[0] >= since_s}
        self._back = {group: at_s for group, at_s in self._back.items() if group in stands.fell}
        return Spent(
            self._effective_s, dict(self._lost_s), self._usual.commit_s, dict(self.lost_to)
        )

    def _own_causes(self, snapshot: Snapshot, result: TickResult) -> dict[RankName, Cause]:
        """What ranks do other than train, for those that do."""
        own: dict[RankName, Cause] = {}
        for rank, report in snapshot.reports.items():
            if (step := report.step) is not None:
                back = self._recovering.get(group_of(rank)) if self._recovering else None
                cause = own_cause(step, result.rank_health.get(rank), back and back[1])
                if cause is not None:
                    own[rank] = cause
        return own

    # -- missing ranks ----------------------------------------------------------------------------

    def _missing(
        self, present: Mapping[RankName, Observation], stands: Situation, span_s: float
    ) -> None:
        """Book ranks that left now, and those missing since a fault."""
        size = len(self._accounts)
        for rank in missing_ranks(self._accounts, present):
            account = self._accounts.pop(rank)
            if (recovering := self._fell(account.group, stands)) is not None:
                self._whole = max(self._whole, size)
                self._away[rank] = self._now_s, recovering
                self._lose_open(account, stands.named.get(account.group, recovering))
        self._away = {
            rank: (since_s, cause)
            for rank, (since_s, cause) in self._away.items()
            if rank not in present and self._now_s - since_s <= _AWAY_S
        }
        if not self._away:
            self._whole = 0
        away = min(len(self._away), max(0, self._whole - len(present)))
        for rank in sorted(self._away)[:away]:
            self._lose(span_s, stands.named.get(group_of(rank), self._away[rank][1]))

    def _fell(self, group: GroupName, stands: Situation) -> Cause | None:
        """The fault or eviction since the group last trained that explains that a process ended:
        then the group is coming back, or stays away. None: there is none.
        """
        at_s, incident = stands.fell.get(group, (-math.inf, None))
        if at_s < self._back.get(group, at_s) or incident is None:
            return None
        return self._recovering.setdefault(group, (self._now_s, Cause(RECOVERING, incident)))[1]

    # -- present ranks ----------------------------------------------------------------------------

    def _take(
        self, seen: Observation, stands: Situation, own: Cause | None, span_s: float, *, warm: bool
    ) -> None:
        rank, group, report = seen.rank, seen.identity.group, seen.report
        account = self._accounts.get(rank)
        if account is not None:
            account.open_s += span_s
        if report is None:
            if account is not None and group in stands.named:
                self._lose_open(account, stands.named[group])
            return
        step, incarnation = report.step, report.identity.incarnation
        if step is None or step.phase == FINISHED_PHASE:
            self._accounts.pop(rank, None)
        elif account is None or account.incarnation != incarnation:
            if account is not None:
                own = self._fell(group, stands) or own or Cause(STARTING)
                self._lose_open(account, stands.cause(group, own, failed=False))
            self._accounts[rank] = _Account(group, incarnation, step.commits, step.commit_failures)
        elif not report.process.alive:
            self._fell(group, stands)
            self._lose_open(account, stands.cause(group, own, failed=account.failed))
        else:
            account.warm = warm
            self._train(account, step, stands, own)

    def _train(
        self, account: _Account, step: StepState, stands: Situation, own: Cause | None
    ) -> None:
        """Book a live process: what it committed, and what the open attempt costs."""
        account.failed = account.failed or step.commit_failures > account.failures
        account.failures, group = step.commit_failures, account.group
        cause = None
        if account.failed or not stands.quiet:
            cause = stands.cause(group, own, failed=account.failed)
        why = cause or account.why
        committed = step.commits != account.commits and self._commit(account, step, why)
        self._overrun(account, step, cause if committed else why)
        if committed and account.warm and group in stands.fell and not stands.against(group):
            self._back[group] = self._now_s
            self._recovering.pop(group, None)

    def _commit(self, account: _Account, step: StepState, cause: Cause | None) -> bool:
        """Close the commits since the last tick, if any."""
        done, account.commits = step.commits - account.commits, step.commits
        if done <= 0:
            return False
        since_s = min(account.open_s, step.last_commit_age_s or 0.0)
        closed_s, account.open_s = account.open_s - since_s, since_s
        account.late, account.failed, account.why = False, False, None
        if done == step.commits or step.healing:  # the first of all: start and compilation
            self._lose(closed_s, cause or Cause(STARTING))
            return False
        self._book(closed_s, done, cause)
        if account.warm:
            self._paces.append(closed_s / done)
        return True

    def _book(self, closed_s: float, commits: int, cause: Cause | None) -> None:
        """Book seconds up to a commit; all are effective before the pace is known."""
        usual_s = self._usual.commit_s
        worth_s = closed_s if usual_s is None else commits * usual_s
        if cause is None and closed_s <= (1 + _SLACK) * worth_s:
            self._effective_s += closed_s
        else:
            self._effective_s += min(closed_s, worth_s)
            self._lose(closed_s - worth_s, cause)

    def _overrun(self, account: _Account, step: StepState, cause: Cause | None) -> None:
        """Book the seconds by which an open attempt exceeds its limit."""
        usual_s = self._usual.commit_s
        if step.commits == 0 or step.healing:
            self._lose(account.open_s, cause)
            account.open_s = 0.0
        elif usual_s is not None:
            slack = 0.0 if account.late or cause is not None else _SLACK
            if account.open_s > (1 + slack) * usual_s:
                self._lose(account.open_s - usual_s, cause)
                account.open_s, account.late, account.why = usual_s, True, cause

    # -- booking ----------------------------------------------------------------------------------

    def _lose_open(self, account: _Account, cause: Cause | None) -> None:
        """Book as lost what a process can no longer commit."""
        self._lose(account.open_s, cause)
        account.open_s = 0.0

    def _lose(self, seconds: float, cause: Cause | None) -> None:
        if seconds <= 0:
            return
        if cause is None:
            self._untold[self._now_s] = self._untold.get(self._now_s, 0.0) + seconds
        else:
            self._lost_s[cause.name] = self._lost_s.get(cause.name, 0.0) + seconds
            if cause.incident is not None:
                self.lost_to[cause.incident] = self.lost_to.get(cause.incident, 0.0) + seconds

    def _explain(self, stands: Situation) -> None:
        """Book waiting seconds on an incident that began before; after a minute, on none."""
        for at_s in [*self._untold]:
            late = self._now_s - at_s >= _PATIENCE_S
            cause = stands.explains(at_s) or (Cause(UNEXPLAINED) if late else None)
            if cause is not None:
                self._lose(self._untold.pop(at_s), cause)
