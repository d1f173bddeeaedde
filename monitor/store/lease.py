"""The thread that renews the lease, or waits until it may be taken.

Theory of operation. The store has one row: holder, epoch, and a beat that every renewal raises by
one. The holder renews every second; another monitor reads the row every second and takes it when
it has stood still for `TTL_S` (5 s). Taking and renewing are each one conditional UPDATE, so the
database's own atomicity lets one of two win. Taking raises the epoch: the fencing token.

Why there are never two that act, whatever any wall clock does: no wall clock is read. The holder
counts from the moment *before* it sent the last renewal that went through, on its own clock, and
acts for `TTL_S - MARGIN_S` (4 s) after it. Another one counts from the moment *after* it first
read this beat, on its own clock, and takes the row `TTL_S` later at the earliest. The renewal was
committed after the first moment and before the second; so the holder has stopped acting at least
`MARGIN_S` before another begins, as long as the two clocks do not run apart by a fifth
(`MARGIN_S / TTL_S`). Both are CLOCK_BOOTTIME, which runs while a process is stopped and while
its host sleeps: who wakes knows at its next look that its time is over. "Unchanged" is meant by
the beat, which never goes back, so a watcher that was itself stopped between two looks draws no
wrong conclusion.

Two cases take less than 5 s. A holder that ends in order gives the row back. And where the holder
was a process of this very host (same boot, same PID namespace) that is not there any more, nobody
is left who could act.

What a clock cannot prevent: a process stopped between its last look at the clock and the system
call that sends a request, or a virtual machine whose clocks stood still with it. Against that there
is the fence: every write carries holder and epoch and is refused, in the same transaction, when the
row shows others; an eviction begins with such a write, flushed. What is left is the one request
that was on its way, and it names the incarnation that it means: at worst it ends a process that the
other monitor was about to end too.

The database away: nobody can renew, so nobody acts 4 s later; nobody can take either, so when it
is back and the row is as it was, the holder continues under its old epoch.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from monitor.background import BackgroundWorker
from monitor.model.eviction import Fence
from monitor.store.place import LeaseRow, StoreError

if TYPE_CHECKING:
    from monitor.store.database import LeaseTable


# -- grip --------------------------------------------------------------------------------------


TTL_S: Final = 5.0
"""Shorter hands over sooner, and for a pause of a busy database too."""
RENEW_S: Final = 1.0
MARGIN_S: Final = 1.0
"""The holder stops acting so long before anybody may take over. Above what two clocks run apart in
`TTL_S`, and the time of a request that is on its way."""


@dataclass(frozen=True, slots=True)
class Grip:
    """A lease that this monitor holds. All moments are seconds on one's own clock, which never
    stands still.
    """

    epoch: int
    asked_s: float
    """Just before the last renewal that went through was sent."""

    def left_s(self, now_s: float) -> float:
        """How long it may still act; not positive if it may not."""
        return self.asked_s + TTL_S - MARGIN_S - now_s


@dataclass(frozen=True, slots=True)
class Watch:
    """Another's row, and since when it is unchanged."""

    row: LeaseRow
    since_s: float
    """Just after it was first read like this."""

    def next(self, row: LeaseRow, read_s: float) -> Watch:
        same = (row.epoch, row.beat, row.holder) == (self.row.epoch, self.row.beat, self.row.holder)
        return Watch(row, self.since_s if same else read_s)

    def lapsed(self, now_s: float) -> bool:
        """Whether its holder has stopped acting. The longer of two limits counts."""
        return now_s - self.since_s >= max(TTL_S, self.row.ttl_s)


# -- holder ------------------------------------------------------------------------------------

_PROC: Final = Path("/proc")


def process_name() -> str:
    """A name that no other process ever has: host, PID, when and where it started."""
    return " ".join((*_whereabouts(os.getpid()), secrets.token_hex(4)))


def renamed(holder: str) -> str:
    """The same process under another name."""
    return " ".join((*holder.split(" ")[:-1], secrets.token_hex(4)))


def shown(holder: str) -> str:
    """A holder's name for people."""
    host, pid, *_ = (*holder.split(" "), "?", "?")
    return f"{host} (pid {pid})"


def has_ended(holder: str) -> bool:
    """Whether that process has certainly ended; False wherever this cannot be known."""
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
    """Ticks from the boot to its start; `-`: there is no such process, or only its zombie."""
    try:
        after_name = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return "-"
    except (OSError, ValueError):
        return "?"
    return "-" if after_name[0] in "ZX" else after_name[19]  # proc(5): state 3rd, start 22nd


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip() or "?"
    except OSError:
        return "?"


def _space() -> str:
    """PID namespace: the same number is another process in another one."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return "?"


# -- standing ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeaseStanding:
    """Who acts, as this monitor knows it."""

    active: bool
    """Whether this one may act now."""
    epoch: int
    holder: str | None
    """For people; None: nobody, or not known yet."""
    url: str | None
    since_s: float | None
    """Unix time at which the holder took it."""
    problem: str | None = None
    """Why the lease can be neither renewed nor looked at."""

    @property
    def role(self) -> str:
        """In one word."""
        return "active" if self.active else "standby"

    def sentence(self) -> str:
        """The answer to who asked a standby for something that only the active monitor does."""
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
    """Seconds since the boot, those asleep too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """The lease on one store. Safe to ask from any thread; close it when done.

    Args:
        holder: this process, see `process_name`.
        url: of this monitor, for people who ask the other one.
        clock: never stands still, not even while this process is stopped.
    """

    def __init__(
        self,
        table: LeaseTable,
        holder: str,
        url: str,
        *,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._table = table
        self._holder, self._url = holder, url
        self._clock = clock
        self._lock = threading.Lock()
        self._grip: Grip | None = None
        self._watch: Watch | None = None
        self._since_s: float | None = None
        self._problem: str | None = None
        self._worker = BackgroundWorker("lease", self.turn, every_s=RENEW_S)

    def start(self) -> None:
        """Try once, then continue in a thread."""
        self.turn()
        self._worker.start(RENEW_S)

    def close(self) -> None:
        """Stop, and give it back, if it is held."""
        self._worker.close(TTL_S)
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

    def standing(self) -> LeaseStanding:
        active = self.why_not() is None
        with self._lock:
            grip, watch = self._grip, self._watch
            problem = self._problem or self._worker.crash
            if grip is not None:
                return LeaseStanding(
                    active, grip.epoch, shown(self._holder), self._url, self._since_s, problem
                )
        if watch is None:
            return LeaseStanding(False, 0, None, None, None, problem)
        row = watch.row
        name = None if row.holder is None else shown(row.holder)
        return LeaseStanding(False, row.epoch, name, row.url, row.since_s, problem)

    def writes(self) -> int | None:
        """Changes whenever the active monitor writes; None: not known."""
        with self._lock:
            return None if self._watch is None else self._watch.row.writes

    # -- the thread ---------------------------------------------------------------------------

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

    def _renew(self, epoch: int) -> None:
        asked_s = self._clock()
        if self._table.renew(Fence(self._holder, epoch)):
            self._held(epoch, asked_s)
        else:
            self._lost()

    def _look(self) -> None:
        row = self._table.read()
        read_s = self._clock()
        with self._lock:
            watch = Watch(row, read_s) if self._watch is None else self._watch.next(row, read_s)
            self._watch, self._problem = watch, None
        if row.holder == self._holder:  # taken before, and the answer was lost
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
            if self._grip is None:
                log.info("this monitor holds the lease (epoch %d)", epoch)
            self._grip = Grip(epoch, asked_s)
            self._watch = self._problem = None

    def _lost(self) -> None:
        with self._lock:
            if self._grip is not None:
                log.warning("the lease is another monitor's: this one stands by")
            self._grip = self._watch = None
            # should a database fail over to a copy that lags behind, the row may bear our name
            # again: under that name this monitor has lost
            self._holder = renamed(self._holder)
