"""What a running monitor's evictions took: times for the model from its own incidents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeGuard

_HANGS: Final = ("not_entered", "deadlock", "mismatch")
_SLOW: Final = ("straggler",)
_LATEST_S: Final = 1e11
"""Of any time since 1970; NaN is not less."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians in seconds; None where no eviction told it."""

    evictions: int = 0
    hang_s: float | None = None
    """From the fault until its eviction was asked for, guards that held included."""
    slow_s: float | None = None
    evict_s: float | None = None
    requorum_s: float | None = None
    away_s: float | None = None
    """From the group's end until it committed again: restart and heal."""


def measured(incidents: Iterable[Mapping[str, Any]]) -> Measured:
    """Medians over those incidents, as `GET /v1/incidents` tells them, that ended in an eviction.

    Whatever is damaged or missing in one is left out.
    """
    spans: dict[str, list[float]] = {"hang": [], "slow": [], "evict": [], "quorum": [], "away": []}
    evictions = 0
    for one in incidents:
        at_s = _moments(one)
        began_s, asked_s = at_s.get("began"), at_s.get("asked")
        if began_s is None or asked_s is None:
            continue
        evictions += 1
        gone_s = at_s.get("gone")
        if one.get("kind") in _HANGS:
            spans["hang"].append(asked_s - began_s)
        if one.get("kind") in _SLOW:
            spans["slow"].append(asked_s - began_s)
        if gone_s is not None:
            spans["evict"].append(gone_s - asked_s)
            for name, until in (("quorum", "survivors"), ("away", "rejoined")):
                end_s = at_s.get(until)
                if end_s is not None:
                    spans[name].append(end_s - gone_s)
    found = {name: max(0.0, median(said)) if said else None for name, said in spans.items()}
    return Measured(
        evictions, found["hang"], found["slow"], found["evict"], found["quorum"], found["away"]
    )


def _moments(incident: Mapping[str, Any]) -> dict[str, float]:
    """When each part of its account ended."""
    account = incident.get("account")
    parts = account.get("intervals") if isinstance(account, dict) else None
    found: dict[str, float] = {}
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict):
            continue
        until, start_s, end_s = part.get("until"), part.get("start_s"), part.get("end_s")
        if isinstance(until, str) and _is_time(start_s) and _is_time(end_s):
            found.setdefault("began", start_s)
            found[until] = end_s
    return found


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) < _LATEST_S
