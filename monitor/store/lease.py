"""The thread that renews the lease, or waits until it may be taken.

Theory of operation. The store has one row for the lease: holder, epoch, and a beat that every
renewal increments. The holder renews every second. Any other monitor reads the row every second and
takes the lease when the row has not changed for `TTL_S` (5 s). Taking and renewing are each one
conditional UPDATE, so the database lets only one of two monitors win. Taking increments the epoch,
which is the fencing token.

Two monitors never act at once, whatever the wall clocks do, because no wall clock is read. The
holder counts from just *before* it sent its last successful renewal, on its own clock, and acts
for `TTL_S - MARGIN_S` (4 s) after that. Another monitor counts from just *after* it first read the
current beat, on its own clock, and takes the lease `TTL_S` later at the earliest. The renewal was
committed between these two moments. So the holder stops acting at least `MARGIN_S` before another
begins, unless the two clocks drift apart by a fifth (`MARGIN_S / TTL_S`). Both are CLOCK_BOOTTIME,
which runs while a process is stopped and while its host sleeps: a process that wakes up sees at
its next look that its time is over. A row is unchanged if its beat is. The beat never goes back, so
a monitor that was stopped between two reads draws no wrong conclusion.

In two cases a takeover needs less than 5 s. A holder that ends normally releases the lease. And if
the holder was a process on this host (same boot, same PID namespace) and is gone, nobody acts now.

Clocks cannot help if a process is stopped between its last look at the clock and the system call
that sends a request, or if a virtual machine and its clock are paused together. The fence covers
this: every write carries holder and epoch, and is refused in the same transaction if the row shows
others; an eviction begins with such a write, flushed. What remains is one request that was already
on its way. It names the incarnation that it is for: at worst it ends a process that the other
monitor was about to end too.

While the database is away nobody can renew, so after 4 s nobody acts. Nobody can take the lease
either: if the row is unchanged when the database is back, the holder continues under its old epoch.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lightkeeper.monitor.background import BackgroundWorker
from lightkeeper.monitor.model.eviction import Fence
from lightkeeper.monitor.store.place import Gone, LeaseRow, StoreError

if TYPE_CHECKING:
    from lightkeeper.monitor.store.database import LeaseTable


# -- held lease --------------------------------------------------------------------------------


TTL_S: Final = 5.0
"""A shorter time hands over sooner, but also whenever a busy database pauses."""
RENEW_S: Final = 1.0
MARGIN_S: Final = 1.0
"""The holder stops acting this long before anybody may take over. Longer than two clocks can drift
apart in `TTL_S`, and than a request takes to arrive."""


@dataclass(frozen=True, slots=True)
class Watch:
    """The lease row as last read, and since when it is unchanged."""

    row: LeaseRow
    since_s: float
    """Just after the row was first read in this state."""

    def next(self, row: LeaseRow, read_s: float) -> Watch:
        same = (row.epoch, row.beat, row.holder) == (self.row.epoch, self.row.beat, self.row.holder)
        return Watch(row, self.since_s if same else read_s)

    def lapsed(self, now_s: float) -> bool:
        """True if the holder has stopped acting. The longer of its TTL and ours counts."""
        return now_s - self.since_s >= max(TTL_S, self.row.ttl_s)


# -- holder ------------------------------------------------------------------------------------

_PROC: Final = Path("/proc")


def process_name() -> str:
    """A name that no other process ever has: host, PID, when and where it started."""
    return " ".join((*_whereabouts(os.getpid()), secrets.token_hex(4)))


def renamed(holder: str) -> str:
    """Give a process another name."""
    return " ".join((*holder.split(" ")[:-1], secrets.token_hex(4)))


def holder_words(holder: str) -> str:
    """A holder's name for people."""
    host, pid, *_ = (*holder.split(" "), "?", "?")
    return f"{host} (pid {pid})"


def has_ended(holder: str) -> bool:
    """True if the holder's process has certainly ended; False if this cannot be known."""
    words = holder.split(" ")
    if len(words) != 6:
        return False
    host, pid, started, boot, space, _ = words
    own = _whereabouts(os.getpid())
    if "?" in words or (host, boot, space) != (own[0], own[3], own[4]) or not pid.isdigit():
        return False
    return _started(int(pid)) != started


def _whereabouts(pid: int) -> tuple[str, str, str, str, str]:
    return socket.gethostname() or "?", str(pid), _started(pid), _boot(), _space()


def _started(pid: int) -> str:
    """Clock ticks from boot to a process's start; `-`: it is gone or a zombie; `?`: unknown."""
    try:
        after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "-"
    except (OSError, ValueError):
        return "?"
    return "-" if after_name[0] in "ZX" else after_name[19]  # proc(5): state 3rd, start 22nd


def _boot() -> str:
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or "?"
    return "?"


def _space() -> str:
    """The PID namespace: in another one, the same PID is another process."""
    with suppress(OSError):
        return str((_PROC / "self/ns/pid").stat().st_ino)
    return "?"


# -- standing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """Who acts, as this monitor knows it."""

    active: bool
    """True if this monitor may act now."""
    epoch: int
    holder: str | None
    """As people see it; None: nobody, or not known yet."""
    url: str | None
    since_s: float | None
    """Unix time at which the holder took it."""
    problem: str | None = None
    """Why the lease can be neither renewed nor looked at."""

    @property
    def role(self) -> str:
        """`active` or `standby`."""
        return "active" if self.active else "standby"

    def sentence(self) -> str:
        """A standby's answer to a request that only the active monitor can serve."""
        if self.problem is not None:
            return f"this monitor may not act now: {self.problem}"
        if self.holder is None:
            return "this monitor stands by, and none is active yet"
        return f"this monitor stands by: {self.holder} is active, at {self.url or 'no known URL'}"

    def to_json(self) -> dict[str, Any]:
        body = asdict(self)
        del body["active"]
        return {"role": self.role, **body}


# -- lease -------------------------------------------------------------------------------------

log = logging.getLogger(__name__)


def boot_time_s() -> float:
    """Seconds since boot, including time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease on one store. Safe to ask from any thread; close it when done.

    Args:
        holder: this process, see `process_name`.
        url: of this monitor, for people who ask the other one.
        clock: never stands still, not even while this process is stopped.
    """

    def __init__(
        self, table: LeaseTable, holder: str, url: str, *, clock: Callable[[], float] = boot_time_s
    ) -> None:
        self._table = table
        self._holder, self._url = holder, url
        self._clock = clock
        self._lock = threading.Lock()
        self._epoch: int | None = None
        """Of the lease that this monitor holds; None: it holds none."""
        self._asked_s = 0.0
        """Just before the last successful renewal was sent, on its own clock."""
        self._own_s = -TTL_S
        """When the row was last read as its own while it could not be renewed."""
        self._watch: Watch | None = None
        self._since_s: float | None = None
        self._problem: str | None = None
        self._worker = BackgroundWorker("lease", self.turn, every_s=RENEW_S)

    def start(self) -> None:
        """Try once, then continue in a thread."""
        self.turn()
        self._worker.start(RENEW_S)

    def close(self) -> None:
        """Stop the thread; release the lease if this monitor holds it."""
        self._worker.close(TTL_S)
        with self._lock:
            epoch, self._epoch = self._epoch, None
        if epoch is not None:
            try:
                self._table.give_back(Fence(self._holder, epoch))
            except StoreError as exc:
                log.warning("the lease is not given back, it runs out by itself: %s", exc)

    # -- what the others ask ------------------------------------------------------------------

    def fence(self) -> Fence | None:
        """The fence to write under; None: another monitor holds the lease, or may hold it.

        Failed renewals keep it, until the row is seen to be another monitor's. The database checks
        each write against the row anyway. Acting needs more than a fence: see `why_not`.
        """
        with self._lock:
            return None if self._epoch is None else Fence(self._holder, self._epoch)

    def why_not(self) -> str | None:
        """Why this monitor may not act at this moment; None while it may. Never waits."""
        now_s = self._clock()
        with self._lock:
            epoch, silent_s, problem = self._epoch, now_s - self._asked_s, self._problem
        if (gone := self._table.gone) is not None:
            return gone
        if epoch is None:
            return "another monitor holds the lease, or may hold it"
        if silent_s < TTL_S - MARGIN_S:
            return None
        why = f": {problem}" if problem else ""
        return f"the lease could not be renewed for {silent_s:.0f} s{why}"

    def silenced(self) -> str | None:
        """Why this monitor may not message people. It may while its store takes no writes (a full
        disk) and the row shows that nobody else acts.
        """
        with self._lock:
            own = self._epoch is not None and self._clock() - self._own_s < TTL_S - MARGIN_S
        return None if own and self._table.gone is None else self.why_not()

    def lapse(self) -> str | None:
        """Why this monitor may not act although it has a fence: the database is away."""
        return None if self.fence() is None else self.why_not()

    def standing(self) -> LeaseStanding:
        active = self.why_not() is None
        with self._lock:
            epoch, row = self._epoch, None if self._watch is None else self._watch.row
            problem, since_s = self._problem or self._worker.crash, self._since_s
        if epoch is not None:
            name = holder_words(self._holder)
            return LeaseStanding(active, epoch, name, self._url, since_s, problem)
        if row is None:
            return LeaseStanding(False, 0, None, None, None, problem)
        other = None if row.holder is None else holder_words(row.holder)
        return LeaseStanding(False, row.epoch, other, row.url, row.since_s, problem)

    def writes(self) -> int | None:
        """A number that changes when the active monitor writes; None: not known."""
        with self._lock:
            return None if self._watch is None else self._watch.row.writes

    # -- the thread ---------------------------------------------------------------------------

    def turn(self) -> None:
        """Renew the lease, or take it if that is allowed by now."""
        with self._lock:
            epoch = self._epoch
        try:
            if epoch is not None:
                self._renew(epoch)
            else:
                self._look()
        except StoreError as exc:
            with self._lock:
                if self._problem is None:
                    log.warning("the lease cannot be renewed: %s", exc)
                self._problem = str(exc)
                if isinstance(exc, Gone):
                    # at once: whoever starts on that name has a store of its own
                    self._epoch = None

    def _renew(self, epoch: int) -> None:
        asked_s = self._clock()
        try:
            if self._table.renew(Fence(self._holder, epoch)):
                self._held(epoch, asked_s)
            else:
                self._lost()
        except StoreError:
            row = self._table.read()
            if (row.holder, row.epoch) == (self._holder, epoch):
                self._own_s = asked_s
            raise

    def _look(self) -> None:
        row = self._table.read()
        read_s = self._clock()
        with self._lock:
            watch = Watch(row, read_s) if self._watch is None else self._watch.next(row, read_s)
            self._watch, self._problem = watch, None
        if row.holder == self._holder:  # taken before, but the answer was lost
            self._renew(row.epoch)
        elif row.holder is None or has_ended(row.holder) or watch.lapsed(read_s):
            self._take(row)

    def _take(self, row: LeaseRow) -> None:
        asked_s, wall_s = self._clock(), time.time()
        if self._table.take(row, self._holder, self._url, wall_s, TTL_S):
            self._since_s = wall_s
            self._held(row.epoch + 1, asked_s)

    def _held(self, epoch: int, asked_s: float) -> None:
        with self._lock:
            if self._epoch is None:
                log.info("this monitor holds the lease (epoch %d)", epoch)
            self._epoch, self._asked_s = epoch, asked_s
            self._watch = self._problem = None

    def _lost(self) -> None:
        with self._lock:
            if self._epoch is not None:
                log.warning("the lease is another monitor's: this one stands by")
            self._epoch = self._watch = None
            # if the database fails over to a copy that lags behind, the row may show our old name
            # again: with a new name, this monitor does not take that lease for its own
            self._holder = renamed(self._holder)
