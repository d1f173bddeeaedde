"""Entries of a pickle sorted into classes: the same bytes but for numbers that may differ.

All is done for many entries at once: those of one length are laid under each other, the numbers
are blanked out by the shape of the first, and what is then equal is one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.record import FlightRecordError
from monitor.flight_recorder.row_shape import Shape, walk

_MOST_CLASSES: Final = 512
"""More than this, and the entries are not alike."""
_MOST_WORK: Final = 8
"""How often all bytes may be gone over: once for each shape that entries of one length have."""
_BETWEEN: Final = (b"", b"e(")
"""What may stand between two entries; Python's pickler begins anew after 1,000."""
_LAST: Final = re.compile(rb"eu(?:q.|r.{4})?\.", re.DOTALL)
"""What stands after the last; torch numbers the record when all is in it."""
_WORD: Final = 8


class Numbers(NamedTuple):
    """A key's numbers, where they differ within classes."""

    varies: NDArray[np.bool_]
    values: NDArray[np.int64]


class Classes:
    """Which entries are alike."""

    def __init__(self, sorter: _Sorter) -> None:
        self._data, self._begins = sorter.data, sorter.begins
        self._all_shapes, self._shape_of = sorter.shapes, sorter.shape_of
        counts = np.bincount(self._shape_of, minlength=len(self._all_shapes)).tolist()
        self.values = sum(map(mul, counts, (shape.values for shape in self._all_shapes)))
        """Instructions of all entries."""
        self._arrange(sorter.class_of, sorter.firsts)
        self.numbers = self._numbers()

    def _arrange(self, class_of: NDArray[np.int64], firsts: Sequence[int]) -> None:
        order = np.argsort(firsts)
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        self.which = rank[class_of]
        """For each entry its class; they are numbered in order of appearance."""
        self.firsts = np.asarray(firsts)[order]
        """The first entry of each class."""
        self.counts = np.bincount(self.which)
        self.shapes = [self._all_shapes[one] for one in self._shape_of[self.firsts].tolist()]

    def _numbers(self) -> dict[str, Numbers]:
        keys = sorted({one.key for shape in self._all_shapes for one in shape.numbers})
        column = {key: place for place, key in enumerate(keys)}
        places = [
            [(column[one.key], one.at, one.width) for one in shape.numbers]
            for shape in self._all_shapes
        ]
        every = np.arange(len(self._begins))
        values, widths = self._gather(every, places, len(keys))
        widths[-1] = 0  # its bytes end before a whole word; it is the first of its class anyway
        short = widths == 4
        values[short] = values[short].astype(np.uint32).view(np.int32)
        return {
            key: Numbers(widths[:, place] > 0, values[:, place]) for place, key in enumerate(keys)
        }

    def keep_givers(self, wanted: NDArray[np.int64]) -> bool:
        """Make a class of its own of each entry that gives one of these memo numbers.

        True if there were any.

        Raises:
            FlightRecordError: a number is out of all proportion, or there are too many classes.
        """
        left_out = np.ones(len(self.which), np.bool_)
        left_out[self.firsts] = False
        rows = np.flatnonzero(left_out)
        of_shape = self._shape_of[rows]
        used = np.bincount(of_shape, minlength=len(self._all_shapes)) > 0
        places = [
            [(place, *put) for place, put in enumerate(shape.puts)] if one else []
            for one, shape in zip(used.tolist(), self._all_shapes, strict=True)
        ]
        given, widths = self._gather(rows, places, max(map(len, places), default=0))
        if given.max(initial=0) > self.values:
            raise FlightRecordError("broken pickle: a memo index beyond all values")
        table = np.zeros(self.values + 1, np.bool_)
        table[wanted[wanted <= self.values]] = True
        more = rows[(table[given] & (widths > 0)).any(axis=1)]
        if not len(more):
            return False
        firsts = np.append(self.firsts, more).tolist()
        if len(firsts) > _MOST_CLASSES:
            raise FlightRecordError("entries that are not alike")
        self.which[more] = np.arange(len(self.firsts), len(firsts))
        self._arrange(self.which, firsts)
        return True

    def _gather(
        self,
        rows: NDArray[np.int64],
        places: Sequence[Iterable[tuple[int, int, int]]],
        columns: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Little-endian numbers of these entries, and of how many bytes they are (0: none).

        `places`: for each shape the columns that it has, where they stand and their bytes.
        """
        if len(rows) * columns > len(self._data):
            raise FlightRecordError("entries that are not alike")
        at = np.zeros((len(places), columns), np.int64)
        width = np.zeros((len(places), columns), np.int64)
        for shape, here in enumerate(places):
            for column, place, size in here:
                at[shape, column], width[shape, column] = place, size
        mine = self._shape_of[rows]
        words = np.ndarray((len(self._data) - _WORD + 1,), "<i8", self._data, strides=(1,))
        where = at[mine]
        where += self._begins[rows][:, None]
        widths = width[mine]
        values = words[np.minimum(where, len(words) - 1)]
        keep = np.array([0, 0xFF, 0xFFFF, 0, 0xFFFFFFFF, 0, 0, 0, -1])
        values &= keep[widths]
        return values, widths


def sort(data: bytes, begins: NDArray[np.int64]) -> Classes | None:
    """The classes of entries that begin at these places; None if they are not written alike.

    The last reaches up to the end of the pickle.
    """
    sorter = _Sorter(data, begins)
    return Classes(sorter) if sorter.sort() else None


class _Sorter:
    def __init__(self, data: bytes, begins: NDArray[np.int64]) -> None:
        self.data, self.begins = data, begins
        self.names: dict[int, bytes] = {}
        self.shapes: list[Shape] = []
        self.shape_of = np.zeros(len(begins), np.int64)
        self.class_of = np.zeros(len(begins), np.int64)
        self.firsts: list[int] = []
        self.work = 0

    def sort(self) -> bool:
        lengths = np.diff(self.begins)
        order = np.argsort(lengths, kind="stable")
        cuts = np.flatnonzero(np.diff(lengths[order])) + 1
        if len(cuts) > _MOST_CLASSES:
            return False
        for rows in sorted(np.split(order, cuts), key=_first):
            rest: NDArray[np.int64] | None = rows
            while rest is not None and len(rest):
                rest = self._alike(rest)
            if rest is None or len(self.firsts) > _MOST_CLASSES:
                return False
        return self._last()

    def _last(self) -> bool:
        shape = walk(self.data[int(self.begins[-1]) :], self.names)
        if shape is None or _LAST.fullmatch(shape.rest) is None:
            return False
        self._add(np.array([len(self.begins) - 1]), shape, np.zeros(1, np.int64), [0])
        return True

    def _alike(self, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Sort those that have the shape of the first; the others, None if it has no plain one."""
        at = self.begins[rows]
        begin, end = int(at[0]), int(self.begins[rows[0] + 1])
        first = self.data[begin:end]
        shape = walk(first, self.names)
        if shape is None or shape.rest not in _BETWEEN:
            return None
        if len(rows) == 1:
            self._add(rows, shape, np.zeros(1, np.int64), [0])
            return rows[1:]
        self.work += len(rows) * shape.length
        if self.work > _MOST_WORK * len(self.data):
            return None
        lined = _blanked(self.data, at, shape)
        table = {one: number for number, one in enumerate(dict.fromkeys(lined))}
        mine = np.fromiter(map(table.__getitem__, lined), np.int64, len(lined))
        if len(table) == 1:
            self._add(rows, shape, mine, [0])
            return rows[:0]
        return self._split(rows, shape, mine, table)

    def _split(
        self,
        rows: NDArray[np.int64],
        shape: Shape,
        mine: NDArray[np.int64],
        table: dict[bytes, int],
    ) -> NDArray[np.int64]:
        distinct = np.frombuffer(b"".join(table), np.uint8).reshape(-1, shape.length)
        orders = distinct & np.frombuffer(shape.orders, np.uint8)
        good = (orders == orders[0]).all(axis=1)
        others = rows[:0]
        if not good.all():
            number = np.cumsum(good) - 1
            stay = good[mine]
            rows, others = rows[stay], rows[~stay]
            mine = number[mine[stay]]
        firsts = np.zeros(int(good.sum()), np.int64)
        firsts[mine[::-1]] = np.arange(len(mine))[::-1]
        self._add(rows, shape, mine, firsts.tolist())
        return others

    def _add(
        self,
        rows: NDArray[np.int64],
        shape: Shape,
        mine: NDArray[np.int64],
        firsts: Sequence[int],
    ) -> None:
        self.shape_of[rows] = len(self.shapes)
        self.class_of[rows] = mine + len(self.firsts)
        self.shapes.append(shape)
        self.firsts += rows[firsts].tolist()


def _first(rows: NDArray[np.int64]) -> int:
    return int(rows[0])


def _blanked(data: bytes, at: NDArray[np.int64], shape: Shape) -> list[Any]:
    """The entries' bytes with zeros where numbers may differ."""
    length = shape.length
    windows = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    lined = windows[at].view(np.uint8).reshape(len(at), length)
    lined &= np.frombuffer(shape.same, np.uint8)
    found: list[Any] = lined.view(f"V{length}").ravel().tolist()
    return found
