"""CSV with a line of names on top, read in blocks with the standard library and numpy."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor.stragglers.table import TableError
from monitor.traces.columns import Columns, wanted

_BLOCK: Final = 1 << 16


def read(path: Path, tell: Callable[[int, int], None]) -> tuple[Columns, list[str]]:
    """The columns of a CSV file, and notes; `tell` is called with bytes done and bytes in all.

    Fields that are no numbers where numbers are expected count as missing.

    Raises:
        TableError: not readable as CSV.
    """
    columns, ragged = Columns(), 0
    size = path.stat().st_size
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            lines = _counted(file, tell, size)
            reader = csv.reader(lines)
            head = [name.strip() for name in next(reader, [])]
            names = wanted(head)
            if not names:
                told = ", ".join(name[:40] for name in head[:8])
                raise TableError(f"none of the expected columns in its first line: {told}")
            places = [head.index(name) for name in names]
            for name in names:
                columns.add(name, np.empty(0))
            while block := list(islice(reader, _BLOCK)):
                good = [row for row in block if len(row) == len(head)]
                ragged += len(block) - len(good)
                _add(columns, names, places, good)
    except (OSError, csv.Error) as exc:
        raise TableError(f"not readable as CSV: {str(exc)[:200]}") from exc
    notes = [f"{ragged:,} lines left out: not as many fields as the first line"] if ragged else []
    return columns, notes


def _counted(lines: Iterable[str], tell: Callable[[int, int], None], size: int) -> Iterator[str]:
    done = 0
    for number, line in enumerate(lines):
        done += len(line)
        if not number % _BLOCK:
            tell(done, size)
        yield line


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
