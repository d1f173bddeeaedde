"""How long each rank worked in each step, less what its microbatches asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from monitor import cohort
from monitor.cohort import Floats
from monitor.stragglers.ops import Role, codes_of
from monitor.stragglers.table import Table, TableError

_BASE: Final = 0.2
"""Quantile of the durations of one kind on one stage that stands for its usual work: low, so that
it stays where it is when the later half of the steps is slow."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks of one stage. All arrays are steps x ranks of the stage, NaN where no rows are."""

    stage: int
    ranks: NDArray[np.intp]
    """Codes of the ranks."""
    pace: Floats
    """Own work against the middle of the stage in that step: about 1."""
    own: Floats
    """Own work against the usual work of the stage: what own history is told from."""
    seconds: Floats
    """Seconds of work that the middle of the stage has in a step; steps x 1."""
    by_op: Mapping[str, Floats]
    """Ratio to the median of the others, by type of operation."""


@dataclass(frozen=True, slots=True)
class Work:
    """The own work of all ranks."""

    crews: tuple[Crew, ...]
    replicas: NDArray[np.int64]
    """Data-parallel ranks, sorted; empty where microbatches cannot be told between stages."""
    load: Floats
    """What the microbatches of a replica asked of all of its stages in a step, against the usual;
    steps x replicas, NaN where nothing tells."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of own work, and the kind (operation and chunk) of each."""

    rank: NDArray[np.int32]
    step: NDArray[np.int32]
    kind: NDArray[np.int64]
    relative: Floats
    """Duration against the usual of its kind on its stage."""
    base: Floats
    """Usual seconds by kind and stage: [kinds, stages]."""
    names: tuple[str, ...]
    """Operation of each kind."""


def work(table: Table, *, by_load: bool = True) -> Work:
    """The work of every crew; `by_load` divides by what the microbatches asked of all stages.

    Raises:
        TableError: so few rows that nothing could be compared.
    """
    rows, picked = _rows(table)
    load = _Load.none(len(table.steps))
    relative = rows.relative
    if by_load and {"dp_rank", "mb_id"} <= table.tells and len(picked):
        load = _load(table, rows, picked)
        relative = relative / load.of_row
    kinds, ranks, steps = len(rows.names), len(table.ranks), len(table.steps)
    if kinds * ranks * steps > max(1 << 22, 40 * len(table)):
        raise TableError(f"too few rows for {kinds:,} kinds of work on {ranks:,} ranks")
    key = (rows.kind * ranks + rows.rank) * steps + rows.step
    keys, middles, counts = medians(key, relative)
    del key, relative
    cells = np.full((kinds, ranks, steps), np.nan)
    cells.reshape(-1)[keys] = middles
    number = np.zeros((kinds, ranks, steps), dtype=np.float32)
    number.reshape(-1)[keys] = counts
    crews = tuple(
        _crew(int(stage), table.crew(stage), rows, rows.base[:, place], (cells, number))
        for place, stage in enumerate(table.stages.tolist())
    )
    return Work(crews, load.replicas, load.by_replica)


def _rows(table: Table) -> tuple[_Rows, NDArray[np.intp]]:
    picked = table.rows_of(codes_of(table.ops, Role.OWN))
    rank, step = table.rank[picked], table.step[picked]
    chunks = int(table.chunk.max()) + 1
    raw = table.op[picked].astype(np.int64) * chunks + table.chunk[picked]
    there = np.unique(raw)
    kind = np.searchsorted(there, raw).astype(np.int64)
    stages = table.stages
    stage = np.searchsorted(stages, table.stage)[rank]
    duration = table.duration_s[picked]
    keys, usual, _ = quantiles(kind * len(stages) + stage, duration, _BASE)
    base = np.full(max(1, len(there)) * len(stages), np.nan)
    base[keys] = usual
    with np.errstate(all="ignore"):
        relative = duration / base[kind * len(stages) + stage]
    good = np.isfinite(relative)  # a kind that takes no time at all has no ratio
    names = tuple(table.ops[code // chunks] for code in there.tolist())
    if not good.all():
        rank, step, kind, relative, picked = (
            array[good] for array in (rank, step, kind, relative, picked)
        )
    shaped = base.reshape(max(1, len(there)), len(stages))[: len(there)]
    return _Rows(rank, step, kind, relative, shaped, names), picked


@dataclass(frozen=True, slots=True)
class _Load:
    replicas: NDArray[np.int64]
    by_replica: Floats
    of_row: Floats

    @classmethod
    def none(cls, steps: int) -> _Load:
        """Nothing is known."""
        return cls(np.empty(0, dtype=np.int64), np.empty((steps, 0)), np.empty(0))


def _load(table: Table, rows: _Rows, picked: NDArray[np.intp]) -> _Load:
    """What each microbatch asked of all stages: the lower median of its relative durations.

    The same microbatch passes all stages of a replica, forward and backward apart. One slow stage
    of two and more does not move the lower median; a long sequence moves them all. Where only one
    rank has rows of a microbatch, it cannot be told and counts as 1.
    """
    replicas = np.unique(table.replica)
    replica = np.searchsorted(replicas, table.replica)[rows.rank]
    microbatch = table.microbatch[picked].astype(np.int64)
    microbatches = int(microbatch.max()) + 1
    key = (replica * len(table.steps) + rows.step) * len(table.ops) + table.op[picked]
    key = key * microbatches + microbatch
    order = np.lexsort((rows.relative, key))
    ordered = key[order]
    starts = _starts(ordered)
    counts = np.diff(starts, append=len(ordered))
    asked = rows.relative[order[starts + (counts - 1) // 2]]
    by_rank = rows.rank[order]
    if len(starts):
        told = np.minimum.reduceat(by_rank, starts) != np.maximum.reduceat(by_rank, starts)
        asked = np.where(told, asked, 1.0)
    of_row = np.empty(len(ordered))
    of_row[order] = np.repeat(asked, counts)
    keys, middles, _ = medians(ordered[starts] // (microbatches * len(table.ops)), asked)
    by_replica = np.full(len(replicas) * len(table.steps), np.nan)
    by_replica[keys] = middles
    return _Load(replicas, by_replica.reshape(len(replicas), len(table.steps)).T, of_row)


def _crew(
    stage: int,
    ranks: NDArray[np.intp],
    rows: _Rows,
    base: Floats,
    cells: tuple[Floats, NDArray[np.float32]],
) -> Crew:
    """One stage from the medians and numbers of all cells: kinds x ranks x steps."""
    shape = (cells[0].shape[2], len(ranks))
    mine, usual, whole = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    seconds = np.zeros((shape[0], 1))
    ratios: dict[str, list[Floats]] = {}
    for kind, name in enumerate(rows.names):
        held = cells[0][kind][ranks].T
        there = ~np.isnan(held)
        if not there.any():
            continue
        centre = cohort.middle(held)
        weight = base[kind] * np.max(cells[1][kind][ranks], axis=0)[:, None]
        mine += np.where(there, weight * held, 0.0)
        usual += np.where(there, weight * centre, 0.0)
        whole += np.where(there, weight, 0.0)
        seconds += np.nan_to_num(weight * centre)
        with np.errstate(all="ignore"):
            ratios.setdefault(name, []).append(held / cohort.usual(held))
    with np.errstate(all="ignore"):
        pace, own = mine / usual, mine / whole
    by_op = {name: _mean(held) for name, held in sorted(ratios.items())}
    return Crew(stage, ranks, pace, own, seconds, by_op)


def _mean(held: list[Floats]) -> Floats:
    """Over the chunks that have a value."""
    stacked = np.stack(held)
    there = ~np.isnan(stacked)
    with np.errstate(invalid="ignore"):
        mean = np.where(there, stacked, 0.0).sum(axis=0) / there.sum(axis=0)
    return np.asarray(mean, dtype=np.float64)


def medians(
    key: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[np.int64], Floats, NDArray[np.intp]]:
    """Distinct keys, sorted, with the median and the number of their values."""
    keys, order, starts, counts = _grouped(key, values)
    low = values[order[starts + (counts - 1) // 2]]
    high = values[order[starts + counts // 2]]
    return keys, (low + high) / 2, counts


def quantiles(
    key: NDArray[np.int64], values: NDArray[Any], share: float
) -> tuple[NDArray[np.int64], Floats, NDArray[np.intp]]:
    """Distinct keys, sorted, with a quantile (the value at or below) and the number of values."""
    keys, order, starts, counts = _grouped(key, values)
    return keys, values[order[starts + ((counts - 1) * share).astype(np.intp)]], counts


def _grouped(
    key: NDArray[np.int64], values: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    order = np.lexsort((values, key))
    ordered = key[order]
    starts = _starts(ordered)
    return ordered[starts], order, starts, np.diff(starts, append=len(ordered))


def _starts(ordered: NDArray[np.int64]) -> NDArray[np.intp]:
    """Where each run of equal keys begins."""
    if not len(ordered):
        return np.empty(0, dtype=np.intp)
    return np.concatenate(([0], np.flatnonzero(np.diff(ordered)) + 1)).astype(np.intp)
