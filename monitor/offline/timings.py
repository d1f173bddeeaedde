"""Recorded timings of operations: a Parquet or CSV file, read into a table of coded columns.

pyarrow reads both. An operation's name shows whose time it takes (`TimeOwner`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.model.wording import listed
from lightkeeper.worker_server.home import open_file

# -- table -------------------------------------------------------------------------------------

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

NEEDED: Final = ("rank", "stage", "step", "optype", "duration")
_LOSSES: Final = {
    "dp_rank": "long sequences are not told by the other stages, slow links not looked for",
    "mb_id": "long sequences are not told by the other stages",
    "seq_id": "slow links are not looked for",
    "start_ts": "a step's length is taken for the sum of its own work",
    "mc": "model chunks of one stage are judged as one",
}
"""What cannot be judged without a column."""
_USED: Final = {*NEEDED, *_LOSSES}
_MOST: Final = 2.0**53
"""No rank, step or microbatch has a greater number."""
_DENSE: Final = 1 << 22
_LEAST_CELLS: Final = 1 << 20
_CELLS_A_ROW: Final = 20


class TableError(ValueError):
    """A table that cannot be judged; the message is one line."""


@dataclass(frozen=True, slots=True)
class TimingTable:
    """Rows of one job. Every row array has the same length; codes count from 0."""

    ranks: NDArray[np.int64]
    """Global ranks, sorted; `rank` holds indices into it."""
    steps: NDArray[np.int64]
    ops: tuple[str, ...]
    stage: NDArray[np.int64]
    """Pipeline stage of each rank."""
    replica: NDArray[np.int64]
    """Data-parallel rank of each rank; -1 if the table does not have it (see `tells`)."""
    rank: Codes
    step: Codes
    op: Codes
    chunk: Codes
    """Model chunk (virtual stage) on the rank, coded."""
    microbatch: Codes
    sequence: Codes
    """Index among the rank's operations of this type in this step, coded."""
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
        """Existing stages, sorted."""
        return np.unique(self.stage)

    def ranks_of(self, stage: int) -> NDArray[np.intp]:
        """Codes of the ranks of one stage, sorted."""
        return np.flatnonzero(self.stage == stage)

    def replica_of(self, rank: int) -> int | None:
        """Data-parallel rank of a rank, if the table has it."""
        return int(self.replica[rank]) if "dp_rank" in self.tells else None

    def codes_of(self, owner: TimeOwner) -> list[int]:
        """Codes of the operations that take this time."""
        return [code for code, name in enumerate(self.ops) if re.fullmatch(owner, name)]

    def rows_of(self, ops: Sequence[int]) -> NDArray[np.intp]:
        """Rows of these operations."""
        return np.flatnonzero(np.isin(self.op, ops))


def build_table(columns: Mapping[str, NDArray[Any]], ops: Sequence[str]) -> TimingTable:
    """A table from raw columns; `optype` holds codes into `ops`, or -1.

    Rows without a usable rank, step, type or duration (missing, NaN, infinite, negative) are left
    out and counted in a note. Missing numbers are NaN or negative.

    Raises:
        TableError: a needed column is missing, or no row is usable.
    """
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        there = listed(sorted(map(str, columns)), 8) or "none"
        raise TableError(f"no column {' and no column '.join(missing)}; there are {there}")
    whole, times, notes = _usable(columns)
    usable, rows_read = len(whole["rank"]), len(columns["rank"])
    if not usable:
        raise TableError("no usable row" if rows_read else "the table has no rows")
    (ranks, rank), (steps, step) = coded(whole["rank"]), coded(whole["step"])
    if len(ranks) * len(steps) > max(_LEAST_CELLS, _CELLS_A_ROW * usable):
        what = f"{usable:,} rows are too few for {len(ranks):,} ranks in {len(steps):,} steps"
        raise TableError(f"{what}: ranks that share no steps cannot be compared")
    nothing = np.full(usable, -1)
    of_rank = {name: np.full(len(ranks), -1) for name in ("stage", "dp_rank")}
    for name, values in of_rank.items():
        np.maximum.at(values, rank, whole.get(name, nothing))
    other = int(np.count_nonzero(of_rank["stage"][rank] != whole["stage"]))
    if other:
        notes.append(f"{other:,} rows name another stage than the last of their rank, which counts")
    tells = set(columns)
    if np.any(of_rank["dp_rank"] < 0):
        of_rank["dp_rank"][:] = -1
        tells.discard("dp_rank")
    notes += [f"no column {name}: {loss}" for name, loss in _LOSSES.items() if name not in tells]
    return TimingTable(
        ranks=ranks,
        steps=steps,
        ops=tuple(ops),
        stage=of_rank["stage"],
        replica=of_rank["dp_rank"],
        rank=rank,
        step=step,
        op=whole["optype"].astype(np.int32),
        chunk=coded(whole.get("mc", nothing))[1],
        microbatch=coded(whole.get("mb_id", nothing))[1],
        sequence=coded(whole.get("seq_id", nothing))[1],
        start_s=times.get("start_ts"),
        duration_s=times["duration"],
        tells=frozenset(tells),
        rows_read=rows_read,
        notes=tuple(notes),
    )


def _usable(
    columns: Mapping[str, NDArray[Any]],
) -> tuple[Mapping[str, NDArray[np.int64]], Mapping[str, Floats], list[str]]:
    """The whole numbers and the times of usable rows, and what was left out."""
    times = {name: columns[name] for name in ("duration", "start_ts") if name in columns}
    whole = {name: _whole(held) for name, held in columns.items() if name not in times}
    good = columns["duration"] >= 0
    for name in NEEDED[:-1]:
        good &= whole[name] >= 0
    for held in times.values():
        good &= np.isfinite(held)
    left_out = len(good) - int(np.count_nonzero(good))
    note = f"{left_out:,} of {len(good):,} rows left out: no usable rank, stage, step, type or time"
    return (
        {name: held[good] for name, held in whole.items()},
        {name: held[good].astype(np.float64) for name, held in times.items()},
        [note] if left_out else [],
    )


def _whole(values: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers; -1 for none."""
    return np.where((values >= 0) & (values < _MOST), values, -1).astype(np.int64)


def coded(values: NDArray[Any]) -> tuple[NDArray[np.int64], Codes]:
    """Distinct values, sorted, and for each value its index among them."""
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE:  # counting is much faster than sorting
        offsets = values - low
        present = np.zeros(high - low + 1, dtype=np.bool_)
        present[offsets] = True
        place = np.cumsum(present, dtype=np.int32) - np.int32(1)
        return np.flatnonzero(present) + low, place[offsets]
    distinct, places = np.unique(values, return_inverse=True)
    return distinct, places.astype(np.int32)


# -- load --------------------------------------------------------------------------------------


def load_table(path: Path) -> TimingTable:
    """The table in a file: parquet if its first bytes say so, else CSV with a line of names.

    Raises:
        TableError: unusable; the message is one line without the path.
    """
    try:
        import pyarrow  # noqa: PLC0415 - tens of MB that only this needs
        import pyarrow.csv  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as exc:
        raise TableError("reading it needs pyarrow: pip install 'lightkeeper[analyze]'") from exc
    kind = "CSV"
    try:
        with open_file(path) as file:
            kind = "parquet" if file.read(4) == b"PAR1" else kind
            file.seek(0)
            if kind == "parquet":
                with pyarrow.parquet.ParquetFile(file) as parquet:
                    read = parquet.read([*_USED.intersection(parquet.schema_arrow.names)])
            else:
                read = pyarrow.csv.read_csv(file)
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except pyarrow.ArrowException as exc:
        raise TableError(f"not readable as {kind}: {str(exc).splitlines()[0][:200]}") from exc
    except OSError as exc:
        raise TableError(exc.strerror or f"not readable as {kind}: {exc}") from exc
    ops: list[str] = []
    columns = {
        name: _values(name, column, ops)
        for name, column in zip(map(str.strip, read.column_names), read.columns, strict=True)
        if name in _USED
    }
    return build_table(columns, ops)


def _values(name: str, column: Any, ops: list[str]) -> Any:
    """The numbers of a column of pyarrow, NaN for none; of operations codes of the names, which are
    added to `ops`.
    """
    import pyarrow.compute  # noqa: PLC0415

    try:
        if name == "optype":
            ops += sorted(filter(None, column.unique().to_pylist()))
            names = pyarrow.array(ops, pyarrow.string())
            return pyarrow.compute.index_in(column, value_set=names).fill_null(-1).to_numpy()
        if not (pyarrow.types.is_integer(column.type) or pyarrow.types.is_floating(column.type)):
            column = column.cast(pyarrow.float64())
        return column.to_numpy()
    except (pyarrow.ArrowException, TypeError) as exc:
        expected = "names" if name == "optype" else "numbers"
        raise TableError(f"column {name} holds {column.type}, expected {expected}") from exc


# -- ops ---------------------------------------------------------------------------------------


class TimeOwner(StrEnum):
    """Whose time an operation takes: a pattern of its name, spelled as in the recorded jobs.

    All other operations accuse nobody: pauses, optimizers that hold collectives, and collectives
    whose members are not the ranks of one stage (of the embedding, which connect two stages; of
    layer norms, between tensor-parallel peers, for which the table has no rows).
    """

    OWN = ".*-compute|data-load"
    """The rank's own work."""
    SEND = ".*-send"
    """To a neighbour in the pipeline; waits for it too."""
    RECEIVE = ".*-recv"
    SHARED = "(grads|params)-.*(reduce|gather).*"
    """A collective of the ranks of one stage; waits for the last of them."""


def direction(name: str) -> int:
    """+1 for operations towards the next stage (forward), -1 for backward."""
    return -1 if name.startswith("backward") else 1
