"""Who acts, as far as one monitor knows. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Standing:
    """Who acts, as far as this monitor knows."""

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
        """For whoever asked a standby for something that only the active monitor does."""
        if self.holder is None:
            return "this monitor stands by, and none is active yet"
        return f"this monitor stands by: {self.holder} is active, at {self.url or 'no known URL'}"

    def to_json(self) -> dict[str, Any]:
        """For pages and programs."""
        return {
            "role": self.role,
            "holder": self.holder,
            "url": self.url,
            "since_s": self.since_s,
            "epoch": self.epoch,
            "problem": self.problem,
        }
