"""Amounts of time that are known to lie in a range, or not known at all. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Amount:
    """Rank-seconds between two bounds; without a bound nothing is known there."""

    low: float | None
    high: float | None
    words: str
    """What it rests on, or why it cannot be told."""

    @property
    def known(self) -> bool:
        """Whether there is any bound."""
        return self.low is not None or self.high is not None

    def plus(self, other: Amount, words: str = "") -> Amount:
        """Both together; a bound that one of them lacks is lacking."""
        told = words or "; ".join(one for one in (self.words, other.words) if one)
        return Amount(_sum(self.low, other.low), _sum(self.high, other.high), told)

    def minus(self, other: Amount, words: str) -> Amount:
        """The difference, as wide as both ranges make it."""
        low = None if other.high is None else -other.high
        high = None if other.low is None else -other.low
        return Amount(_sum(self.low, low), _sum(self.high, high), words)


def between(low: float, high: float | None, words: str) -> Amount:
    """A range; bounds that came the wrong way round are swapped."""
    if not math.isfinite(low) or (high is not None and not math.isfinite(high)):
        return unknown("a damaged record")
    if high is not None and high < low:
        low, high = high, low
    return Amount(low, high, words)


def unknown(words: str) -> Amount:
    """Nothing is known; `words` say why."""
    return Amount(None, None, f"cannot tell: {words}")


def nothing(words: str) -> Amount:
    """Known to be nothing."""
    return Amount(0.0, 0.0, words)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def amount_to_json(amount: Amount) -> dict[str, Any]:
    """Rounded to a tenth: more would be false precision."""
    return {"low": _round(amount.low), "high": _round(amount.high), "words": amount.words}


def _round(value: float | None) -> float | None:
    return round(value, 1) + 0.0 if value is not None and math.isfinite(value) else None


def bounds(amount: Mapping[str, Any]) -> str:
    """`183 to 435`, `at least 12`, `cannot tell`."""
    low, high = amount["low"], amount["high"]
    if low is None and high is None:
        return "cannot tell"
    if low is None:
        return f"at most {high:.0f}"
    if high is None:
        return f"at least {low:.0f}"
    return f"{low:.0f}" if round(low) == round(high) else f"{low:.0f} to {high:.0f}"
