"""Makes each scheduler agree with the quarantine list.

Theory of operation. A host on the list is cordoned once. A host that we cordoned, or tried to
cordon, is uncordoned when it is off the list. Failures are retried with backoff. What an earlier
monitor had cordoned is read back from the scheduler, and is uncordoned too unless it is on the
list. Two things are left alone: a host that somebody else cordoned, and a cordon that somebody
removes by hand while this monitor runs. They know more than we do, and launchers are refused there
anyway.

Each scheduler has its own worker, which looks at the list once a second, so it does not matter who
changed the list. In observe mode, and on a standby, it does nothing. A monitor that takes over
reads back our cordons, as one that starts does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.schedulers.base import Outcome, Scheduler, Why
from lightkeeper.monitor.background import TROUBLE_AFTER, BackgroundWorker, backoff_s
from lightkeeper.monitor.metric import EVICTIONS
from lightkeeper.monitor.model.eviction import QuarantineEntry
from lightkeeper.monitor.model.names import Host

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 20.0
"""Deadline of one request. `scontrol` gives up after MessageTimeout, 10 s by default."""
_PERIOD_S: Final = 1.0
_RECALL_AGAIN_S: Final = 60.0
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 300.0
"""A scheduler that comes back is asked within five minutes."""
STRAY_S: Final = 15.0
"""A cordon that was read back, of a host that is not on the list, is removed only after this time:
the list of a monitor that has just taken over may be on its way."""


@dataclass(frozen=True, slots=True)
class Action:
    """A request that is due: a cordon, or an uncordon where `entry` is None."""

    host: Host
    entry: QuarantineEntry | None

    @property
    def word(self) -> str:
        return "uncordon" if self.entry is None else "cordon"


@dataclass(frozen=True, slots=True)
class _Made:
    since_s: float
    ours: bool


@dataclass(frozen=True, slots=True)
class _Failed:
    word: str
    times: int
    next_s: float
    said: str


class CordonPlan:
    """Decides the next requests to one scheduler, given the time."""

    def __init__(self) -> None:
        self._made: dict[Host, _Made] = {}
        self._failed: dict[Host, _Failed] = {}
        self._owed: dict[Host, float] = {}
        """Host that may have our cordon -> when to uncordon it, if it is off the list."""

    def recalled(self, hosts: Iterable[Host], now_s: float) -> None:
        """Take in the hosts that have our cordon, according to the scheduler."""
        for host in hosts:
            self._owed.setdefault(host, now_s + STRAY_S)

    def due(self, quarantined: Iterable[QuarantineEntry], now_s: float) -> Iterator[Action]:
        """Requests due now, sorted by host, cordons first."""
        entries = {entry.host: entry for entry in quarantined}
        for host in sorted(entries):
            entry, made = entries[host], self._made.get(host)
            news = made is None or made.since_s != entry.since_s
            if news and self._is_time(host, "cordon", now_s):
                yield Action(host, entry)
        for host in sorted(self._owed.keys() - entries.keys()):
            if now_s >= self._owed[host] and self._is_time(host, "uncordon", now_s):
                yield Action(host, None)

    def _is_time(self, host: Host, word: str, now_s: float) -> bool:
        failed = self._failed.get(host)
        return failed is None or failed.word != word or now_s >= failed.next_s

    def learned(self, action: Action, outcome: Outcome, now_s: float) -> None:
        """Take in the outcome of a request; a failed one may have taken effect anyway."""
        host, entry = action.host, action.entry
        if entry is not None:
            self._owed[host] = now_s
        if not outcome.done:
            before = self._failed.get(host)
            times = before.times + 1 if before is not None and before.word == action.word else 1
            next_s = now_s + backoff_s(times, FIRST_RETRY_S, LONGEST_RETRY_S)
            self._failed[host] = _Failed(action.word, times, next_s, outcome.detail)
            return
        self._failed.pop(host, None)
        if entry is None:
            self._made.pop(host, None)
            self._owed.pop(host, None)
        else:
            self._made[host] = _Made(entry.since_s, outcome.ours)

    def counts(self) -> dict[str, int]:
        """Hosts by state: `ours`, `foreign` (kept out by somebody else), `failing`."""
        cordons = [cordon for host, cordon in self._made.items() if host not in self._failed]
        ours = sum(cordon.ours for cordon in cordons)
        return {"ours": ours, "foreign": len(cordons) - ours, "failing": len(self._failed)}

    def troubles(self) -> Iterator[str]:
        for host in sorted(self._failed):
            failed = self._failed[host]
            if failed.times >= TROUBLE_AFTER:
                yield f"{failed.said} ({failed.times} tries)"


REQUESTS: Final = EVICTIONS.counter("scheduler_requests",
    "Requests that keep a scheduler in step with the quarantine list, by action and outcome.",
    ("scheduler", "action", "outcome"), series="≤ 8 a scheduler",
    absent="none since the start")  # fmt: skip
HOSTS: Final = EVICTIONS.gauge("scheduler_hosts",
    "Quarantined hosts by who keeps them out: ours, foreign (somebody else), failing.",
    ("scheduler", "state"), series="3 a scheduler",
    absent="no scheduler is configured")  # fmt: skip


class CordonReconciler:
    """Carries out one scheduler's plan. Close it when done."""

    def __init__(
        self,
        scheduler: Scheduler,
        quarantined: Callable[[], Sequence[QuarantineEntry]],
        may_act: Callable[[], bool],
        metrics: CollectorRegistry,
        *,
        period_s: float = _PERIOD_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self._quarantined = quarantined
        self._may_act = may_act
        self._requests, self._hosts = REQUESTS.on(metrics), HOSTS.on(metrics)
        self._now = now
        self._plan: CordonPlan | None = None
        """None while this monitor may not act."""
        self._recall_s: float | None = None
        """When to read back our cordons; None: that is done."""
        self._failing: tuple[str, ...] = ()
        self._worker = BackgroundWorker(f"scheduler {scheduler.name}", self._work, every_s=period_s)
        self._worker.start()

    def troubles(self) -> tuple[str, ...]:
        crash = self._worker.crash
        sentences = self._failing if crash is None else (crash, *self._failing)
        return tuple(f"scheduler {self.scheduler.name}: {sentence}" for sentence in sentences)

    def close(self) -> None:
        self._worker.close()

    def _work(self) -> None:
        try:
            self.round()
        finally:
            plan = CordonPlan() if self._plan is None else self._plan
            for state, number in plan.counts().items():
                self._hosts.labels(self.scheduler.name, state).set(number)
            self._failing = tuple(plan.troubles())

    def round(self) -> None:
        """Look at the list once, and make the requests that are due."""
        if not self._may_act():
            self._plan = None  # another monitor may act now
            return
        if self._plan is None:
            self._plan, self._recall_s = CordonPlan(), self._now()
        plan = self._plan
        self._recall(plan)
        for action in tuple(plan.due(self._quarantined(), self._now())):
            if self._worker.closing or not self._may_act():
                return
            outcome = self._ask(action)
            plan.learned(action, outcome, self._now())
            result = "done" if outcome.done else "failed"
            self._requests.labels(self.scheduler.name, action.word, result).inc()
            level = logging.INFO if outcome.done else logging.WARNING
            log.log(level, "%s: %s", self.scheduler.name, outcome.detail)

    def _recall(self, plan: CordonPlan) -> None:
        if self._recall_s is None or self._now() < self._recall_s:
            return
        hosts = self.scheduler.cordoned(TIMEOUT_S)
        self._recall_s = None if hosts is not None else self._now() + _RECALL_AGAIN_S
        plan.recalled(hosts or (), self._now())

    def _ask(self, action: Action) -> Outcome:
        host, entry = action.host, action.entry
        if entry is None:
            return self.scheduler.uncordon(host, "no longer in quarantine", TIMEOUT_S)
        return self.scheduler.cordon(host, Why(entry.reason, entry.incident_id), TIMEOUT_S)
