"""Records of torchcomms, which counts the calls of all its communicators together.

Theory of operation. Ranks are compared by the number of a call in its group. A recorder that still
has the rank's first call is counted anew, group by group. One that has overwritten it keeps the
common numbers: they agree between ranks that make the same calls in all (each has a communicator
of every kind), and that is checked, for a pipeline's ranks do not. Where the check fails, what
torchcomms recorded cannot be compared and is left out.
(What it writes: torchcomms 2026-08, hooks/fr/FlightRecorder.cpp.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.dump import Dump

_COMMON: Final = 0.5
"""Share of the numbers of a group, where two records overlap, that both have to have."""
UNCOUNTED: Final = (
    "torchcomms counts the calls of all its communicators together, its oldest entries are "
    "overwritten, and ranks make different calls: they cannot be compared; a larger "
    "TORCHCOMM_FR_BUFFER_SIZE keeps them all"
)


def by_group(dumps: Sequence[Dump]) -> tuple[list[Dump], str | None]:
    """The same dumps, numbered within each group; and why something was left out."""
    mine = [one for one in dumps if one.one_count]
    if all(one.dropped == 0 for one in mine):
        return [_counted(one) if one.one_count else one for one in dumps], None
    if _agree(mine):
        return list(dumps), None
    nothing = [_without_entries(one) if one.one_count else one for one in dumps]
    return nothing, UNCOUNTED


def _counted(dump: Dump) -> Dump:
    """Collectives and point-to-point calls of each group counted from 1, each by itself."""
    columns = dump.columns
    seq = columns["seq"].copy()
    kinds = columns["group"].astype(np.int64) * 2 + columns["p2p"]
    for kind in np.unique(kinds).tolist():
        rows = kinds == kind
        seq[rows] = np.arange(1, rows.sum() + 1)
    return replace(dump, columns={**columns, "seq": seq})


def _without_entries(dump: Dump) -> Dump:
    nothing = {name: column[:0] for name, column in dump.columns.items()}
    return replace(dump, columns=nothing, status={})


def _agree(dumps: Iterable[Dump]) -> bool:
    """Whether all pairs have most of each group's numbers in common."""
    pairs = combinations([_numbers(one) for one in dumps], 2)
    return all(_overlap(a[name], b[name]) for a, b in pairs for name in a.keys() & b.keys())


def _numbers(dump: Dump) -> Mapping[str, NDArray[Any]]:
    columns = dump.columns
    own = ~columns["p2p"]
    return {
        group.name: columns["seq"][own & (columns["group"] == at)]
        for at, group in enumerate(dump.groups)
        if (own & (columns["group"] == at)).any()
    }


def _overlap(a: NDArray[Any], b: NDArray[Any]) -> bool:
    first, last = max(a[0], b[0]), min(a[-1], b[-1])
    sides = [x[(x >= first) & (x <= last)] for x in (a, b)]
    most = max(map(len, sides))
    return bool(most) and len(np.intersect1d(*sides)) >= _COMMON * most
