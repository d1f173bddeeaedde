"""Pickled records of many entries that are written alike: read without building every entry.

Theory of operation. One writer writes all entries: of 2,000 only some 50 differ in more than
numbers. `walk` reads the bytes of one entry, tracks what the stack machine would have on its
stack, and marks which bytes control the machine (instructions, lengths) and which are numbers that
may differ in the next entry. An entry with the same instructions in the same places needs no second
walk: whatever its numbers are, the machine does the same. So entries are compared as rows of bytes:
`_begins` finds where each begins by its first bytes, entries of one length are stacked as rows, the
numbers are blanked out according to the first entry's shape, and equal rows form one class
(`classes_of`). Then an excerpt of the pickle is made: everything before the entries, the first
entry of each class, and the end. The excerpt is inspected and run like any pickle. It yields the
same value, except that only one entry of each class is there; the numbers of the others are read
from their bytes.

Why the excerpt is equivalent. Entries follow each other without a gap, each ends where the next
begins, and each is a self-contained dict: it is created, filled and left on the stack, and its
containers are filled right after they are created. Leaving one out changes only the list, which
nothing else refers to, and the memo: an entry that sets a memo number that anything in the excerpt
looks up is in the excerpt itself, and no such number is set twice.

For anything else `document` returns None, and the general reader is used. All work is proportional
to the file's size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from monitor.records import safe_pickle
from monitor.records.rows import MOST_WORK, PAYLOAD, EntryRows
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
"""Kinds of stack items: a finished value, or an empty container to be filled."""
_PUTS: Final = {PUT: 1, LONG_PUT: 4}
_NEW: Final = {_LIST: _NEW_LIST, _DICT: _NEW_DICT}
_CLOSES: Final = {_APPENDS: _NEW_LIST, _SETITEMS: _NEW_DICT}
_ADDS: Final = {_APPEND: (1, _NEW_LIST), _SETITEM: (2, _NEW_DICT)}
_WIDE: Final = 8
"""Bytes of numpy's largest integer."""


class Number(NamedTuple):
    """A number that may differ between entries."""

    pair: int
    """Index of its key-value pair in the dict."""
    key: str
    at: int
    width: int
    of_type: type


@dataclass(frozen=True, slots=True)
class Shape:
    """What each byte of an entry is; places count from its first byte."""

    length: int
    orders: bytes
    """255 for the bytes of instructions and lengths, 0 for the others."""
    same: bytes
    """0 for numbers that may differ between entries of one class, 255 for the others."""
    puts: tuple[tuple[int, int], ...]
    """Places of the memo numbers that this entry sets, and their bytes."""
    numbers: tuple[Number, ...]
    pairs: int
    values: int
    """Number of instructions."""
    rest: bytes
    """Bytes between the entry and the next."""


def walk(row: bytes, names: dict[int, bytes]) -> Shape | None:
    """The shape of one entry with all bytes up to the next, or None if it is not a plain one.

    `names`: texts by memo number that entries have spelled out; this entry's are added.
    """
    walker = _Walker(row, names)
    try:
        return walker.shape()
    except (IndexError, _NotPlainError):
        return None


class _NotPlainError(Exception):
    """The entry is not written like a plain one."""


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
        """One long loop: a function call per instruction would double the time."""
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
        """Handle a number about to be pushed; as the value of a key in `NUMBERS` it may differ."""
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
        """Handle making, filling or closing a container; a mark must follow a new container."""
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
"""With more than this, the entries are not alike."""
_MOST_WORK: Final = 8
"""Passes over all bytes: one for each shape that entries of one length have."""
_BETWEEN: Final = (b"", b"e(")
"""What may be between two entries; Python's pickler starts a new batch after 1,000."""
_LAST: Final = re.compile(rb"eu(?:q.|r.{4})?\.", re.DOTALL)
"""What follows the last entry; torch puts the record in the memo when it is complete."""
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
        """For each entry its class, numbered in order of appearance."""
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
        widths[-1] = 0  # may end before a whole word; the last entry is its class's first anyway
        short = widths == 4
        values[short] = values[short].astype(np.uint32).view(np.int32)
        return {
            key: Numbers(widths[:, place] > 0, values[:, place]) for place, key in enumerate(keys)
        }

    def keep_givers(self, wanted: NDArray[np.int64]) -> bool:
        """Put each entry that sets one of these memo numbers into its own class.

        True if there were any.

        Raises:
            FlightRecordError: a number is far too large, or there are too many classes.
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
        givers = rows[(table[given] & (widths > 0)).any(axis=1)]
        if not len(givers):
            return False
        firsts = np.append(self.firsts, givers).tolist()
        if len(firsts) > _MOST_CLASSES:
            raise FlightRecordError("entries that are not alike")
        self.which[givers] = np.arange(len(self.firsts), len(firsts))
        self._arrange(self.which, firsts)
        return True

    def _gather(
        self,
        rows: NDArray[np.int64],
        places: Sequence[Iterable[tuple[int, int, int]]],
        columns: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Little-endian numbers of these entries, and their widths in bytes (0: none).

        `places`: for each shape its columns, with their places and widths.
        """
        if len(rows) * columns > len(self._data):
            raise FlightRecordError("entries that are not alike")
        at = np.zeros((len(places), columns), np.int64)
        width = np.zeros((len(places), columns), np.int64)
        for shape, of_shape in enumerate(places):
            for column, place, size in of_shape:
                at[shape, column], width[shape, column] = place, size
        shape_of_row = self._shape_of[rows]
        words = np.ndarray((len(self._data) - _WORD + 1,), "<i8", self._data, strides=(1,))
        where = at[shape_of_row]
        where += self._begins[rows][:, None]
        widths = width[shape_of_row]
        values = words[np.minimum(where, len(words) - 1)]
        keep = np.array([0, 0xFF, 0xFFFF, 0, 0xFFFFFFFF, 0, 0, 0, -1])
        values &= keep[widths]
        return values, widths


def classes_of(data: bytes, begins: NDArray[np.int64]) -> Classes | None:
    """The classes of entries that begin at these places; None if they are not written alike.

    The last entry extends to the end of the pickle.
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
        """Classify rows with the first row's shape; returns the others, None if it is not plain."""
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
        class_of_row = np.fromiter(map(table.__getitem__, lined), np.int64, len(lined))
        if len(table) == 1:
            self._add(rows, shape, class_of_row, [0])
            return rows[:0]
        return self._split(rows, shape, class_of_row, table)

    def _split(
        self,
        rows: NDArray[np.int64],
        shape: Shape,
        class_of_row: NDArray[np.int64],
        table: dict[bytes, int],
    ) -> NDArray[np.int64]:
        distinct = np.frombuffer(b"".join(table), np.uint8).reshape(-1, shape.length)
        orders = distinct & np.frombuffer(shape.orders, np.uint8)
        good = (orders == orders[0]).all(axis=1)
        others = rows[:0]
        if not good.all():
            number = np.cumsum(good) - 1
            stay = good[class_of_row]
            rows, others = rows[stay], rows[~stay]
            class_of_row = number[class_of_row[stay]]
        firsts = np.zeros(int(good.sum()), np.int64)
        firsts[class_of_row[::-1]] = np.arange(len(class_of_row))[::-1]
        self._add(rows, shape, class_of_row, firsts.tolist())
        return others

    def _add(
        self,
        rows: NDArray[np.int64],
        shape: Shape,
        class_of_row: NDArray[np.int64],
        firsts: Sequence[int],
    ) -> None:
        self.shape_of[rows] = len(self.shapes)
        self.class_of[rows] = class_of_row + len(self.firsts)
        self.shapes.append(shape)
        self.firsts += rows[firsts].tolist()


def _blanked(data: bytes, at: NDArray[np.int64], shape: Shape) -> list[Any]:
    """The entries' bytes, zeroed where numbers may differ."""
    length = shape.length
    windows = np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))
    lined = windows[at].view(np.uint8).reshape(len(at), length)
    lined &= np.frombuffer(shape.same, np.uint8)
    blanked: list[Any] = lined.view(f"V{length}").ravel().tolist()
    return blanked


# -- the record --------------------------------------------------------------------------------

FEWEST: Final = 40
"""Entries; reading fewer is as fast as searching for those that are alike."""
_HEAD: Final = re.compile(rb"\x80[\x02\x03]\}(?:q(.)|r(.{4}))?\(", re.DOTALL)
_ENTRIES: Final = re.compile(
    rb"(X\x07\0\0\0entries)(?:q.|r.{4})?\](?:q(.)|r(.{4}))?(\()(?=\})", re.DOTALL
)
_FIRST: Final = re.compile(
    rb"\}(q.|r.{4})?\((?:X(?P<size>.{4})|h(?P<get>.)|j(?P<long>.{4}))", re.DOTALL
)
_PUT: Final = re.compile(rb"q(?P<put>.)|r(?P<long>.{4})", re.DOTALL)
_BLOCK: Final = 1 << 16
"""Bytes processed together; more than 128 KiB would be mapped again each time."""
_LOOKUPS: Final = {"put": b"(h", "get": b"(h", "long": b"(j"}


class AlikeRows(EntryRows):
    """Entries of which only one of each class was built."""

    def __init__(self, rows: Sequence[Any], classes: Classes) -> None:
        super().__init__(rows)
        self._classes = classes

    def spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """For each entry the value of the first of its class."""
        return values[self._classes.which]

    def numbers(self, key: str, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The same, but read from the entries' bytes where it differs within a class."""
        every = values[self._classes.which]
        differing = self._classes.numbers.get(key)
        return every if differing is None else np.where(differing.varies, differing.values, every)


def document(data: bytes, fewest: int = FEWEST) -> dict[str, Any] | None:
    """The object in a pickle, its entries as `AlikeRows`; None where they are not written alike."""
    if len(data) > safe_pickle.MAX_INSTRUCTIONS:
        return None
    head, entries = _HEAD.match(data), _ENTRIES.search(data)
    if head is None or entries is None:
        return None
    begins = _begins(data, entries.end())
    if len(begins) < max(fewest, 2) or (np.diff(begins) <= 0).any():
        return None
    try:
        classes = classes_of(data, begins)
        return None if classes is None else _read(data, begins, classes, _Place(head, entries))
    except FlightRecordError:
        return None


class _Place(NamedTuple):
    """How the record and its entries begin."""

    head: re.Match[bytes]
    entries: re.Match[bytes]

    def memo(self) -> tuple[int, ...]:
        """Memo numbers of the record and of the list of entries."""
        groups = (*self.head.groups(), *self.entries.groups()[1:3])
        return tuple(int.from_bytes(number, "little") for number in groups if number is not None)


def _begins(data: bytes, first: int) -> NDArray[np.int64]:
    """Where each entry begins, judged by its first key."""
    mark = _mark(data, first)
    if mark is None:
        return np.zeros(0, np.int64)
    numbered, text = mark
    raw = np.frombuffer(data, np.uint8)
    ends = range(first + _BLOCK, len(raw) + _BLOCK, _BLOCK)
    parts = [_found(raw[end - _BLOCK : end + len(text) - 1], text) + end - _BLOCK for end in ends]
    at = np.concatenate(parts)
    if not numbered:
        begins = at[raw[at - 1] == _DICT] - 1
    else:
        far = (raw[at - 6] == _DICT) & (raw[at - 5] == ord("r"))
        near = (raw[at - 3] == _DICT) & (raw[at - 2] == ord("q"))
        begins = np.where(far, at - 6, at - 3)[far | near]
    return np.concatenate([[first], begins[begins > first]])


def _found(raw: NDArray[np.uint8], text: bytes) -> NDArray[np.int64]:
    """Places of a text in these bytes."""
    end = max(len(raw) - len(text) + 1, 0)
    matches = raw[:end] == text[0]
    for place in (1, 2):
        matches &= raw[place : end + place] == text[place]
    at = np.flatnonzero(matches)
    for place in range(3, len(text)):
        at = at[raw[at + place] == text[place]]
    return at


def _mark(data: bytes, first: int) -> tuple[bool, bytes] | None:
    """Whether entries are in the memo, and the bytes from there to their first value."""
    first_key = _FIRST.match(data, first)
    if first_key is None:
        return None
    size = first_key["size"]
    if size is not None:
        text = _PUT.match(data, first_key.end() + int.from_bytes(size, "little"))
        if text is None:
            return None
    else:
        text = first_key
    kind = text.lastgroup or ""
    return first_key[1] is not None, _LOOKUPS[kind] + text[kind]


def _read(
    data: bytes, begins: NDArray[np.int64], classes: Classes, place: _Place
) -> dict[str, Any] | None:
    excerpt = _excerpt(data, begins, classes)
    code = safe_pickle.inspect(excerpt, classes.values)
    wanted = code.gets()
    if any((wanted == number).any() for number in place.memo()) or not _head_is_plain(code, place):
        return None
    if classes.keep_givers(wanted):
        excerpt = _excerpt(data, begins, classes)
        code = safe_pickle.inspect(excerpt, classes.values)
    if not _given_once(code, wanted):
        return None
    value = safe_pickle.run(excerpt)
    if not isinstance(value, dict):
        return None
    rows = value.get("entries")
    if type(rows) is not list or len(rows) != len(classes.firsts):
        return None
    if not all(type(row) is dict for row in rows) or not _as_taken(rows, classes):
        return None
    value["entries"] = AlikeRows(rows, classes)
    return value


def _given_once(code: safe_pickle.Instructions, wanted: NDArray[np.int64]) -> bool:
    """Whether each memo number that is looked up always means the same value."""
    given = code.puts()
    if given is None:
        return False
    given = np.sort(given)
    again = given[1:][given[1:] == given[:-1]]
    return not np.isin(again, wanted).any()


def _excerpt(data: bytes, begins: NDArray[np.int64], classes: Classes) -> bytes:
    """The pickle with only the first entry of each class."""
    ends = np.append(begins[1:], len(data))
    firsts = classes.firsts
    parts = [data[: int(begins[0])]]
    parts += [
        data[at:end] for at, end in zip(begins[firsts].tolist(), ends[firsts].tolist(), strict=True)
    ]
    return b"".join(parts)


def _head_is_plain(code: safe_pickle.Instructions, place: _Place) -> bool:
    """Whether the entries are really the record's list, and nothing else fills it or the record.

    Before the entries only the record is open, from its beginning on.
    """
    key, opened = place.entries.start(1), place.entries.start(4)
    at = np.searchsorted(code.starts, (place.head.end() - 1, key, opened))
    if (code.starts[at] != (place.head.end() - 1, key, opened)).any():
        return False
    before = code.ops[at[0] : at[2]]
    depth = np.cumsum(
        (before == ord("(")).astype(np.int64) - ((before == ord("u")) | (before == ord("e")))
    )
    return bool((depth >= 1).all() and depth[-1] == 1)


def _as_taken(rows: Sequence[dict[Any, Any]], classes: Classes) -> bool:
    """Whether the numbers were read from the right places, and no entry has a key twice."""
    work = 0
    for row, shape, count in zip(rows, classes.shapes, classes.counts.tolist(), strict=True):
        keys = list(row)
        if len(keys) != shape.pairs:
            return False
        if any(keys[n.pair] != n.key or type(row[n.key]) is not n.of_type for n in shape.numbers):
            return False
        work += count * _work(row)
    first = rows[0]
    return work <= MOST_WORK and ("record_id" in first or "id" in first)


def _work(row: Mapping[str, Any]) -> int:
    total = 0
    for key in PAYLOAD:
        value = row.get(key)
        if not isinstance(value, list | tuple):
            continue
        total += len(value)
        if key.endswith("_sizes"):
            total += sum(len(size) for size in value if isinstance(size, list | tuple | str))
    return total
