"""Parquet through pyarrow, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from monitor.stragglers.table import TableError
from monitor.traces.columns import Columns, wanted

_BATCH: Final = 1 << 18

MAGIC: Final = b"PAR1"


def read(path: Path, tell: Callable[[int, int], None]) -> Columns:
    """The columns of a parquet file; `tell` is called with rows done and rows in all.

    Raises:
        TableError: not readable as parquet, or a column of an unexpected type.
    """
    try:
        import pyarrow  # noqa: PLC0415 - tens of MB that only this needs
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as exc:
        raise TableError("reading parquet needs pyarrow: pip install pyarrow, or give CSV") from exc
    columns = Columns()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            total = file.metadata.num_rows
            names = wanted(file.schema_arrow.names)
            _missing(columns, names, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=_BATCH, columns=names):
                for name in names:
                    columns.add(name, _values(columns, name, batch.column(name)))
                columns.rows += batch.num_rows
                tell(columns.rows, total)
    except (pyarrow.ArrowException, OSError) as exc:
        raise TableError(f"not readable as parquet: {str(exc).splitlines()[0][:200]}") from exc
    return columns


def _missing(columns: Columns, names: list[str], there: list[str]) -> None:
    """A file without rows still has columns; one without ours says which it has."""
    if not names:
        raise TableError(f"none of the expected columns; there are {', '.join(there[:8])}")
    for name in names:
        columns.add(name, np.empty(0))


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
