"""What the program called at this place before: history settles what a count cannot.

Theory of operation. Training repeats itself. What a rank called so far is compared with its own
past: the longest stretch of calls up to here that occurred before says what came next then. A call
counts as the same when its group, signature and call site are. A past in which all calls are the
same says nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Final

_LONGEST: Final = 64
"""Calls of context that are compared; more tell no more, fewer confuse loops with steps."""


class Habit(Enum):
    """Whether a call is what the program makes at its place."""

    USUAL = "usual"
    UNUSUAL = "unusual"
    UNKNOWN = "unknown"


def habit(calls: Sequence[Hashable]) -> Habit:
    """Whether the last call is what followed the calls before it in earlier steps."""
    before, now = calls[:-1], calls[-1]
    best, followers = 0, set[Hashable]()
    for end in range(1, len(before)):
        length = _common_suffix(before, end)
        if length > best:
            best, followers = length, {before[end]}
        elif length == best and length:
            followers.add(before[end])
    if len(set(before[len(before) - best :])) < 2:
        return Habit.UNKNOWN
    return Habit.USUAL if now in followers else Habit.UNUSUAL


def _common_suffix(before: Sequence[Hashable], end: int) -> int:
    """How many calls before `end` are those at the end."""
    length = 0
    while length < min(end, _LONGEST) and before[end - 1 - length] == before[-1 - length]:
        length += 1
    return length
