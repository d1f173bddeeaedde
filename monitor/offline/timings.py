"""Recorded timings of operations: a Parquet or CSV file, read into a table of coded columns.

Both are read in batches, into columns of the smallest types that fit. The job's parallel sizes
come from a small YAML file; an operation's name shows whose time it takes (`TimeOwner`).
"""

from __future__ import annotations

import csv
import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from msgspec import Meta, Struct, ValidationError, convert, field
from numpy.typing import NDArray

from lightkeeper.monitor.model.wording import listed
from lightkeeper.worker_server.home import open_file

# -- table -------------------------------------------------------------------------------------

Floats = NDArray[np.float64]
Codes = NDArray[np.int32]

NEEDED: Final = ("rank", "stage", "step", "optype", "duration")
WHOLE: Final = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
"""Integer columns."""
USED: Final = (*NEEDED, "dp_rank", "start_ts", "seq_id", "mc", "mb_id")
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
    op: NDArray[np.int16]
    chunk: NDArray[np.int32]
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

    def rows_of(self, ops: Sequence[int] | NDArray[np.int16]) -> NDArray[np.intp]:
        """Rows of these operations."""
        chosen = np.zeros(max(1, len(self.ops)), dtype=np.bool_)
        chosen[np.asarray(ops, dtype=np.intp)] = True
        return np.flatnonzero(chosen[self.op])


def build(columns: Mapping[str, NDArray[Any]], ops: Sequence[str]) -> TimingTable:
    """A table from raw columns; `optype` holds codes into `ops`, or -1.

    Rows without a usable rank, step, type or duration (missing, NaN, infinite, negative) are left
    out and counted in a note. Missing integers are -2**31 or NaN.

    Raises:
        TableError: a needed column is missing, or no row is usable.
    """
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        there = listed(sorted(map(str, columns)), 8) or "none"
        raise TableError(f"no column {' and no column '.join(missing)}; there are {there}")
    columns, notes, rows_read = _usable(columns)
    if not len(columns["rank"]):
        raise TableError("no usable row" if rows_read else "the table has no rows")
    ranks, rank = coded(columns["rank"])
    steps, step = coded(columns["step"])
    if len(ranks) * len(steps) > max(_LEAST_CELLS, _CELLS_A_ROW * len(rank)):
        what = f"{len(rank):,} rows are too few for {len(ranks):,} ranks in {len(steps):,} steps"
        raise TableError(f"{what}: ranks that share no steps cannot be compared")
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
    return TimingTable(
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
    """Distinct values, sorted, and for each value its index among them."""
    low, high = int(values.min()), int(values.max())
    if high - low < _DENSE:  # counting is much faster than sorting
        offsets = values.astype(np.int64) - low
        present = np.zeros(high - low + 1, dtype=np.bool_)
        present[offsets] = True
        place = np.cumsum(present, dtype=np.int32) - np.int32(1)
        return np.flatnonzero(present).astype(np.int64) + low, place[offsets]
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
    return {name: values[good] for name, values in columns.items()}, [note], rows


def _of_rank(rank: Codes, values: NDArray[Any], ranks: int) -> tuple[NDArray[np.int64], int]:
    """Each rank's most frequent value, and how many rows have another."""
    distinct, places = coded(values)
    keys, counts = np.unique(rank.astype(np.int64) * len(distinct) + places, return_counts=True)
    order = np.lexsort((-keys, counts))  # the most frequent last; the smaller value on a tie
    most = np.zeros(ranks, dtype=np.int64)
    most[keys[order] // len(distinct)] = keys[order] % len(distinct)
    return distinct[most], int(np.count_nonzero(most[rank] != places))


# -- columns -----------------------------------------------------------------------------------

MISSING: Final = -(2**31)
"""An integer that a row does not have."""
_MOST_OPS: Final = 10_000
_TYPES: Final = {"step": "i8", "optype": "i2"}


@dataclass(slots=True)
class Columns:
    """The columns read so far."""

    ops: dict[str, int] = dataclasses.field(default_factory=dict)
    rows: int = 0
    _parts: dict[str, list[NDArray[Any]]] = dataclasses.field(default_factory=dict)

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Add a batch of one column of numbers; NaN where a row has none."""
        if name in WHOLE and values.dtype.kind == "f":
            with np.errstate(invalid="ignore"):
                inside = np.abs(values) < 2.0**62
                values = np.where(inside, np.rint(values), MISSING).astype(np.int64)
        kind = _TYPES.get(name, "i4" if name in WHOLE else "f8")
        if name in WHOLE and len(values):
            # Out of range counts as missing: no job has 2**31 ranks or microbatches.
            outside = (values < MISSING) | (values > (2**31 - 1 if kind == "i4" else 2**62))
            values = np.where(outside, MISSING, values) if outside.any() else values
        self._parts.setdefault(name, []).append(values.astype(kind, copy=False))

    def add_ops(self, names: Iterable[str | None]) -> NDArray[np.int16]:
        """Codes of the names of operations; -1 for none.

        Raises:
            TableError: too many different names to be types of operations.
        """
        codes = []
        for name in names:
            code = -1 if not name else self.ops.setdefault(name, len(self.ops))
            codes.append(code)
        if len(self.ops) > _MOST_OPS:
            raise TableError(f"more than {_MOST_OPS:,} types of operations in column optype")
        return np.array(codes, dtype=np.int16)

    def whole(self) -> tuple[dict[str, NDArray[Any]], list[str]]:
        """Each column as one array, its batches freed; operations sorted by name."""
        arrays = {}
        for name in sorted(self._parts):
            arrays[name] = np.concatenate(self._parts.pop(name))
        names = sorted(self.ops)
        if "optype" in arrays and names:
            place = np.full(len(names) + 1, -1, dtype=np.int16)  # the last is for -1
            for code, name in enumerate(names):
                place[self.ops[name]] = code
            arrays["optype"] = place[arrays["optype"]]
        return arrays, names


def _expected(columns: Columns, present: Sequence[str], where: str) -> list[str]:
    """Columns to read that are present; each is added empty, in case the file has no rows."""
    names = [name for name in USED if name in present]
    if not names:
        raise TableError(f"none of the expected columns{where} {', '.join(present[:8])}")
    for name in names:
        columns.add(name, np.empty(0))
    return names


# -- parquet -----------------------------------------------------------------------------------

_BATCH: Final = 1 << 18

MAGIC: Final = b"PAR1"


def read_parquet(path: Path, tell: Callable[[int, int], None]) -> Columns:
    """The columns of a parquet file; `tell` is called with rows read and rows in total.

    Raises:
        TableError: not readable as parquet, or a column of an unexpected type.
    """
    try:
        import pyarrow  # noqa: PLC0415 - tens of MB that only this needs
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as exc:
        raise TableError(
            "reading parquet needs pyarrow: pip install 'lightkeeper[analyze]', or give CSV"
        ) from exc
    columns = Columns()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            total = file.metadata.num_rows
            names = _expected(columns, file.schema_arrow.names, "; there are")
            for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                for name in names:
                    columns.add(name, _values(columns, name, batch.column(name)))
                columns.rows += batch.num_rows
                tell(columns.rows, total)
    except (pyarrow.ArrowException, OSError) as exc:
        raise TableError(f"not readable as parquet: {str(exc).splitlines()[0][:200]}") from exc
    return columns


def _values(columns: Columns, name: str, column: Any) -> Any:
    import pyarrow  # noqa: PLC0415

    kinds = pyarrow.types
    if name == "optype":
        coded = column if kinds.is_dictionary(column.type) else column.dictionary_encode()
        words = coded.dictionary.to_pylist()
        if any(word is not None and not isinstance(word, str) for word in words):
            raise TableError(f"column optype holds {column.type}, expected names")
        codes = np.append(columns.add_ops(words), np.int16(-1))
        places = coded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
        return codes[places]
    if kinds.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (
        kinds.is_integer(column.type)
        or kinds.is_floating(column.type)
        or kinds.is_decimal(column.type)
        or kinds.is_null(column.type)
    ):
        raise TableError(f"column {name} holds {column.type}, expected numbers")
    if kinds.is_decimal(column.type) or kinds.is_null(column.type):
        column = column.cast(pyarrow.float64())
    return column.to_numpy(zero_copy_only=False)


# -- separated ---------------------------------------------------------------------------------

_BLOCK: Final = 1 << 16


def read_csv(path: Path, tell: Callable[[int, int], None]) -> tuple[Columns, list[str]]:
    """The columns of a CSV file, and notes; `tell` is called with bytes read and in total.

    Fields that are not numbers where numbers are expected count as missing.

    Raises:
        TableError: not readable as CSV.
    """
    columns, ragged = Columns(), 0
    size = path.stat().st_size
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(file)
            head = [name.strip() for name in next(reader, [])]
            names = _expected(columns, [name[:40] for name in head], " in its first line:")
            places = [head.index(name) for name in names]
            while block := list(islice(reader, _BLOCK)):
                good = [row for row in block if len(row) == len(head)]
                ragged += len(block) - len(good)
                _add(columns, names, places, good)
                tell(os.lseek(file.fileno(), 0, os.SEEK_CUR), size)
    except (OSError, csv.Error) as exc:
        raise TableError(f"not readable as CSV: {str(exc)[:200]}") from exc
    notes = [f"{ragged:,} lines left out: not as many fields as the first line"] if ragged else []
    return columns, notes


def _add(
    columns: Columns, names: Sequence[str], places: Sequence[int], rows: list[list[str]]
) -> None:
    if not rows:
        return
    by_place = list(zip(*rows, strict=True))
    for name, place in zip(names, places, strict=True):
        words = by_place[place]
        if name == "optype":
            columns.add(name, columns.add_ops(word.strip() for word in words))
        else:
            columns.add(name, _numbers(words))
    columns.rows += len(rows)


def _numbers(words: Sequence[str]) -> NDArray[np.float64]:
    try:
        return np.array(words, dtype=np.float64)
    except ValueError:
        return np.array([_number(word) for word in words])


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")


# -- load --------------------------------------------------------------------------------------


def load(path: Path, tell: Callable[[int, int], None] | None = None) -> TimingTable:
    """The table in a file: parquet if its first bytes say so, else CSV.

    `tell` is called with the amount read and the total, in rows or bytes.

    Raises:
        TableError: unusable; the message is one line without the path.
    """
    tell = tell or (lambda _done, _total: None)
    try:
        if not path.is_file():
            raise TableError("is a folder, expected a file" if path.is_dir() else "no such file")
        with path.open("rb") as file:
            first = file.read(len(MAGIC))
    except OSError as exc:
        raise TableError(exc.strerror or str(exc)) from exc
    if not first:
        raise TableError("the file is empty")
    notes: list[str] = []
    if first == MAGIC:
        columns = read_parquet(path, tell)
    else:
        columns, notes = read_csv(path, tell)
    arrays, ops = columns.whole()
    table = build(arrays, ops)
    return replace(table, notes=(*notes, *table.notes))


# -- sizes -------------------------------------------------------------------------------------

_MAX_BYTES: Final = 1 << 20
_Size = Annotated[int, Meta(ge=1, le=10_000_000)]


class Sizes(Struct, frozen=True):
    """Sizes from the job's own description; None where it has none."""

    name: str = field(default="", name="trial_name")
    dp_size: _Size | None = None
    pp_size: _Size | None = None
    tp_size: _Size | None = None
    world_size: _Size | None = None


def read_sizes(path: Path) -> Sizes:
    """Sizes from `key: value` lines.

    Raises:
        TableError: unreadable, or a size is not a number; one line without the path.
    """
    import yaml  # noqa: PLC0415 - the monitor itself reads no YAML

    try:
        with open_file(path) as file:
            return convert(yaml.safe_load(file.read(_MAX_BYTES)), Sizes)
    except OSError as exc:
        raise TableError(exc.strerror or str(exc)) from exc
    except ValidationError as exc:
        raise TableError(f"{exc}, expected lines such as dp_size: 4") from exc
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise TableError("holds no YAML") from exc


def differences(table: TimingTable, sizes: Sizes) -> Iterator[str]:
    """Where the table does not match the job's sizes, for people."""
    stages = len(table.stages)
    if sizes.pp_size is not None and stages != sizes.pp_size:
        yield f"rows of {stages:,} of {sizes.pp_size:,} pipeline stages"
    if sizes.dp_size is not None and sizes.pp_size is not None:
        whole = sizes.dp_size * sizes.pp_size
        if len(table.ranks) != whole:
            yield f"rows of {len(table.ranks):,} ranks, expected {whole:,} (dp_size x pp_size)"
    if sizes.world_size is not None and int(table.ranks[-1]) >= sizes.world_size:
        yield f"rank {table.ranks[-1]} is outside of a world of {sizes.world_size:,}"


def stands_for(table: TimingTable, sizes: Sizes, rank: int) -> tuple[int, ...]:
    """Global ranks with common rows: a rank and its tensor-parallel peers, or only itself."""
    first = int(table.ranks[rank])
    size = sizes.tp_size or 1
    if size == 1 or size > 1024 or np.any(table.ranks % size):
        return (first,)
    return tuple(range(first, first + size))


# -- ops ---------------------------------------------------------------------------------------


class TimeOwner(StrEnum):
    """Whose time an operation takes."""

    OWN = "own"  # the rank's own work: forward, backward, loading data
    SEND = "send"  # to a neighbour in the pipeline; waits for it too
    RECEIVE = "receive"
    SHARED = "shared"  # a collective of the ranks of one stage; waits for the last of them
    OTHER = "other"  # pauses, optimizers that hold collectives, groups whose members are unknown


_OWN = ("compute", "data-load", "dataload")
_SHARED = ("reduce", "gather")
_SHARED_OF = ("grads-", "params-", "grad-", "param-")


def role(name: str) -> TimeOwner:
    """The role by name, as spelled in the recorded jobs (`forward-compute`, `backward-send` ...).

    Only collectives of gradients or parameters over the ranks of a stage count as shared: those of
    the embedding connect two stages, and those of layer norms the tensor-parallel peers, for which
    the table has no rows. An unknown name accuses nobody.
    """
    plain = name.strip().lower().replace("_", "-")
    if plain in {"forward", "backward"} or any(word in plain for word in _OWN):
        return TimeOwner.OWN
    if plain.endswith("send"):
        return TimeOwner.SEND
    if plain.endswith(("recv", "receive")):
        return TimeOwner.RECEIVE
    if plain.startswith(_SHARED_OF) and any(word in plain for word in _SHARED):
        return TimeOwner.SHARED
    return TimeOwner.OTHER


def direction(name: str) -> int:
    """+1 for operations towards the next stage (forward), -1 for backward."""
    return -1 if name.strip().lower().startswith("backward") else 1


def codes_of(names: Sequence[str], owner: TimeOwner) -> NDArray[np.int16]:
    """Codes of the operations with a role."""
    codes = [code for code, name in enumerate(names) if role(name) is owner]
    return np.array(codes, dtype=np.int16)
