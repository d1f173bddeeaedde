"""Entries of a pickled record, read without running the pickle for each of them.

Theory of operation. The writer is the same for all entries, so two of them differ in numbers and
hardly anything else. `walk` runs over the bytes of one, keeping count of what the stack machine
would have on its stack, and tells which bytes say what is to be done (instructions, lengths) and
which are numbers that may be others in the next. An entry that has the same instructions in the
same places needs no second walk: whatever its numbers are, the machine does the same.

Only entries that stand by themselves are taken: a dict that is begun, filled and left on the
stack, whose containers are filled right after they were made. So no entry changes what another
one has made, and leaving some out changes nothing about the rest.

Then all is done for many entries at once: those of one length are laid under each other, the
numbers are blanked out by the shape of the first, and what is then equal is one class. `EntryRows`
is what comes out: columns of Python values, before anything is known of their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter, mul
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from monitor.records.safe_pickle import GET, LONG_GET, LONG_PUT, PUT, TUPLES, FlightRecordError

# -- the shape of one entry --------------------------------------------------------------------

NUMBERS: Final = {key.encode(): key for key in (
    "record_id", "id", "collective_seq_id", "p2p_seq_id", "seq_id", "op_id",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
    "duration_ms",
)}  # fmt: skip
"""Keys whose numbers differ from entry to entry."""

_MARK, _SETITEMS, _APPENDS, _SETITEM, _APPEND = b"(uesa"
_DICT, _LIST = b"}]"
_TEXT, _LONG = b"X\x8a"
_FLOAT: Final = ord("G")
_SCALARS: Final = {ord("N"): 0, 0x88: 0, 0x89: 0, ord("K"): 1, ord("M"): 2, ord("J"): 4, _FLOAT: 8}
"""Instruction -> bytes of its number."""
_PLAIN, _NEW_LIST, _NEW_DICT = 0, 1, 2
"""What lies on the stack: something to be left alone, or an empty container to be filled."""
_PUTS: Final = {PUT: 1, LONG_PUT: 4}
_NEW: Final = {_LIST: _NEW_LIST, _DICT: _NEW_DICT}
_CLOSES: Final = {_APPENDS: _NEW_LIST, _SETITEMS: _NEW_DICT}
_ADDS: Final = {_APPEND: (1, _NEW_LIST), _SETITEM: (2, _NEW_DICT)}
_WIDE: Final = 8
"""Bytes of an integer that numpy has."""


class Number(NamedTuple):
    """One that may differ."""

    pair: int
    """Which of the dict's."""
    key: str
    at: int
    width: int
    of_type: type


@dataclass(frozen=True, slots=True)
class Shape:
    """Which bytes of an entry are what; places are counted from its first."""

    length: int
    orders: bytes
    """255 for the bytes of instructions and lengths, 0 for the others."""
    same: bytes
    """0 for the numbers that may differ between entries taken for alike, 255 for the others."""
    puts: tuple[tuple[int, int], ...]
    """Where memo numbers stand that this entry gives, and of how many bytes."""
    numbers: tuple[Number, ...]
    pairs: int
    values: int
    """Instructions."""
    rest: bytes
    """What follows the entry up to the next."""


def walk(row: bytes, names: dict[int, bytes]) -> Shape | None:
    """The shape of one entry with all up to the next, or None if it is not a plain one.

    `names`: texts by memo number, as far as entries spelled them out; those of this one are added.
    """
    walker = _Walker(row, names)
    try:
        return walker.shape()
    except (IndexError, _NotPlainError):
        return None


class _NotPlainError(Exception):
    """Not written as a plain entry is."""


class _Walker:
    def __init__(self, row: bytes, names: dict[int, bytes]) -> None:
        self.row, self.names = row, names
        self.stack: list[int] = []
        self.marks: list[int] = []
        self.orders = bytearray(len(row))
        self.same = bytearray(b"\xff" * len(row))
        self.puts: list[tuple[int, int]] = []
        self.numbers: list[Number] = []
        self.key: bytes | None = None
        self.pairs = 0

    def shape(self) -> Shape:
        """One long loop: a call for each instruction would double the time."""
        row, names, orders, stack, marks = self.row, self.names, self.orders, self.stack, self.marks
        at, values = 0, 0
        text: bytes | None = None
        while True:
            op = row[at]
            orders[at] = 255
            values += 1
            if op in _PUTS:
                at = self._put(at, _PUTS[op], text)
                continue
            if op == GET:
                text = names.get(row[at + 1])
                at += 2
            elif op == LONG_GET:
                text = names.get(int.from_bytes(row[at + 1 : at + 5], "little"))
                at += 5
            elif op == _TEXT:
                end = at + 5 + int.from_bytes(row[at + 1 : at + 5], "little")
                orders[at + 1 : at + 5] = b"\xff" * 4
                text = row[at + 5 : end]
                at = end
            elif op in _SCALARS or op == _LONG:
                at, text = self._number(op, at), None
            else:
                self._container(op)
                at, text = at + 1, None
                if op == _SETITEMS and not marks:
                    break
                continue
            stack.append(_PLAIN)
            if len(marks) == 1 and (len(stack) - marks[0]) & 1:
                self.key = text
        if stack != [_PLAIN]:
            raise _NotPlainError
        orders[at:] = b"\xff" * (len(row) - at)
        return Shape(
            len(row), bytes(orders), bytes(self.same), tuple(self.puts), tuple(self.numbers),
            self.pairs, values, row[at:],
        )  # fmt: skip

    def _number(self, op: int, at: int) -> int:
        """One is about to be pushed; it may differ where it is the value of such a key."""
        begin = at + 1
        if op == _LONG:
            width = self.row[begin]
            self.orders[begin] = 255
            begin += 1
        else:
            width = _SCALARS[op]
        marks = self.marks
        if width and len(marks) == 1 and self.key in NUMBERS and (op != _LONG or width == _WIDE):
            place = len(self.stack) - marks[0]
            if place & 1:
                of_type = float if op == _FLOAT else int
                self.numbers.append(Number(place // 2, NUMBERS[self.key], begin, width, of_type))
                self._free(begin, width)
        return begin + width

    def _free(self, at: int, width: int) -> None:
        if at + width > len(self.row):
            raise _NotPlainError
        self.same[at : at + width] = bytes(width)

    def _put(self, at: int, width: int, text: bytes | None) -> int:
        if not self.stack:
            raise _NotPlainError
        at += 1
        self.puts.append((at, width))
        self._free(at, width)
        if text is not None:
            self.names[int.from_bytes(self.row[at : at + width], "little")] = text
        return at + width

    def _container(self, op: int) -> None:
        """What makes, fills or closes one; a mark is for filling what has just been made."""
        stack, marks = self.stack, self.marks
        if op in _NEW:
            stack.append(_NEW[op])
        elif op == _MARK:
            if stack[-1] == _PLAIN:
                raise _NotPlainError
            marks.append(len(stack))
        elif op in _CLOSES:
            self._close(op)
        elif op in _ADDS:
            count, kind = _ADDS[op]
            self._take(count)
            if stack[-1] != kind:
                raise _NotPlainError
            stack[-1] = _PLAIN
        elif op in TUPLES:
            self._take(TUPLES[op])
            stack.append(_PLAIN)
        else:
            raise _NotPlainError

    def _take(self, count: int) -> None:
        if len(self.stack) - count < (self.marks[-1] if self.marks else 0):
            raise _NotPlainError
        del self.stack[len(self.stack) - count :]

    def _close(self, op: int) -> None:
        mark = self.marks.pop()
        stack = self.stack
        if stack[mark - 1] != _CLOSES[op]:
            raise _NotPlainError
        if not self.marks:
            self.pairs = (len(stack) - mark) // 2
        if op == _SETITEMS and (len(stack) - mark) % 2:
            raise _NotPlainError
        del stack[mark:]
        stack[mark - 1] = _PLAIN


# -- classes of entries ------------------------------------------------------------------------

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
        self.shapes = [self._all_shapes[shape] for shape in self._shape_of[self.firsts].tolist()]

    def _numbers(self) -> dict[str, Numbers]:
        keys = sorted({number.key for shape in self._all_shapes for number in shape.numbers})
        column = {key: place for place, key in enumerate(keys)}
        places = [
            [(column[number.key], number.at, number.width) for number in shape.numbers]
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
            [(place, *put) for place, put in enumerate(shape.puts)] if needed else []
            for needed, shape in zip(used.tolist(), self._all_shapes, strict=True)
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
        for rows in sorted(np.split(order, cuts), key=lambda rows: int(rows[0])):
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
        table = {row: number for number, row in enumerate(dict.fromkeys(lined))}
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


def _blanked(data: bytes, at: NDArray[np.int64], shape: Shape) -> list[Any]:
    """The entries' bytes with zeros where numbers may differ."""
    length = shape.length
    windows = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    lined = windows[at].view(np.uint8).reshape(len(at), length)
    lined &= np.frombuffer(shape.same, np.uint8)
    blanked: list[Any] = lined.view(f"V{length}").ravel().tolist()
    return blanked


# -- columns -----------------------------------------------------------------------------------

_FEWEST: Final = 2
"""`itemgetter` of a single key gives no tuple."""
_RECENT: Final = 8
"""Payloads of one name that are looked at before a row is taken for a new one."""
MOST_WORK: Final = 1 << 22
"""Sizes and dtypes taken from a pickle, which may name one list a million times: 0.5 s."""
PAYLOAD: Final = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")

_T = TypeVar("_T", bound=np.generic)
PayloadKey = tuple[Any, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
"""profiling_name, sizes in and out, dtypes in and out; hashable."""


class EntryRows:
    """The entries, by key.

    A writer gives all of its entries the same keys; then they are turned into columns at once,
    which takes a quarter of the time of asking each entry for each key.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        """Takes them over.

        Raises:
            FlightRecordError: an entry is not an object.
        """
        odd = next((row for row in rows if type(row) is not dict), None)
        if odd is not None:
            raise FlightRecordError(f"an entry is an object, not a {type(odd).__name__}")
        self._rows = rows
        self._columns = _alike(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def has(self, key: str) -> bool:
        """Whether the first entry has it; true of no entries."""
        return not self._rows or key in self._rows[0]

    def column(self, key: str, default: Any = None) -> Sequence[Any]:
        """What the entries have under a key; `default` for those that lack it."""
        if self._columns is None:
            return [row.get(key, default) for row in self._rows]
        values = self._columns.get(key)
        return [default] * len(self._rows) if values is None else values

    def spread(self, values: NDArray[_T]) -> NDArray[_T]:
        """One value for each entry, from one for each of those that `column` gives out."""
        return values

    def numbers(self, key: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Likewise for a key whose numbers differ from entry to entry."""
        del key
        return values


def _alike(rows: Sequence[dict[Any, Any]]) -> dict[Any, tuple[Any, ...]] | None:
    """Key -> values, if all entries have the same keys."""
    if not rows or len(rows[0]) < _FEWEST or len(set(map(len, rows))) != 1:
        return None
    try:
        values = zip(*map(itemgetter(*rows[0]), rows), strict=True)
    except KeyError:
        return None
    return dict(zip(rows[0], values, strict=True))


class _Payloads:
    """Numbers the payloads of one dump in order of appearance."""

    def __init__(self) -> None:
        self.numbers: dict[PayloadKey, int] = {}
        self._recent: dict[Any, list[tuple[Any, int]]] = {}
        self._work = 0

    def of(self, row: tuple[Any, ...]) -> int:
        """The number of a payload as it stands in the entry.

        Comparing lists is faster than making tuples of them. Only what has been found flat is
        compared with, so that no depth of a hostile row is ever gone down.
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


def payload_numbers(rows: EntryRows) -> tuple[NDArray[np.int32], tuple[PayloadKey, ...]]:
    """For each entry the number of its payload, and the payloads by number.

    Raises:
        FlightRecordError: a value is not what it should be, or there are far too many.
        TypeError, KeyError: likewise, found by Python first.
    """
    if len(rows) and not rows.has("profiling_name"):
        raise FlightRecordError("an entry has no profiling_name")
    payloads = _Payloads()
    columns = (rows.column("profiling_name"), *(rows.column(key) for key in PAYLOAD))
    numbers = [payloads.of(row) for row in zip(*columns, strict=True)]
    return np.array(numbers, np.int32), tuple(payloads.numbers)
