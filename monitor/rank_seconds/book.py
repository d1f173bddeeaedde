"""The accounts of all ranks, tick by tick. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from monitor.history.track import FINISHED_PHASE
from monitor.names import GroupName, RankName, group_of
from monitor.pipeline import RankHealth, TickResult
from monitor.rank_seconds.causes import (
    RECOVERING,
    STARTING,
    UNEXPLAINED,
    Situation,
    own_cause,
    situation,
)
from monitor.rank_seconds.usual import UsualPace
from monitor.snapshot import Observation, Snapshot
from worker_server.wire import StepState

_BLIND_S: Final = 60.0
_BLIND_TICKS: Final = 5.0
"""A longer gap between two ticks was watched by nobody."""
_SLACK: Final = 0.25
"""Of the usual pace: what needs no explanation."""
_PATIENCE_S: Final = 60.0
"""How long a lost second waits for an incident that explains it."""
_AWAY_S: Final = 3600.0
"""A rank that does not come back for so long is given up: the job is smaller now."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Rank-seconds since the monitor looks; both only grow."""

    effective_s: float = 0.0
    ineffective_s: Mapping[str, float] = field(default_factory=dict)
    """By cause."""
    usual_s: float | None = None
    """Seconds that a commit usually takes; None until that is known."""


@dataclass(slots=True)
class _Account:
    """One incarnation of one rank."""

    group: GroupName
    incarnation: str
    commits: int
    failures: int
    open_s: float = 0.0
    """Since the last commit, as far as it is not booked."""
    closed_s: float = 0.0
    due: int = 0
    """Commits, and the seconds up to the last of them, that wait for the pace to be known."""
    late: bool = False
    """Whether the open attempt has taken longer than it may: all beyond the pace is lost."""
    why: str | None = None
    """The cause for which it was first late; what made it so may be over when it commits."""
    failed: bool = False
    """Whether an attempt failed since the last commit."""


class RankSeconds:
    """Books every watched rank-second once; `monitor.rank_seconds` has the rule."""

    def __init__(self, tick_s: float = 1.0) -> None:
        self._blind_s = max(_BLIND_S, _BLIND_TICKS * tick_s)
        self._usual = UsualPace()
        self._accounts: dict[RankName, _Account] = {}
        self._away: dict[RankName, float] = {}
        """Ranks that a fault took -> since when."""
        self._whole = 0
        """How many ranks there were before the first of them went."""
        self._recovering: dict[GroupName, float] = {}
        """Groups of which a fault or an eviction ended a process -> when."""
        self._back: dict[GroupName, float] = {}
        """Groups that fell lately -> when they last trained, nothing standing against them."""
        self._untold: deque[tuple[float, float]] = deque()
        """Lost without a cause so far: when, and how many rank-seconds."""
        self._now_s = 0.0
        self._paces: list[float] = []
        """Seconds a commit of those who committed in this tick."""
        self._effective_s = 0.0
        self._lost_s: dict[str, float] = {}

    def push(self, snapshot: Snapshot, result: TickResult) -> Spent:
        """Take in one tick."""
        span_s, self._now_s = snapshot.now_s - self._now_s, snapshot.now_s
        if not 0 < span_s <= self._blind_s:  # the first tick's is the time since 1970
            self._accounts, span_s = {}, 0.0
        own = {
            seen.rank: own_cause(
                seen,
                result.rank_health.get(seen.rank),
                recovering=seen.identity.group in self._recovering,
            )
            for seen in snapshot.observations
        }
        stands = situation(snapshot, result, own.values())
        self._paces = []
        self._missing({seen.rank for seen in snapshot.observations}, stands, span_s)
        for seen in snapshot.observations:
            warm = result.rank_health.get(seen.rank) is not RankHealth.STARTING
            self._take(seen, stands, own[seen.rank], span_s, warm=warm)
        if stands.quiet or self._usual.commit_s is None:
            self._usual.push(self._now_s, self._paces)
        self._explain(stands)
        self._forget(stands)
        return Spent(self._effective_s, dict(self._lost_s), self._usual.commit_s)

    def _forget(self, stands: Situation) -> None:
        since_s = self._now_s - _AWAY_S
        self._recovering = {g: at_s for g, at_s in self._recovering.items() if at_s >= since_s}
        self._back = {group: at_s for group, at_s in self._back.items() if group in stands.fell}

    # -- who is not there -------------------------------------------------------------------------

    def _missing(self, here: set[RankName], stands: Situation, span_s: float) -> None:
        """Ranks that left, and those that a fault has taken and that are not back."""
        size = len(self._accounts)
        for rank in self._accounts.keys() - here:
            gone = self._accounts.pop(rank)
            if self._fell(gone.group, stands):
                self._whole = max(self._whole, size)
                self._away[rank] = self._now_s
                self._lose_open(gone, stands.named.get(gone.group, RECOVERING))
        self._away = {
            rank: since_s
            for rank, since_s in self._away.items()
            if rank not in here and self._now_s - since_s <= _AWAY_S
        }
        if not self._away:
            self._whole = 0
        absent = min(len(self._away), max(0, self._whole - len(here)))
        for rank in sorted(self._away)[:absent]:
            self._lose(span_s, stands.named.get(group_of(rank), RECOVERING))

    def _fell(self, group: GroupName, stands: Situation) -> bool:
        """Whether a process that ended did so for a fault or an eviction since its group last
        trained: then the group is coming back, or stays away.
        """
        at_s = stands.fell.get(group)
        fell = at_s is not None and at_s >= self._back.get(group, at_s)
        if fell:
            self._recovering.setdefault(group, self._now_s)
        return fell

    # -- who is -----------------------------------------------------------------------------------

    def _take(
        self, seen: Observation, stands: Situation, own: str | None, span_s: float, *, warm: bool
    ) -> None:
        """One rank; `warm`: whether its first steps are over."""
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
                own = RECOVERING if self._fell(group, stands) else own or STARTING
                self._lose_open(account, stands.cause(group, own, failed=False))
            self._accounts[rank] = _Account(group, incarnation, step.commits, step.commit_failures)
        elif not report.process.alive:
            self._fell(group, stands)
            self._lose_open(account, stands.cause(group, own, failed=account.failed))
        else:
            self._train(account, step, stands, own, warm=warm)

    def _train(
        self, account: _Account, step: StepState, stands: Situation, own: str | None, *, warm: bool
    ) -> None:
        """A process that lives: what it committed, and what the open attempt costs."""
        account.failed = account.failed or step.commit_failures > account.failures
        account.failures = step.commit_failures
        cause = stands.cause(account.group, own, failed=account.failed)
        why = cause or account.why
        committed = self._commit(account, step, why, warm=warm)
        self._settle(account, why)
        self._overrun(account, step, cause if committed else why)
        group = account.group
        if committed and warm and group in stands.fell and not stands.against(group):
            self._back[group] = self._now_s
            self._recovering.pop(group, None)

    def _commit(self, account: _Account, step: StepState, cause: str | None, *, warm: bool) -> bool:
        """Close what the rank has committed since the last tick, if anything."""
        done, account.commits = step.commits - account.commits, step.commits
        if done <= 0:
            return False
        since_s = min(account.open_s, step.last_commit_age_s or 0.0)
        closed_s, account.open_s = account.open_s - since_s, since_s
        account.late, account.failed, account.why = False, False, None
        if done == step.commits or step.healing:  # the first of all: start and compilation
            self._lose(closed_s, cause or STARTING)
            return False
        account.closed_s += closed_s
        account.due += done
        if warm:
            self._paces.append(closed_s / done)
        return True

    def _settle(self, account: _Account, cause: str | None) -> None:
        """Book closed seconds, once the pace is known."""
        usual_s = self._usual.commit_s
        if account.due and usual_s is not None:
            worth_s = account.due * usual_s
            free = cause is None and account.closed_s <= (1 + _SLACK) * worth_s
            effective_s = account.closed_s if free else min(account.closed_s, worth_s)
            self._effective_s += effective_s
            self._lose(account.closed_s - effective_s, cause)
            account.closed_s, account.due = 0.0, 0

    def _overrun(self, account: _Account, step: StepState, cause: str | None) -> None:
        """Book what an open attempt takes longer than it may."""
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

    def _lose_open(self, account: _Account, cause: str | None) -> None:
        """Book what a process will not commit any more; what it did commit waits no longer."""
        usual_s = self._usual.commit_s
        worth_s = 0.0 if usual_s is None else account.due * usual_s
        effective_s = min(account.closed_s, worth_s)
        self._effective_s += effective_s
        self._lose(account.closed_s - effective_s + account.open_s, cause)
        account.open_s = account.closed_s = 0.0
        account.due = 0

    def _lose(self, seconds: float, cause: str | None) -> None:
        if seconds <= 0:
            return
        if cause is None:
            before_s = 0.0
            if self._untold and self._untold[-1][0] == self._now_s:
                before_s = self._untold.pop()[1]
            self._untold.append((self._now_s, before_s + seconds))
        else:
            self._lost_s[cause] = self._lost_s.get(cause, 0.0) + seconds

    def _explain(self, stands: Situation) -> None:
        """Give what waits for a cause to an incident that began before; else, in time, to none."""
        waiting, self._untold = self._untold, deque()
        for at_s, seconds in waiting:
            cause = stands.explains(at_s)
            if cause is None and self._now_s - at_s >= _PATIENCE_S:
                cause = UNEXPLAINED
            if cause is None:
                self._untold.append((at_s, seconds))
            else:
                self._lose(seconds, cause)
