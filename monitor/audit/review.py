"""What a person said of an incident afterwards. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Judgement(StrEnum):
    """Whether the incident was what the monitor said, and what it did was called for."""

    RIGHT = "right"
    WRONG = "wrong"  # an eviction of what was healthy: it counts as a cost
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True)
class Review:
    """One person's word; the latest stands, the audit log has all."""

    judgement: Judgement
    by: str
    note: str
    at_s: float


def review_to_json(review: Review) -> dict[str, Any]:
    """Plain JSON types."""
    return {**asdict(review), "judgement": str(review.judgement)}


def review_from_json(body: Any) -> Review | None:
    """Inverse of `review_to_json`; None for anything else."""
    try:
        return Review(
            Judgement(body["judgement"]), str(body["by"]), str(body["note"]), float(body["at_s"])
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None
