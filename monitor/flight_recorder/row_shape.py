"""How one entry of a pickled record is written: which of its bytes are instructions.

Theory of operation. The writer is the same for all entries, so two of them differ in numbers and
hardly anything else. `walk` runs over the bytes of one, keeping count of what the stack machine
would have on its stack, and tells which bytes say what is to be done (instructions, lengths) and
which are numbers that may be others in the next. An entry that has the same instructions in the
same places needs no second walk: whatever its numbers are, the machine does the same.

Only entries that stand by themselves are taken: a dict that is begun, filled and left on the
stack, whose containers are filled right after they were made. So no entry changes what another
one has made, and leaving some out changes nothing about the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

NUMBERS: Final = {key.encode(): key for key in (
    "record_id", "id", "collective_seq_id", "p2p_seq_id", "seq_id", "op_id",
    "time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns",
    "duration_ms",
)}  # fmt: skip
"""Keys whose numbers differ from entry to entry."""

_MARK, _SETITEMS, _APPENDS, _SETITEM, _APPEND = b"(uesa"
_DICT, _LIST = b"}]"
_TEXT, _LONG, _PUT, _LONG_PUT, _GET, _LONG_GET = (*b"X\x8aqrhj",)
_TUPLES: Final = {ord(")"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
_FLOAT: Final = ord("G")
_SCALARS: Final = {ord("N"): 0, 0x88: 0, 0x89: 0, ord("K"): 1, ord("M"): 2, ord("J"): 4, _FLOAT: 8}
"""Instruction -> bytes of its number."""
_PLAIN, _NEW_LIST, _NEW_DICT = 0, 1, 2
"""What lies on the stack: something to be left alone, or an empty container to be filled."""
_PUTS: Final = {_PUT: 1, _LONG_PUT: 4}
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
            if op == _GET:
                text = names.get(row[at + 1])
                at += 2
            elif op == _LONG_GET:
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
        elif op in _TUPLES:
            self._take(_TUPLES[op])
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
