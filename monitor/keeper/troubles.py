"""What is wrong with the monitor itself, one line each, for the page that people read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from monitor.keeper.parts import Deeds, Parts
from monitor.pipeline import TickResult
from monitor.self_health import Condition


def troubles(
    parts: Parts, result: TickResult, broken: Mapping[str, str], deeds: Deeds
) -> Iterator[str]:
    """Of this tick; `broken` says which parts of the loop crashed, and why; `deeds` is what it has
    while it acts.
    """
    for condition, seen in result.health.conditions.items():
        told = condition is Condition.CANNOT_WRITE and parts.store.last_error is not None
        if not told:  # the store says it better
            yield f"the monitor doubts itself ({condition}): {seen}"
    if (error := parts.store.last_error) is not None:
        waiting = parts.store.pending
        yield f"the store does not take writes ({error}): {waiting} kept in memory"
    if parts.lease is not None and (problem := parts.lease.standing().problem) is not None:
        yield f"the lease cannot be renewed ({problem}): nobody acts"
    several = (
        parts.evidence, deeds.notify, deeds.journal, parts.rulebook, parts.gatekeeper,
        parts.schedulers, parts.auditor,
    )  # fmt: skip
    for part in several:
        if part is not None:
            yield from part.troubles()
    for name, problem in sorted(broken.items()):
        yield f"{name} failed: {problem}"
    for detector, problem in sorted(result.detector_failures.items()):
        if not any(problem in why for why in result.unknown.values()):
            yield f"{detector} crashed: {problem}"  # the others are told as unknown
