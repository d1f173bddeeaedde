"""The parts that the loop drives (they are made first and passed in), and their troubles.

A crash of one part stays in that part (`ErrorBoundary`): counted, logged when new, and shown on
the status page like every other trouble of the monitor itself (`troubles`).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry

from lightkeeper.monitor.act.cluster import Cluster
from lightkeeper.monitor.act.ends import Ends
from lightkeeper.monitor.act.evictor import Evictors
from lightkeeper.monitor.act.evidence import Evidence
from lightkeeper.monitor.act.gate import Gatekeeper
from lightkeeper.monitor.act.lighthouse import Lighthouse
from lightkeeper.monitor.act.notify import Notifier
from lightkeeper.monitor.act.poller import Poller
from lightkeeper.monitor.act.quarantine import PauseSwitch, Quarantine
from lightkeeper.monitor.act.release import Releaser
from lightkeeper.monitor.act.schedulers.reconcile import CordonReconciler
from lightkeeper.monitor.act.targets import Registry
from lightkeeper.monitor.act.work import WorkBook
from lightkeeper.monitor.clock import Clock
from lightkeeper.monitor.decide.pipeline import Pipeline, TickResult
from lightkeeper.monitor.detect.self_health import Condition
from lightkeeper.monitor.journal.writer import Journal
from lightkeeper.monitor.metric import HEALTH
from lightkeeper.monitor.model.config import KeeperConfig
from lightkeeper.monitor.model.eviction import Eviction, Remembered
from lightkeeper.monitor.model.observation import Vitals
from lightkeeper.monitor.rulebook import Rulebook
from lightkeeper.monitor.store.lease import Lease
from lightkeeper.monitor.store.store import Store

if TYPE_CHECKING:  # it is an extra
    from lightkeeper.monitor.act.otlp import Telemetry

# -- vitals ------------------------------------------------------------------------------------


_TASKS: Final = Path("/proc/self/task")
_SPAN_S: Final = 0.9
"""The second look at a suspect comes 0.3 s after the first: one wait for a core would fill it."""


class VitalSigns:
    """Measures once a tick; what cannot be measured is None, never zero.

    Args:
        disks: each returns why it cannot write, or None.
    """

    def __init__(self, disks: Sequence[Callable[[], str | None]] = ()) -> None:
        self._disks = tuple(disks)
        self._taken: deque[tuple[float, dict[str, float]]] = deque()

    def measure(self) -> Vitals:
        """The vitals now, and over the time since the last call or, if longer, the last second."""
        troubles = [trouble for disk in self._disks if (trouble := disk()) is not None]
        return Vitals(wall_s=time.time(), starved=self._starved(), disk="; ".join(troubles) or None)

    def _starved(self) -> float | None:
        """The largest share of time that one of our threads waited for a core."""
        waited_s, now_s = _waited_s(), time.monotonic()
        self._taken.append((now_s, waited_s))
        while len(self._taken) > 2 and now_s - self._taken[1][0] >= _SPAN_S:
            self._taken.popleft()
        before_s, before = self._taken[0]
        if not waited_s or now_s <= before_s:
            return None
        long_s = now_s - before_s
        shares = [(s - before[task]) / long_s for task, s in waited_s.items() if task in before]
        return min(1.0, max(shares, default=0.0))


def _waited_s() -> dict[str, float]:
    """Thread -> seconds in which it was ready to run but did not (proc(5), schedstat)."""
    waited_s: dict[str, float] = {}
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return waited_s
    for task in tasks:
        try:
            waited_s[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            continue  # the thread is gone, or this kernel does not count
    return waited_s


# -- crashes -----------------------------------------------------------------------------------

log = logging.getLogger(__package__)


FAILURES: Final = HEALTH.counter("part_failures", "Crashes of a part of the monitor's own loop.",
    ("part",), series="≤ 1 a part", absent="it never crashed")  # fmt: skip


class ErrorBoundary:
    """Which parts of the loop crash, and why."""

    def __init__(self, metrics: CollectorRegistry) -> None:
        self._failures = FAILURES.on(metrics)
        self._broken: dict[str, str] = {}

    @property
    def broken(self) -> Mapping[str, str]:
        return dict(self._broken)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Run one part of the tick; its crash ends here."""
        try:
            yield
        except Exception as exc:
            self._failures.labels(name).inc()
            problem = f"{type(exc).__name__}: {exc}"
            if self._broken.get(name) != problem:
                log.exception("%s failed", name)
            self._broken[name] = problem
        else:
            if self._broken.pop(name, None) is not None:
                log.info("%s works again", name)


# -- components --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaderComponents:
    """What only the active monitor has: made when it takes over, closed when it stands by."""

    notify: Notifier | None = None
    journal: Journal | None = None

    def close(self) -> None:
        if self.notify is not None:
            self.notify.close()
        if self.journal is not None:
            self.journal.close()


@dataclass(frozen=True, slots=True)
class Components:
    config: KeeperConfig
    clock: Clock
    registry: Registry
    poller: Poller
    lighthouse: Lighthouse | None
    judge: Pipeline
    store: Store
    quarantine: Quarantine
    evictors: Evictors
    releaser: Releaser
    metrics: CollectorRegistry
    evidence: Evidence
    rulebook: Rulebook
    pause: PauseSwitch
    work: WorkBook
    vitals: VitalSigns
    lease: Lease
    begin: Callable[[Components, Remembered, Sequence[Eviction], int], LeaderComponents]
    """Makes what only the active monitor has, of these parts, from what the store held, the
    evictions of the last hour, and the number of the last tick."""
    gatekeeper: Gatekeeper | None = None
    schedulers: tuple[CordonReconciler, ...] = ()
    telemetry: Telemetry | None = None
    """None: no OTLP is configured, or its extra is missing."""
    cluster: Cluster | None = None
    """None: nobody is asked what is known of hosts."""
    ends: Ends | None = None

    @property
    def in_force(self) -> KeeperConfig:
        """The configuration now: a reload may have changed it."""
        return self.rulebook.current.config


# -- troubles ----------------------------------------------------------------------------------


def troubles(
    components: Components, result: TickResult, broken: Mapping[str, str], leader: LeaderComponents
) -> Iterator[str]:
    """What is wrong in this tick. `broken`: part of the loop -> why it crashed."""
    for condition, seen in result.health.conditions.items():
        better = condition is Condition.CANNOT_WRITE and components.store.last_error is not None
        if not better:  # the store says it better
            yield f"the monitor doubts itself ({condition}): {seen}"
    if (error := components.store.last_error) is not None:
        waiting = components.store.pending
        yield f"the store does not take writes ({error}): {waiting} kept in memory"
    if (problem := components.lease.standing().problem) is not None:
        yield f"the lease cannot be renewed ({problem}): nobody acts"
    several = (
        components.clock, components.registry, components.evidence, leader.notify, leader.journal,
        components.rulebook, components.gatekeeper, *components.schedulers, components.cluster,
        components.ends, components.telemetry,
    )  # fmt: skip
    for part in several:
        if part is not None:
            yield from part.troubles()
    for name, problem in sorted(broken.items()):
        yield f"{name} failed: {problem}"
    for detector, problem in sorted(result.detector_failures.items()):
        if not any(problem in why for why in result.unknown.values()):
            yield f"{detector} crashed: {problem}"  # other crashes are shown as unknown
