"""Where the instructions of a pickle begin, without running them.

Theory of operation. How long an instruction is depends on its first byte and at most on the length
that follows. So each byte is read as if one began there, all at once with numpy; then the chain of
those that really do is followed from the first. Only lengths are known here: whether what is found
is harmless is for `safe_pickle` to say.

Instructions: CPython `Lib/pickletools.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.record import FlightRecordError

PROTO, FRAME, STOP = 0x80, 0x95, ord(".")
PUT, LONG_PUT, MEMOIZE = ord("q"), ord("r"), 0x94
GET, LONG_GET = ord("h"), ord("j")
TUPLES: Final = {ord(")"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
LENGTH: Final = {
    STOP: 1, ord("("): 1, ord("}"): 1, ord("]"): 1, ord("u"): 1, ord("s"): 1, ord("a"): 1,
    ord("e"): 1, ord("N"): 1, 0x88: 1, 0x89: 1, ord("K"): 2, ord("M"): 3, ord("J"): 5,
    ord("G"): 9, GET: 2, LONG_GET: 5, PUT: 2, LONG_PUT: 5, MEMOIZE: 1, PROTO: 2, FRAME: 9,
    **dict.fromkeys(TUPLES, 1),
}  # fmt: skip
"""Instruction -> its bytes, where that is fixed."""
SIZED: Final = {ord("X"): 4, ord("B"): 4, 0x8C: 1, ord("C"): 1, 0x8A: 1, 0x8D: 8, 0x8E: 8}
"""Instruction -> bytes of the length that stands before its argument: strings, bytes, long ints."""
_STRIDE: Final = 16
_BLOCK: Final = 1 << 15
"""Bytes looked at together: what numpy needs for them fits into the processor's cache."""
_VARIES, _LAST = 255, 0


def table_of(values: Mapping[int, int]) -> bytes:
    """Instruction -> value, 0 for the others; for `bytes.translate`, the fastest of look-ups."""
    return bytes(values.get(op, 0) for op in range(256))


_STEPS: Final = table_of({**LENGTH, **dict.fromkeys(SIZED, _VARIES), STOP: _LAST})
"""Instruction -> how far the next is; 0 where none is to be looked at."""


def starts(data: bytes, raw: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """Where instructions begin, up to and with the first that ends the pickle or is unknown.

    Raises:
        FlightRecordError: there are more than `most`.
    """
    end = len(raw)
    steps = np.frombuffer(data.translate(_STEPS), np.uint8)
    varies, ends = _sized(raw, steps)
    found, at, count = [], 0, 0
    while at < end:
        block = steps[at : at + _BLOCK]
        jump = np.arange(len(block)) + block
        jump[block == _LAST] = end
        part = slice(*np.searchsorted(varies, (at, at + len(block))))
        jump[varies[part] - at] = ends[part] - at
        here = _chain(jump)
        found.append(here + at)
        at = min(end, at + int(jump[here[-1]]))
        count += len(here)
        if count > most:
            raise FlightRecordError(f"a pickle of more than {most} instructions")
    return np.concatenate(found)


def _sized(
    raw: NDArray[np.uint8], steps: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes that may begin an instruction with a length of its own, and where it would end."""
    end = len(raw)
    varies = np.flatnonzero(steps == _VARIES)
    ops = raw[varies]
    ends = np.full(len(varies), end)
    for op, width in SIZED.items():
        mine = np.flatnonzero((ops == op) & (varies < end - width))
        if not len(mine):
            continue
        at = varies[mine] + 1
        ends[mine] = at + width + numbers(raw, at, width, end)
    return varies, ends


def _chain(jump: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where one gets from the first byte of a block by these jumps, up to its end.

    They are followed by `_STRIDE` at once, and the rest between in columns.
    """
    end = len(jump)
    step = np.empty(end + 1, np.int64)
    np.minimum(jump, end, out=step[:end])
    step[end] = end  # a place of its own that leads to itself
    far = step
    for _ in range(_STRIDE.bit_length() - 1):
        far = far.take(far)
    anchors, at, follow = [], 0, far.item
    while at < end:
        anchors.append(at)
        at = follow(at)
    table = np.empty((len(anchors), _STRIDE), np.int64)
    table[:, 0] = anchors
    for column in range(1, _STRIDE):
        table[:, column] = step.take(table[:, column - 1])
    starts = table.reshape(-1)
    return starts[starts < end]


def numbers(
    raw: NDArray[np.uint8], at: NDArray[np.int64], width: int, limit: int
) -> NDArray[np.int64]:
    """Little-endian numbers of `width` bytes; none larger than `limit`."""
    value = np.zeros(len(at), np.int64)
    for place in range(min(width, 4)):
        value |= raw[at + place].astype(np.int64) << (8 * place)
    for place in range(4, width):  # nothing has 4 GiB
        value[raw[at + place] != 0] = limit
    return np.minimum(value, limit)
