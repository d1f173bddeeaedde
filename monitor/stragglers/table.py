"""A table of operation timings in columns, checked and coded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

NEEDED: Final = ("rank", "stage", "step", "optype", "duration")
WHOLE: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
"""Columns of whole numbers."""
USED: Final = (*NEEDED, "dp_rank", "start_ts", "seq_id", "mc", "mb_id")
_DENSE: Final = 1 << 22
_LEAST_CELLS: Final = 1 << 20
_CELLS_A_ROW: Final = 20


class TableError(ValueError):
    """A table of which no judgement is possible; the message is one line."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one job. Every row array has the same length; codes count from 0."""

    ranks: NDArray[np.int64]
    """Global ranks, sorted; `rank` holds indices into it."""
    steps: NDArray[np.int64]
    ops: tuple[str, ...]
    stage: NDArray[np.int64]
    """Pipeline stage of each rank."""
    replica: NDArray[np.int64]
    """Data-parallel rank of each rank; -1 where the table does not say (see `tells`)."""
    rank: Codes
    step: Codes
    op: NDArray[np.int16]
    chunk: NDArray[np.int32]
    """Model chunk (virtual stage) on the rank, coded."""
    microbatch: Codes
    sequence: Codes
    """Place among the rank's operations of this type in this step, coded."""
    start_s: Floats | None
    """On the rank's own clock: never compared between ranks."""
    duration_s: Floats
    tells: frozenset[str] = frozenset()
    """Columns that the table has; the arrays of the others hold one value."""
    rows_read: int = 0
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def stages(self) -> NDArray[np.int64]:
        """Stages that there are, sorted."""
        return np.unique(self.stage)

    def crew(self, stage: int) -> NDArray[np.intp]:
        """Codes of the ranks of one stage, sorted."""
        return np.flatnonzero(self.stage == stage)

    def replica_of(self, rank: int) -> int | None:
        """Data-parallel rank of a rank, where the table says it."""
        return int(self.replica[rank]) if "dp_rank" in self.tells else None

    def rows_of(self, ops: Sequence[int] | NDArray[np.int16]) -> NDArray[np.intp]:
        """Rows of some operations."""
        wanted = np.zeros(max(1, len(self.ops)), dtype=np.bool_)
        wanted[np.asarray(ops, dtype=np.intp)] = True
        return np.flatnonzero(wanted[self.op])


def build(columns: Mapping[str, NDArray[Any]], ops: Sequence[str]) -> Table:
    """A table from raw columns; `optype` holds codes into `ops`, or -1.

    Rows without a usable rank, step, type or duration (missing, NaN, infinite, negative) are left
    out and counted in a note. Whole numbers that are missing are -2**31 or NaN.

    Raises:
        TableError: a needed column is missing, or no row is usable.
    """
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        raise TableError(f"no column {' and no column '.join(missing)}; there are {_some(columns)}")
    columns, notes, rows_read = _usable(columns)
    if not len(columns["rank"]):
        raise TableError("no usable row" if rows_read else "the table has no rows")
    ranks, rank = coded(columns["rank"])
    steps, step = coded(columns["step"])
    if len(ranks) * len(steps) > max(_LEAST_CELLS, _CELLS_A_ROW * len(rank)):
        told = f"{len(rank):,} rows are too few for {len(ranks):,} ranks in {len(steps):,} steps"
        raise TableError(f"{told}: ranks that share no steps cannot be compared")
    stage, other = _of_rank(rank, columns["stage"], len(ranks))
    if other:
        notes.append(f"{other:,} rows name another stage than most of their rank's; judged by most")
    tells = set(columns)
    replica = np.full(len(ranks), -1, dtype=np.int64)
    if "dp_rank" in columns:
        replica = _of_rank(rank, columns["dp_rank"], len(ranks))[0]
        if np.any(replica < 0):
            tells.remove("dp_rank")
    for name, loss in _LOSSES.items():
        if name not in tells:
            notes.append(f"no column {name}: {loss}")
    return Table(
        ranks=ranks,
        steps=steps,
        ops=tuple(ops),
        stage=stage,
        replica=replica,
        rank=rank,
        step=step,
        op=columns["optype"].astype(np.int16, copy=False),
        chunk=_codes(columns, "mc", len(rank)),
        microbatch=_codes(columns, "mb_id", len(rank)),
        sequence=_codes(columns, "seq_id", len(rank)),
        start_s=columns.get("start_ts"),
        duration_s=columns["duration"],
        tells=frozenset(tells),
        rows_read=rows_read,
        notes=tuple(notes),
    )


_LOSSES: Final = {
    "dp_rank": "long sequences are not told by the other stages, slow links not looked for",
    "mb_id": "long sequences are not told by the other stages",
    "seq_id": "slow links are not looked for",
    "start_ts": "a step's length is taken for the sum of its own work",
    "mc": "model chunks of one stage are judged as one",
}


def coded(values: NDArray[Any]) -> tuple[NDArray[np.int64], Codes]:
    """Distinct values, sorted, and for each value its place among them."""
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE:  # counting beats sorting by far
        offsets = values.astype(np.int64) - low
        there = np.zeros(high - low + 1, dtype=np.bool_)
        there[offsets] = True
        place = np.cumsum(there, dtype=np.int32) - np.int32(1)
        return np.flatnonzero(there).astype(np.int64) + low, place[offsets]
    distinct, places = np.unique(values, return_inverse=True)
    return distinct.astype(np.int64), places.astype(np.int32)


def _codes(columns: Mapping[str, NDArray[Any]], name: str, rows: int) -> Codes:
    return coded(columns[name])[1] if name in columns else np.zeros(rows, dtype=np.int32)


def _usable(
    columns: Mapping[str, NDArray[Any]],
) -> tuple[Mapping[str, NDArray[Any]], list[str], int]:
    rows = len(columns["duration"])
    duration = columns["duration"]
    with np.errstate(invalid="ignore"):
        good = np.isfinite(duration) & (duration >= 0)
        if "start_ts" in columns:
            good &= np.isfinite(columns["start_ts"])
        for name in ("rank", "stage", "step", "optype"):
            good &= columns[name] >= 0
    bad = rows - int(np.count_nonzero(good))
    if not bad:
        return columns, [], rows
    note = f"{bad:,} of {rows:,} rows left out: no usable rank, stage, step, type or time"
    return {name: held[good] for name, held in columns.items()}, [note], rows


def _of_rank(rank: Codes, values: NDArray[Any], ranks: int) -> tuple[NDArray[np.int64], int]:
    """Each rank's most frequent value, and how many rows say something else."""
    distinct, places = coded(values)
    keys, counts = np.unique(rank.astype(np.int64) * len(distinct) + places, return_counts=True)
    order = np.lexsort((-keys, counts))  # the most frequent last; the smaller value on a tie
    most = np.zeros(ranks, dtype=np.int64)
    most[keys[order] // len(distinct)] = keys[order] % len(distinct)
    return distinct[most], int(np.count_nonzero(most[rank] != places))


def _some(columns: Mapping[str, Any]) -> str:
    names = sorted(str(name) for name in columns)
    return ", ".join(names[:8]) + (" and more" if len(names) > 8 else "") or "none"
