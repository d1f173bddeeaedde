"""What the trainers' own lines say about a run: its loss, and whether a committed step was lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from lightkeeper.worker_server.wire import split_rank_name

Event = Mapping[str, Any]
WINDOW: Final = 20
"""Steps of which the mean is compared: a batch of one step says little about the model."""


def curve(events: Iterable[Event]) -> dict[int, float]:
    """Committed step -> loss: the mean over the groups that committed it, each counted once."""
    losses: dict[int, dict[str, float]] = {}
    for event in events:
        if event["event"] == "step" and event["committed"] and event["loss"] is not None:
            group, _ = split_rank_name(event["rank"])
            losses.setdefault(event["step"], {})[group] = event["loss"]
    return {step: fmean(groups.values()) for step, groups in sorted(losses.items())}


def smoothed(losses: Mapping[int, float]) -> dict[int, float]:
    """Step -> mean of the `WINDOW` steps that end there, from the first whole window on."""
    steps, values = list(losses), list(losses.values())
    return {
        steps[end - 1]: fmean(values[end - WINDOW : end]) for end in range(WINDOW, len(steps) + 1)
    }


def apart(losses: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    """Step -> difference of the smoothed losses, nats a byte, where both have one."""
    ours, theirs = smoothed(losses), smoothed(other)
    return {step: ours[step] - theirs[step] for step in ours if step in theirs}


def lost(events: Sequence[Event], last: int) -> list[str]:
    """What contradicts that every step up to `last` was committed once and for all; one line each.

    A step that had been lost would be missing, be committed twice by one rank, or leave other
    weights with those who did it again than with those who had done it before.
    """
    committed = [e for e in events if e["event"] == "step" and e["committed"]]
    problems = [f"step {n} is missing" for n in range(1, last + 1) if n not in _steps(committed)]
    seen: set[tuple[str, int]] = set()
    for event in committed:
        key = (event["rank"], event["step"])
        if key in seen:
            problems.append(f"{key[0]} committed step {key[1]} twice")
        seen.add(key)
    prints: dict[tuple[int, int], set[str]] = {}
    for event in events:
        if event["event"] == "fingerprint":
            prints.setdefault((event["step"], event["piece"]), set()).add(event["sha256"])
    problems += [
        f"piece {piece} has {len(hashes)} sets of weights after step {step}"
        for (step, piece), hashes in sorted(prints.items())
        if len(hashes) > 1
    ]
    return problems


def _steps(events: Iterable[Event]) -> set[int]:
    return {event["step"] for event in events}
