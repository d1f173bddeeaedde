"""What the loop drives, each made before it and handed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from monitor.clock import Clock
from monitor.config import KeeperConfig
from monitor.evictors import Evictors
from monitor.evidence import Evidence
from monitor.journal.writer import Journal
from monitor.keeper.auditor import Auditor
from monitor.lighthouse import Lighthouse
from monitor.metrics import Instruments
from monitor.notify import Office
from monitor.pipeline import TickResult
from monitor.poller import Poller
from monitor.quarantine import Quarantine
from monitor.snapshot import Snapshot
from monitor.store import Store
from monitor.targets import Registry, TargetsFile
from monitor.vitals import VitalSigns


class Judge(Protocol):
    """What turns a snapshot into decisions: `monitor.pipeline.Pipeline`."""

    def tick(self, snapshot: Snapshot) -> TickResult:
        """Judge one snapshot."""
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
    auditor: Auditor | None = None
