"""Where the members of a group stop doing the same thing, and who of them differs.

Theory of operation. All members must give the same signature to the same sequence of a group
(ALGORITHMS.md section 4). Signatures are compared as numbers, for all entries at once; the parts
of a coalesced operation share a sequence, so a rank's signature at a sequence is the sum of
theirs. A strict majority of those who joined makes the rest the culprits; without one nobody is
accused. If a culprit's sequence fits the others' again when moved by one, it skipped or added a
collective, and the size or op at which it shows is only the consequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.analysis.finding import Fault
from monitor.analysis.index import Index
from monitor.flight_recorder.job import Job, State
from monitor.flight_recorder.semantics import Signature, signature_of

_WINDOW: Final = 32
"""Sequences after a divergence that are compared to tell a slip from a wrong size."""
_PER_GROUP: Final = 64
"""Diverging sequences looked at in one group: after a slip, all differ."""
_NBYTES: Final[Mapping[str, int]] = {
    "float64": 8, "complex64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


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

    def explains(self, group: int, sequence: int) -> bool:
        """Whether a hang in this collective follows from it."""
        lasting = self.live or self.kind in (Fault.SKIPPED, Fault.EXTRA)
        return lasting and group == self.group and sequence >= self.sequence


@dataclass(frozen=True, slots=True)
class _Calls:
    """By (group, sequence, rank), sorted so: what the rank gave there."""

    group: NDArray[Any]
    sequence: NDArray[Any]
    rank: NDArray[Any]
    given: NDArray[np.uint64]
    row: NDArray[Any]
    place: Mapping[int, tuple[int, int]]
    """Group -> where its calls begin and end."""

    def of(self, group: int, rank: int, first: int, last: int) -> dict[int, int]:
        """Sequence -> what a rank gave, from first to last."""
        begin, end = self.place[group]
        low = begin + int(np.searchsorted(self.sequence[begin:end], first))
        high = begin + int(np.searchsorted(self.sequence[begin:end], last, side="right"))
        mine = low + np.flatnonzero(self.rank[low:high] == rank)
        sequences, given = self.sequence[mine].tolist(), self.given[mine].tolist()
        return dict(zip(sequences, given, strict=True))


def divergences(index: Index) -> tuple[Divergence, ...]:
    """All of them, by group and sequence; one for each set of ranks that differs."""
    if not len(index.job):
        return ()
    signatures, by_row = _signatures(index.job)
    calls = _calls(index.job, by_row)
    found: list[Divergence] = []
    seen: set[tuple[int, frozenset[int]]] = set()
    count: dict[int, int] = {}
    for begin, end in _differing(calls):
        group = int(calls.group[begin])
        count[group] = count.get(group, 0) + 1
        if count[group] > _PER_GROUP:
            continue
        one = _judge(index, calls, signatures, by_row, slice(begin, end))
        key = (group, frozenset(one.culprits or {r for side in one.sides for r in side}))
        if key not in seen:
            seen.add(key)
            found.append(one)
    return tuple(found)


def _signatures(job: Job) -> tuple[list[Signature], NDArray[np.int64]]:
    """The distinct signatures, and by row which of them; -1 of transfers."""
    sizes = np.array([len(group.members) for group in job.groups], dtype=np.int64)
    columns = job.columns
    keys = columns["payload"].astype(np.int64) * (int(sizes.max()) + 1) + sizes[columns["group"]]
    distinct, inverse = np.unique(keys, return_inverse=True)
    numbers: dict[Signature, int] = {}
    by_key = []
    for key in distinct.tolist():
        payload = job.payloads[key // (int(sizes.max()) + 1)]
        one = signature_of(payload, key % (int(sizes.max()) + 1))
        by_key.append(numbers.setdefault(one, len(numbers)))
    by_row = np.array(by_key, dtype=np.int64)[inverse.reshape(-1)]
    by_row[columns["p2p"]] = -1
    return list(numbers), by_row


def _calls(job: Job, by_row: NDArray[np.int64]) -> _Calls:
    rows = np.flatnonzero(by_row >= 0)
    columns = job.columns
    group, sequence, rank = (columns[name][rows] for name in ("group", "seq", "rank"))
    order = np.lexsort((rank, sequence, group))
    rows, group, sequence, rank = rows[order], group[order], sequence[order], rank[order]
    new = np.ones(len(rows), dtype=np.bool_)
    new[1:] = (np.diff(group) != 0) | (np.diff(sequence) != 0) | (np.diff(rank) != 0)
    starts = np.flatnonzero(new)
    # any odd multiplier mixes well enough; sums wrap around on purpose
    mixed = (by_row[rows].astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    given = np.add.reduceat(mixed, starts) if len(starts) else mixed
    group = group[starts]
    edges = np.flatnonzero(np.diff(group, prepend=-1, append=-1))
    place = {int(group[a]): (int(a), int(b)) for a, b in zip(edges[:-1], edges[1:], strict=True)}
    return _Calls(group, sequence[starts], rank[starts], given, rows[starts], place)


def _differing(calls: _Calls) -> Iterable[tuple[int, int]]:
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


def _judge(
    index: Index,
    calls: _Calls,
    signatures: list[Signature],
    by_row: NDArray[np.int64],
    here: slice,
) -> Divergence:
    sides: dict[int, list[tuple[int, int]]] = {}
    ranks, rows = calls.rank[here].tolist(), calls.row[here].tolist()
    for rank, row, given in zip(ranks, rows, calls.given[here].tolist(), strict=True):
        sides.setdefault(given, []).append((rank, row))
    ordered = sorted(sides.values(), key=lambda side: (-len(side), side))
    group, sequence = int(calls.group[here][0]), int(calls.sequence[here][0])
    joined = sum(len(side) for side in ordered)
    culprits: list[int] = []
    if 2 * len(ordered[0]) > joined:
        culprits = sorted(rank for side in ordered[1:] for rank, _ in side)
    shown = [signatures[int(by_row[side[0][1]])] for side in ordered]
    kind = Fault.SILENT_MISMATCH if _same_bytes(shown) else Fault.MISMATCH
    if culprits and kind is Fault.MISMATCH:
        kind = _slip(calls, group, sequence, ordered[0][0][0], culprits)
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


def _same_bytes(shown: list[Signature]) -> bool:
    """Whether only the dtype differs, and not in size: nothing hangs, the numbers are wrong."""
    first = shown[0]
    if len(set(shown)) == 1:
        return False
    return all(
        (one.op, one.counts, one.reduce_op, one.root)
        == (first.op, first.counts, first.reduce_op, first.root)
        and one.dtype is not None
        and first.dtype is not None
        and _NBYTES.get(one.dtype, -1) == _NBYTES.get(first.dtype, -2)
        for one in shown
    )


def _slip(calls: _Calls, group: int, sequence: int, right: int, culprits: list[int]) -> Fault:
    """Whether what the culprits did from here on is what their peers did, one call apart."""
    last = sequence + _WINDOW
    theirs = calls.of(group, right, 0, last + 1)
    kinds = set()
    for rank in culprits:
        mine = calls.of(group, rank, sequence, last + 1)
        in_place = _fit(mine, theirs, sequence + 1, last, 0)
        skipped = _fit(mine, theirs, sequence, last, 1)
        extra = _fit(mine, theirs, sequence + 1, last, -1)
        kinds.add(_kind(in_place, skipped, extra))
        if not skipped and theirs.get(sequence + 1) is None:
            following = _following(theirs, sequence)
            if following == {mine[sequence]}:
                kinds.discard(Fault.MISMATCH)
                kinds.add(Fault.SKIPPED)
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


def _following(theirs: Mapping[int, int], sequence: int) -> set[int]:
    """What came after the same two calls before; what the program would call next."""
    pair = (theirs.get(sequence - 1), theirs.get(sequence))
    return {
        theirs[s + 1]
        for s in theirs
        if s < sequence and (theirs.get(s - 1), theirs[s]) == pair and s + 1 in theirs
    } - {theirs[sequence]}


def unfinished(index: Index, row: int) -> bool:
    """Whether an entry is."""
    return int(index.job.columns["state"][row]) != State.COMPLETED
