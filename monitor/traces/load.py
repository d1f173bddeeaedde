"""From a path to a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from monitor.stragglers.table import Table, TableError, build
from monitor.traces import parquet, separated


def load(path: Path, tell: Callable[[int, int], None] | None = None) -> Table:
    """The table in a file: parquet by its first bytes, CSV otherwise.

    `tell` is called with how much is read and how much there is, in rows or bytes.

    Raises:
        TableError: unusable; the message is one line without the path.
    """
    tell = tell or (lambda _done, _total: None)
    try:
        if not path.is_file():
            raise TableError("is a folder, expected a file" if path.is_dir() else "no such file")
        with path.open("rb") as file:
            first = file.read(len(parquet.MAGIC))
    except OSError as exc:
        raise TableError(exc.strerror or str(exc)) from exc
    if not first:
        raise TableError("the file is empty")
    notes: list[str] = []
    if first == parquet.MAGIC:
        columns = parquet.read(path, tell)
    else:
        columns, notes = separated.read(path, tell)
    arrays, ops = columns.whole()
    table = build(arrays, ops)
    return replace(table, notes=(*notes, *table.notes))
