"""When a lease is held, and when it may be taken: functions of rows and moments. Pure.

All moments are seconds on one's own clock, which only ever goes on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """How long a lease lasts, in seconds."""

    ttl_s: float = 5.0
    """Shorter hands over sooner, and for a pause of a busy database too."""
    renew_s: float = 1.0
    margin_s: float = 1.0
    """The holder stops acting so long before anybody may take over. Above what two clocks run
    apart in `ttl_s`, and the time of a request that is on its way."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """The row, as it was read."""

    epoch: int
    beat: int
    writes: int
    """Batches written to the store: a reader that sees another number reads again."""
    holder: str | None
    url: str | None
    since_s: float | None
    """Unix time at which it was taken, by the wall of who took it: for people alone."""
    ttl_s: float


@dataclass(frozen=True, slots=True)
class Grip:
    """A lease that this monitor holds."""

    epoch: int
    asked_s: float
    """Just before the last renewal that went through was sent."""
    beat_s: float
    """How long it lasts from then."""

    def left_s(self, now_s: float) -> float:
        """For how long one may still act; not positive when one may not."""
        return self.asked_s + self.beat_s - now_s


@dataclass(frozen=True, slots=True)
class Watch:
    """Somebody else's row, and since when it stands still."""

    row: LeaseRow
    since_s: float
    """Just after it was first read like this."""

    def next(self, row: LeaseRow, read_s: float) -> Watch:
        """After another look."""
        same = (row.epoch, row.beat, row.holder) == (self.row.epoch, self.row.beat, self.row.holder)
        return Watch(row, self.since_s if same else read_s)

    def lapsed(self, now_s: float, ttl_s: float) -> bool:
        """Whether its holder cannot be acting any more. Of two opinions the longer counts."""
        return now_s - self.since_s >= max(ttl_s, self.row.ttl_s)
