"""The entries of one dump as columns of Python values, before their types are checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lightkeeper.monitor.records.safe_pickle import FlightRecordError

_RECENT: Final = 8
"""Recent payloads of one name that a row is compared with before its key is built."""
MOST_WORK: Final = 1 << 22
"""Sizes and dtypes read from a pickle, which may refer to one list a million times: 0.5 s."""
_PAYLOAD: Final = ("profiling_name", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

PayloadKey = tuple[Any, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""profiling_name, sizes in and out, dtypes in and out; hashable."""


Rows = Sequence[Mapping[str, Any]]


def column(rows: Rows, key: str, default: Any = None) -> list[Any]:
    """The entries' values of a key; `default` for those that lack it."""
    try:
        return list(map(itemgetter(key), rows))
    except KeyError:  # a writer normally gives all entries the same keys
        return [row.get(key, default) for row in rows]


class _Payloads:
    """Numbers the payloads of one dump in order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[PayloadKey, int] = {}
        self._recent: dict[Any, list[tuple[Any, int]]] = {}
        self._work = 0

    def of(self, row: tuple[Any, ...]) -> int:
        """The number of the payload in an entry.

        Comparing lists is faster than making tuples of them. A row is compared only with rows
        found to be flat, so a hostile row's nesting is never followed.
        """
        recent = self._recent.setdefault(row[0], [])
        for earlier, number in recent:
            if earlier == row:
                return number
        key = self._key(row)
        number = self.numbers.setdefault(key, len(self.numbers))
        recent.insert(0, (row, number))
        del recent[_RECENT:]
        return number

    def _key(self, row: tuple[Any, ...]) -> PayloadKey:
        name, sizes_in, sizes_out, dtypes_in, dtypes_out = (
            row[0],
            *(value or () for value in row[1:]),
        )
        self._work += sum(map(len, (sizes_in, sizes_out, dtypes_in, dtypes_out)))
        if self._work <= MOST_WORK:
            self._work += sum(map(len, sizes_in)) + sum(map(len, sizes_out))
        if self._work > MOST_WORK:
            raise FlightRecordError(f"more than {MOST_WORK} sizes and dtypes")
        key = (
            name,
            tuple(map(tuple, sizes_in)),
            tuple(map(tuple, sizes_out)),
            tuple(dtypes_in),
            tuple(dtypes_out),
        )
        _check(key)
        return key


def _check(key: PayloadKey) -> None:
    name, sizes_in, sizes_out, dtypes_in, dtypes_out = key
    if not isinstance(name, str):
        raise FlightRecordError("profiling_name is a text")
    if not all(type(n) is int for sizes in (sizes_in, sizes_out) for size in sizes for n in size):
        raise FlightRecordError("sizes are lists of numbers")
    if not all(isinstance(dtype, str) for dtype in (*dtypes_in, *dtypes_out)):
        raise FlightRecordError("dtypes are texts")


def payload_numbers(rows: Rows) -> tuple[NDArray[np.int32], tuple[PayloadKey, ...]]:
    """For each entry the number of its payload, and the payloads by number.

    Raises:
        FlightRecordError: a value is malformed, or there are far too many.
        TypeError, KeyError: the same, but raised by Python itself.
    """
    payloads = _Payloads()
    columns = (column(rows, key) for key in _PAYLOAD)
    numbers = [payloads.of(row) for row in zip(*columns, strict=True)]
    return np.array(numbers, np.int32), tuple(payloads.numbers)
