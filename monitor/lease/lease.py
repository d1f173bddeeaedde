"""The thread that renews the lease, or waits until it may be taken."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from monitor.lease.grip import Grip, LeaseRow, Times, Watch
from monitor.lease.holder import gone, renamed, shown
from monitor.lease.standing import Standing
from monitor.store import Fence, StoreError

log = logging.getLogger(__name__)


def boot_time_s() -> float:
    """Seconds since the boot, those asleep too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Table(Protocol):
    """The row: `monitor.lease.table.LeaseTable`. Every call may raise `StoreError`."""

    def read(self) -> LeaseRow:
        """The row as it is."""
        ...

    def take(self, seen: LeaseRow, holder: str, url: str, since_s: float, ttl_s: float) -> bool:
        """Take it, if it is still as it was seen."""
        ...

    def renew(self, fence: Fence) -> bool:
        """One more beat; False when it is another's by now."""
        ...

    def give_back(self, fence: Fence) -> bool:
        """Nobody's, from now on."""
        ...


class Lease:
    """The lease on one store. Safe to ask from any thread; close it when done.

    Args:
        table: with the row.
        holder: this process, see `holder.me`.
        url: of this monitor, for people who ask the other one.
        times: how long it lasts.
        clock: only ever goes on, also while this process is stopped.
    """

    def __init__(
        self,
        table: Table,
        holder: str,
        url: str,
        *,
        times: Times | None = None,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._table = table
        self._holder, self._url = holder, url
        self._times, self._clock = times or Times(), clock
        self._lock = threading.Lock()
        self._grip: Grip | None = None
        self._watch: Watch | None = None
        self._since_s: float | None = None
        self._problem: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Try once, then go on in a thread."""
        self.turn()
        self._thread.start()

    def close(self) -> None:
        """Stop, and give it back, if it is held."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(self._times.ttl_s)
        with self._lock:
            grip, self._grip = self._grip, None
        if grip is not None:
            try:
                self._table.give_back(Fence(self._holder, grip.epoch))
            except StoreError as exc:
                log.warning("the lease is not given back, it runs out by itself: %s", exc)

    # -- what the others ask ------------------------------------------------------------------

    def fence(self) -> Fence | None:
        """Under which to write; None when another monitor has, or may have, the lease.

        Not None while it could not be renewed for a while: nobody else has it then either, as
        long as the row was not seen to be another's. To act takes more: `why_not`.
        """
        with self._lock:
            return None if self._grip is None else Fence(self._holder, self._grip.epoch)

    def why_not(self) -> str | None:
        """Why this monitor may not act at this moment; None while it may. Never waits."""
        now_s = self._clock()
        with self._lock:
            grip, problem = self._grip, self._problem
        if grip is None:
            return "another monitor holds the lease, or may hold it"
        if grip.left_s(now_s) > 0:
            return None
        why = f": {problem}" if problem else ""
        return f"the lease could not be renewed for {now_s - grip.asked_s:.0f} s{why}"

    def lapse(self) -> str | None:
        """Why it may not act although nobody else is known to: the database is away."""
        return None if self.fence() is None else self.why_not()

    def standing(self) -> Standing:
        """Who acts."""
        active = self.why_not() is None
        with self._lock:
            grip, watch, problem = self._grip, self._watch, self._problem
            if grip is not None:
                return Standing(
                    active, grip.epoch, shown(self._holder), self._url, self._since_s, problem
                )
        if watch is None:
            return Standing(False, 0, None, None, None, problem)
        row = watch.row
        name = None if row.holder is None else shown(row.holder)
        return Standing(False, row.epoch, name, row.url, row.since_s, problem)

    def writes(self) -> int | None:
        """A number that is another one after the active monitor wrote; None: not known."""
        with self._lock:
            return None if self._watch is None else self._watch.row.writes

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(self._times.renew_s):
            try:
                self.turn()
            except Exception:  # a bug here must not end in a lease that nobody renews or takes
                log.exception("the lease crashed")

    def turn(self) -> None:
        """Renew it, or take it if that is allowed by now."""
        with self._lock:
            grip = self._grip
        try:
            if grip is not None:
                self._renew(grip.epoch)
            else:
                self._look()
        except StoreError as exc:
            with self._lock:
                if self._problem is None:
                    log.warning("the lease cannot be renewed: %s", exc)
                self._problem = str(exc)

    def _renew(self, epoch: int) -> bool:
        asked_s = self._clock()
        renewed = self._table.renew(Fence(self._holder, epoch))
        if renewed:
            self._held(epoch, asked_s)
        else:
            self._lost()
        return renewed

    def _look(self) -> None:
        row = self._table.read()
        read_s = self._clock()
        with self._lock:
            watch = Watch(row, read_s) if self._watch is None else self._watch.next(row, read_s)
            self._watch, self._problem = watch, None
        if row.holder == self._holder:  # taken before, and the answer was lost
            self._renew(row.epoch)
        elif row.holder is None or gone(row.holder) or watch.lapsed(read_s, self._times.ttl_s):
            self._take(row)

    def _take(self, row: LeaseRow) -> None:
        asked_s, wall_s = self._clock(), time.time()
        if self._table.take(row, self._holder, self._url, wall_s, self._times.ttl_s):
            self._since_s = wall_s
            self._held(row.epoch + 1, asked_s)

    def _held(self, epoch: int, asked_s: float) -> None:
        lasts_s = self._times.ttl_s - self._times.margin_s
        with self._lock:
            if self._grip is None:
                log.info("this monitor holds the lease (epoch %d)", epoch)
            self._grip = Grip(epoch, asked_s, lasts_s)
            self._watch = self._problem = None

    def _lost(self) -> None:
        with self._lock:
            if self._grip is not None:
                log.warning("the lease is another monitor's: this one stands by")
            self._grip = self._watch = None
            # should a database fail over to a copy that lags behind, the row may bear our name
            # again: under that name this monitor has lost
            self._holder = renamed(self._holder)
