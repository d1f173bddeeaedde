"""Who acts: taking over, standing by, and what a standby reads of what the active monitor writes.

Runs in the tick, so that nothing of it happens while a tick decides. The lease itself is renewed by
a thread of its own, and asked again right before every act.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monitor.keeper.docket import Docket
from monitor.keeper.observed import held_back
from monitor.keeper.parts import Deeds, Parts
from monitor.pausing import SWITCH
from monitor.store import Fence, Remembered

if TYPE_CHECKING:
    from monitor.lease import Lease

log = logging.getLogger(__package__)

_READ_SHARE: Final = 10.0
"""A standby reads a store with thousands of incidents no more than a tenth of its time."""


class Handover:
    """Whether this monitor acts, and what it has only while it does.

    Args:
        parts: what the loop drives.
        docket: decisions without an end.
        show: what the store holds, for whoever looks at this monitor.
    """

    def __init__(self, parts: Parts, docket: Docket, show: Callable[[Remembered], None]) -> None:
        self._parts = parts
        self._docket = docket
        self._show = show
        self._fence: Fence | None = None
        """Under which this monitor acts, once it has taken over."""
        self._read: int | None = None
        """The store's number of writes when a standby read it last."""
        self._next_s = 0.0
        self.deeds = Deeds(parts.notify, parts.journal)

    @property
    def leading(self) -> bool:
        """Whether this monitor decides and acts; also while it may not at this very moment."""
        return self._parts.lease is None or self._fence is not None

    @property
    def epoch(self) -> int:
        """Of the lease under which it acts; 0: there is none."""
        return 0 if self._fence is None else self._fence.epoch

    def check(self, tick: int) -> None:
        """Take over, or stand by, if that has changed; as a standby read what the active wrote.

        Raises:
            StoreError: the store cannot be read: tried again in the next tick.
        """
        lease = self._parts.lease
        if lease is None:
            return
        fence = lease.fence()
        if fence is None:
            if self._fence is not None:
                self._stand_by()
            self._look_on(lease)
        elif fence != self._fence:
            self._stand_by()
            self._lead(fence, tick)

    def close(self) -> None:
        """End what only the active monitor has."""
        if self._parts.lease is not None:
            self.deeds.close()

    def _stand_by(self) -> None:
        parts, was = self._parts, self._fence
        self._fence = self._read = None
        dropped = parts.store.follow()
        parts.evictors.follow(())
        deeds, self.deeds = self.deeds, Deeds()
        deeds.close()
        if was is not None:
            log.warning("this monitor stands by from now on; %d writes are dropped", dropped)

    def _look_on(self, lease: Lease) -> None:
        """What the active monitor wrote since the last look."""
        writes, parts = lease.writes(), self._parts
        began_s = parts.clock.now_s()
        if writes is None or writes == self._read or began_s < self._next_s:
            return
        found = parts.store.remembered()
        parts.evictors.follow(found.evictions)
        progress, would = parts.evictors.progress(), held_back(found.decisions)
        parts.judge.go_on(found.incidents, progress, deciding=False, would=would)
        self._adopt(found)
        self._read = writes
        now_s = parts.clock.now_s()
        self._next_s = now_s + _READ_SHARE * (now_s - began_s)

    def _lead(self, fence: Fence, tick: int) -> None:
        parts = self._parts
        found = parts.store.lead(fence)
        evictions = parts.evictors.restore(found.evictions)
        parts.judge.go_on(found.incidents, evictions, would=held_back(found.decisions))
        self._adopt(found)
        parts.registry.save_all(found.targets)
        if parts.evidence is not None:
            parts.evidence.look_again()
        self._docket.take_over(found, parts.clock.now_s())
        if parts.begin is not None:
            self.deeds = parts.begin(found, evictions, tick)
        self._fence = fence
        log.info("this monitor acts from now on (epoch %d)", fence.epoch)

    def _adopt(self, found: Remembered) -> None:
        self._parts.quarantine.take_over(found.quarantine, found.quarantine_events)
        self._parts.registry.adopt(found.targets)
        if self._parts.pause is not None:
            self._parts.pause.take_over(found.switches.get(SWITCH))
        if self._parts.gatekeeper is not None:
            self._parts.gatekeeper.remember(found.evictions)
        self._show(found)
