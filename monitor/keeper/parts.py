"""What the loop drives, each made before it and handed over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from monitor.clock import Clock
from monitor.config import KeeperConfig
from monitor.evictors import Evictors, Gatekeeper
from monitor.evidence import Evidence
from monitor.journal.writer import Journal
from monitor.keeper.auditor import Auditor
from monitor.lease import Lease
from monitor.lighthouse import Lighthouse
from monitor.metrics import Instruments
from monitor.notify import Office
from monitor.pausing import PauseSwitch
from monitor.pipeline import Pipeline
from monitor.poller import Poller
from monitor.quarantine import Quarantine
from monitor.rulebook import Rulebook
from monitor.schedulers.follow import Followers
from monitor.snapshot import EvictionProgress
from monitor.store import Remembered, Store
from monitor.targets import Registry, TargetsFile
from monitor.vitals import VitalSigns


@dataclass(frozen=True, slots=True)
class Deeds:
    """What only the monitor has that acts: made when it begins to, closed when it ends."""

    notify: Office | None = None
    journal: Journal | None = None

    def close(self) -> None:
        """End both."""
        if self.notify is not None:
            self.notify.close()
        if self.journal is not None:
            self.journal.close()


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop drives."""

    config: KeeperConfig
    clock: Clock
    registry: Registry
    poller: Poller
    lighthouse: Lighthouse | None
    judge: Pipeline
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
    lease: Lease | None = None
    """None: there is no other monitor, and this one acts."""
    begin: Callable[[Remembered, Sequence[EvictionProgress], int], Deeds] | None = None
    """Makes what only the active monitor has, from what the store held, the evictions of the last
    hour, and the number of the last tick."""
    rulebook: Rulebook | None = None
    pause: PauseSwitch | None = None
    gatekeeper: Gatekeeper | None = None
    schedulers: Followers | None = None
