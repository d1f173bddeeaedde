"""Where the fields of a protobuf message lie in its bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

VARINT: Final = 0
BYTES: Final = 2
_FIXED: Final = {1: 8, 5: 4}
"""Wire type -> bytes that follow."""


class Field(NamedTuple):
    """One field of a message."""

    number: int
    kind: int
    """Its wire type."""
    value_at: int
    """Where its number stands, or its length."""
    begin: int
    end: int
    """Of its content."""


def fields(data: bytes, at: int, end: int) -> Iterator[Field]:
    """The fields of the message in `data[at:end]`, in order.

    Raises:
        ValueError: it is not a protobuf message.
    """
    while at < end:
        key, value_at = varint(data, at, end)
        kind, begin = key & 7, value_at
        if kind == VARINT:
            _, last = varint(data, value_at, end)
        elif kind == BYTES:
            length, begin = varint(data, value_at, end)
            last = begin + length
        elif kind in _FIXED:
            last = begin + _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind}")
        if last > end:
            raise ValueError("a field longer than its message")
        yield Field(key >> 3, kind, value_at, begin, last)
        at = last


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number that stands there, and where what follows it begins.

    Raises:
        ValueError: it does not end, within ten bytes or before `end`.
    """
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number that does not end")
