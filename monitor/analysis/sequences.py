"""Where the members of a group stop doing the same thing, and who of them differs.

Theory of operation. All members must give the same signature to the same sequence of a group
(ALGORITHMS.md section 4). A strict majority of the group makes the rest the culprits; without one
nobody is accused, unless the past of the ranks tells which side calls something new. If a culprit's
calls fit the others' again when moved by one, it skipped or added a collective, and the size or op
at which it shows is only the consequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.analysis.calls import Calls
from monitor.analysis.finding import Fault
from monitor.analysis.habit import Habit
from monitor.analysis.index import Index
from monitor.analysis.witness import Witness
from monitor.flight_recorder.signature import silent

_WINDOW: Final = 32
"""Sequences after a divergence that are compared to tell a slip from a wrong size."""
_BEFORE: Final = 256
"""Sequences before a divergence that tell what usually follows."""
_PER_GROUP: Final = 64
"""Diverging sequences looked at in one group: after a slip, all differ."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first sequence of a group at which these ranks differ from their peers."""

    kind: Fault
    group: int
    sequence: int
    sides: tuple[tuple[int, ...], ...]
    """Ranks by what they gave, the largest side first."""
    rows: tuple[int, ...]
    """An entry of each side."""
    said: tuple[str, ...]
    """What each side gave, for people."""
    culprits: tuple[int, ...]
    """Empty on a tie."""
    live: bool
    """Whether somebody is still inside."""

    @property
    def passing(self) -> bool:
        """Whether all go on as before: what follows is not its consequence."""
        return self.kind is Fault.SILENT_MISMATCH

    def explains(self, group: int, sequence: int) -> bool:
        """Whether a hang in this collective follows from it."""
        lasting = self.live or self.kind in (Fault.SKIPPED, Fault.EXTRA)
        return lasting and group == self.group and sequence >= self.sequence


def divergences(index: Index, calls: Calls, witness: Witness) -> tuple[Divergence, ...]:
    """All of them, by group and sequence; one for each set of ranks that differs."""
    found: list[Divergence] = []
    known: dict[int, list[Divergence]] = {}
    for begin, end in _differing(calls):
        earlier = known.setdefault(int(calls.group[begin]), [])
        tied = any(not d.culprits and not d.passing for d in earlier)
        if len(earlier) > _PER_GROUP or (tied and not _most_agree(index, calls, begin, end)):
            continue
        one = _judge(index, calls, witness, slice(begin, end))
        if not any(_repeats(one, before) for before in earlier):
            found.append(one)
        earlier.append(one)
    return tuple(found)


def _most_agree(index: Index, calls: Calls, begin: int, end: int) -> bool:
    """Whether a strict majority of the group gave the same; cheaper than asking their past."""
    size = max(end - begin, len(index.job.groups[int(calls.group[begin])].members))
    return 2 * int(np.unique(calls.given[begin:end], return_counts=True)[1].max()) > size


def _repeats(one: Divergence, before: Divergence) -> bool:
    """Whether a divergence shows nobody who did not differ before.

    After a tie everything may be its consequence, but for those who differ where its sides agree.
    """
    if one.culprits and not before.culprits and not before.passing:
        agreeing = set(one.sides[0])
        return sum(bool(agreeing & set(side)) for side in before.sides) < 2
    if one.culprits:
        return set(one.culprits) <= set(before.culprits)
    return one.sides == before.sides or not before.passing


def _differing(calls: Calls) -> Iterable[tuple[int, int]]:
    """Ranges of calls of one (group, sequence) that are not all the same."""
    if not len(calls.group):
        return
    new = np.ones(len(calls.group), dtype=np.bool_)
    new[1:] = (np.diff(calls.group) != 0) | (np.diff(calls.sequence) != 0)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(new))
    low = np.minimum.reduceat(calls.given, starts)
    high = np.maximum.reduceat(calls.given, starts)
    for at in np.flatnonzero(low != high).tolist():
        yield int(starts[at]), int(ends[at])


def _judge(index: Index, calls: Calls, witness: Witness, here: slice) -> Divergence:
    sides: dict[int, list[tuple[int, int]]] = {}
    ranks, rows = calls.rank[here].tolist(), calls.row[here].tolist()
    for rank, row, given in zip(ranks, rows, calls.given[here].tolist(), strict=True):
        sides.setdefault(given, []).append((rank, row))
    ordered = sorted(sides.values(), key=lambda side: (-len(side), side))
    group, sequence = int(calls.group[here][0]), int(calls.sequence[here][0])
    joined = sum(len(side) for side in ordered)
    size = max(joined, len(index.job.groups[group].members))
    culprits: list[int] = []
    if 2 * len(ordered[0]) > size:
        culprits = sorted(rank for side in ordered[1:] for rank, _ in side)
    else:
        habits = [witness.of(row for _, row in side) for side in ordered]
        if habits.count(Habit.USUAL) == 1 and habits.count(Habit.UNUSUAL) == len(habits) - 1:
            ordered.insert(0, ordered.pop(habits.index(Habit.USUAL)))
            culprits = sorted(rank for side in ordered[1:] for rank, _ in side)
    shown = [calls.signatures[int(calls.by_row[side[0][1]])] for side in ordered]
    kind = (
        Fault.SILENT_MISMATCH if all(silent(one, shown[0]) for one in shown[1:]) else Fault.MISMATCH
    )
    if culprits and kind is Fault.MISMATCH:
        kind = _slip(calls, group, sequence, [rank for rank, _ in ordered[0]], culprits)
    return Divergence(
        kind=kind,
        group=group,
        sequence=sequence,
        sides=tuple(tuple(rank for rank, _ in side) for side in ordered),
        rows=tuple(side[0][1] for side in ordered),
        said=tuple(str(one) for one in shown),
        culprits=tuple(culprits),
        live=bool(index.live[calls.row[here]].any()),
    )


def _slip(calls: Calls, group: int, sequence: int, right: list[int], culprits: list[int]) -> Fault:
    """Whether what the culprits did from here on is what their peers did, one call apart."""
    last = sequence + _WINDOW
    theirs = calls.common(group, right, sequence - _BEFORE, last + 1)
    kinds = set()
    for rank in culprits:
        mine = calls.of(group, rank, sequence, last + 1)
        in_place = _fit(mine, theirs, sequence + 1, last, 0)
        skipped = _fit(mine, theirs, sequence, last, 1)
        extra = _fit(mine, theirs, sequence + 1, last, -1)
        kinds.add(
            _kind(in_place, skipped, extra)
            if in_place or skipped or extra
            else _kind_here(mine[sequence], theirs, sequence)
        )
    return kinds.pop() if len(kinds) == 1 else Fault.MISMATCH


def _fit(mine: Mapping[int, int], theirs: Mapping[int, int], first: int, last: int, by: int) -> int:
    """How many of the calls that both have agree when moved by so many; 0 when any does not."""
    pairs = [
        (mine[s], theirs[s + by]) for s in range(first, last) if s in mine and s + by in theirs
    ]
    return len(pairs) if all(a == b for a, b in pairs) else 0


def _kind(in_place: int, skipped: int, extra: int) -> Fault:
    if in_place or not (skipped or extra) or skipped == extra:
        return Fault.MISMATCH
    return Fault.SKIPPED if skipped > extra else Fault.EXTRA


def _kind_here(given: int, theirs: Mapping[int, int], sequence: int) -> Fault:
    """The same where nobody called anything after it: by what usually comes next."""
    repeated, following = given == theirs.get(sequence - 1), _following(theirs, sequence)
    if given in following:
        return Fault.MISMATCH if repeated else Fault.SKIPPED
    return Fault.EXTRA if repeated and following else Fault.MISMATCH


def _following(theirs: Mapping[int, int], sequence: int) -> set[int]:
    """What came after the same two calls before; what the program would call next."""
    pair = (theirs.get(sequence - 1), theirs.get(sequence))
    return {
        theirs[s + 1]
        for s in theirs
        if s < sequence and (theirs.get(s - 1), theirs[s]) == pair and s + 1 in theirs
    } - {theirs[sequence]}
