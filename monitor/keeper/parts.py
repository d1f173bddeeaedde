"""What the loop drives, each made before it and handed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monitor.clock import Clock
from monitor.config import KeeperConfig
from monitor.evictors import Evictors
from monitor.evidence import Evidence
from monitor.journal.writer import Journal
from monitor.lighthouse import Lighthouse
from monitor.metrics import Instruments
from monitor.notify import Office
from monitor.pausing import PauseSwitch
from monitor.pipeline import TickResult
from monitor.policy import Policy
from monitor.poller import Poller
from monitor.quarantine import Quarantine
from monitor.rulebook import Rulebook
from monitor.schedulers.follow import Followers
from monitor.snapshot import Snapshot
from monitor.store import Store
from monitor.targets import Registry, TargetsFile
from monitor.vitals import VitalSigns


class Judge(Protocol):
    """What turns a snapshot into decisions: `monitor.pipeline.Pipeline`."""

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot."""
        ...

    def reconfigure(self, config: KeeperConfig, policy: Policy) -> None:
        """Judge by these from the next snapshot on."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop drives."""

    config: KeeperConfig
    clock: Clock
    registry: Registry
    poller: Poller
    lighthouse: Lighthouse | None
    judge: Judge
    store: Store
    quarantine: Quarantine
    evictors: Evictors
    instruments: Instruments
    targets_file: TargetsFile | None = None
    vitals: VitalSigns | None = None
    evidence: Evidence | None = None
    notify: Office | None = None
    journal: Journal | None = None
    rulebook: Rulebook | None = None
    pause: PauseSwitch | None = None
    schedulers: Followers | None = None
