"""Maintenance windows: times, in UTC, in which nobody is evicted."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Weekly:
    """Every week on these days, from one time of the day to another."""

    name: str
    days: tuple[int, ...]
    """On which it begins; 0 is Monday."""
    from_s: float
    """Of the day."""
    to_s: float
    """Of the day; of the next one when it is not after `from_s`."""

    def until_s(self, now_s: float) -> float | None:
        """Unix time at which it ends, when it is open now; None while it is not."""
        lasts_s = (self.to_s - self.from_s) % _DAY_S or _DAY_S
        today = datetime.fromtimestamp(now_s, UTC).replace(
            hour=0, minute=0, second=0, microsecond=0
        )
        for midnight in (today, today - timedelta(days=1)):
            began_s = midnight.timestamp() + self.from_s
            if midnight.weekday() in self.days and began_s <= now_s < began_s + lasts_s:
                return began_s + lasts_s
        return None


@dataclass(frozen=True, slots=True)
class Once:
    """From one moment to another."""

    name: str
    from_s: float
    """Unix time, as is `to_s`."""
    to_s: float

    def until_s(self, now_s: float) -> float | None:
        """Unix time at which it ends, when it is open now; None while it is not."""
        return self.to_s if self.from_s <= now_s < self.to_s else None


Window = Weekly | Once


def moment(at_s: float) -> str:
    """A Unix time for people and for the policy file."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
