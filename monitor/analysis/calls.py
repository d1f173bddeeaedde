"""What every rank called in every group, side by side: signatures as numbers, sorted.

Signatures are compared as numbers, for all entries at once. The parts of a coalesced operation
share a sequence, so what a rank gave there is the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.job import Job
from monitor.flight_recorder.signature import Signature, signature_of

_PAST: Final = 4000
"""Calls of a rank that are remembered to say what it usually does: twice torch's own buffer."""


@dataclass(frozen=True, slots=True)
class Calls:
    """By (group, sequence, rank), sorted so: what the rank gave there."""

    group: NDArray[Any]
    sequence: NDArray[Any]
    rank: NDArray[Any]
    given: NDArray[np.uint64]
    row: NDArray[Any]
    site: NDArray[Any]
    place: Mapping[int, tuple[int, int]]
    """Group -> where its calls begin and end."""
    signatures: tuple[Signature, ...]
    by_row: NDArray[np.int64]
    """Row -> which of the signatures; -1 of transfers."""

    def of(self, group: int, rank: int, first: int, last: int) -> dict[int, int]:
        """Sequence -> what a rank gave, from first to last."""
        begin, end = self.place[group]
        low = begin + int(np.searchsorted(self.sequence[begin:end], first))
        high = begin + int(np.searchsorted(self.sequence[begin:end], last, side="right"))
        mine = low + np.flatnonzero(self.rank[low:high] == rank)
        sequences, given = self.sequence[mine].tolist(), self.given[mine].tolist()
        return dict(zip(sequences, given, strict=True))

    def common(self, group: int, ranks: Sequence[int], first: int, last: int) -> dict[int, int]:
        """Sequence -> what all of the ranks gave that called it, from first to last."""
        begin, end = self.place[group]
        low = begin + int(np.searchsorted(self.sequence[begin:end], first))
        high = begin + int(np.searchsorted(self.sequence[begin:end], last, side="right"))
        theirs = low + np.flatnonzero(np.isin(self.rank[low:high], ranks))
        given: dict[int, set[int]] = {}
        for sequence, one in zip(
            self.sequence[theirs].tolist(), self.given[theirs].tolist(), strict=True
        ):
            given.setdefault(sequence, set()).add(one)
        return {sequence: one.pop() for sequence, one in given.items() if len(one) == 1}


def past(job: Job, calls: Calls, row: int) -> list[Hashable]:
    """What the rank of a row called up to there, in any group, oldest first; the row's own last."""
    columns = job.columns
    rank = columns["rank"]
    begin = max(int(np.searchsorted(rank, rank[row])), row - _PAST)
    rows = slice(begin, row + 1)
    names = ("group", "site", "peer")
    given = np.where(calls.by_row[rows] >= 0, calls.by_row[rows], columns["payload"][rows])
    return list(zip(given.tolist(), *(columns[name][rows].tolist() for name in names), strict=True))


def _signatures(job: Job) -> tuple[list[Signature], NDArray[np.int64]]:
    """The distinct signatures, and by row which of them; -1 of transfers."""
    sizes = np.array([len(group.members) for group in job.groups], dtype=np.int64)
    columns = job.columns
    keys = (
        columns["payload"].astype(np.int64) * (int(sizes.max(initial=0)) + 1)
        + sizes[columns["group"]]
    )
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


def calls_of(job: Job) -> Calls:
    """The calls of a job."""
    signatures, by_row = _signatures(job)
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
    place = {int(group[a]): (int(a), int(b)) for a, b in pairwise(edges)}
    first = rows[starts]
    return Calls(
        group=group,
        sequence=sequence[starts],
        rank=rank[starts],
        given=given,
        row=first,
        site=columns["site"][first],
        place=place,
        signatures=tuple(signatures),
        by_row=by_row,
    )
