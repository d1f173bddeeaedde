"""Pickles that hold containers, strings and numbers, and nothing else.

Theory of operation. A pickle is a program for a stack machine; a hostile one runs code, fills the
memory or never ends. So it is looked at before it runs: numpy finds where each instruction
begins, and the whole is refused when one is not among the few that build plain values, when a
memo index is out of all proportion (the C unpickler makes room for it), or when tuples stand in
tuples (the hash of such a one as a key of a dict takes time without bounds, or all of the C
stack). What is left is run by Python's C unpickler, which has been told to import nothing.

Instructions: CPython `Lib/pickletools.py`. Torch's C++ pickler writes protocol 2, Python's own 4
or 5; both use only what is listed here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from monitor.flight_recorder.record import FlightRecordError

MAX_BYTES: Final = 128 << 20
"""About 40 times the largest record seen: 20,000 entries with call stacks."""
MAX_INSTRUCTIONS: Final = 16 << 20
"""Each makes at most one object of about 64 bytes: 1 GiB."""

_PROTO, _FRAME, _STOP = 0x80, 0x95, ord(".")
_PUT, _LONG_PUT, _MEMOIZE = ord("q"), ord("r"), 0x94
_GET, _LONG_GET = ord("h"), ord("j")
_TUPLES: Final = {ord(")"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
_LENGTH: Final = {
    _STOP: 1, ord("("): 1, ord("}"): 1, ord("]"): 1, ord("u"): 1, ord("s"): 1, ord("a"): 1,
    ord("e"): 1, ord("N"): 1, 0x88: 1, 0x89: 1, ord("K"): 2, ord("M"): 3, ord("J"): 5,
    ord("G"): 9, _GET: 2, _LONG_GET: 5, _PUT: 2, _LONG_PUT: 5, _MEMOIZE: 1, _PROTO: 2, _FRAME: 9,
    **dict.fromkeys(_TUPLES, 1),
}  # fmt: skip
"""Instruction -> its bytes, where that is fixed."""
_SIZED: Final = {ord("X"): 4, ord("B"): 4, 0x8C: 1, ord("C"): 1, 0x8A: 1, 0x8D: 8, 0x8E: 8}
"""Instruction -> bytes of the length that stands before its argument: strings, bytes, long ints."""
_LONG: Final = 0x8A
_LONGEST_INT: Final = 9
"""64 bits and a sign: integers of thousands of digits take quadratic time to print."""
_STRIDE: Final = 16
_BLOCK: Final = 1 << 15
"""Bytes looked at together: what numpy needs for them fits into the processor's cache."""
_VARIES, _LAST = 255, 0


def _table(values: Mapping[int, int]) -> bytes:
    """Instruction -> value, 0 for the others; for `bytes.translate`, the fastest of look-ups."""
    return bytes(values.get(op, 0) for op in range(256))


def _among(ops: Iterable[int]) -> bytes:
    """Instruction -> whether it is one of these."""
    return _table(dict.fromkeys(ops, 1))


_SCALAR_OPS: Final = (ord("N"), 0x88, 0x89, ord("K"), ord("M"), ord("J"), ord("G"), *_SIZED)
_PUT_OPS: Final = (_PUT, _LONG_PUT, _MEMOIZE)
_STEPS: Final = _table({**_LENGTH, **dict.fromkeys(_SIZED, _VARIES), _STOP: _LAST})
"""Instruction -> how far the next is; 0 where none is to be looked at."""
_ALLOWED: Final = _among([*_LENGTH, *_SIZED])
_PUTS: Final = _among(_PUT_OPS)
_GETS: Final = _among([_GET, _LONG_GET])
_SCALARS: Final = _among(_SCALAR_OPS)
_VALUES: Final = _among({*_LENGTH, *_SIZED} - {*_PUT_OPS, _PROTO, _FRAME})
"""All but those that leave the stack as it is."""


def loads(data: bytes) -> Any:
    """The value of a pickle of plain values; nothing it names is imported or called.

    Raises:
        FlightRecordError: broken, too large, or it holds more than plain values.
    """
    _inspect(data)
    try:
        return _Plain(io.BufferedReader(io.BytesIO(data))).load()
    except FlightRecordError:
        raise
    except Exception as exc:
        raise FlightRecordError(f"broken pickle: {type(exc).__name__}") from exc


class _Plain(pickle.Unpickler):
    """Imports nothing; the inspection has refused all that would ask, so this is a second lock."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise FlightRecordError(f"a pickle that wants to import {module}.{name} is not opened")

    def persistent_load(self, pid: Any) -> NoReturn:
        del pid
        raise FlightRecordError("a pickle with persistent ids is not opened")


def _inspect(data: bytes) -> None:
    if len(data) > MAX_BYTES:
        raise FlightRecordError(f"a pickle of {len(data)} bytes; at most {MAX_BYTES} are read")
    if not data:
        raise FlightRecordError("empty")
    raw = np.frombuffer(data, np.uint8)
    starts = _starts(data, raw)
    ops = raw[starts]
    _check_instructions(ops)
    _check_lengths(raw, starts, ops)
    _check_memo(raw, starts, ops)
    _check_tuples(raw, starts, ops)


def _starts(data: bytes, raw: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where instructions begin, up to and with the first that ends the pickle or is refused."""
    steps = np.frombuffer(data.translate(_STEPS), np.uint8)
    found, at, count = [], 0, 0
    while at < len(raw):
        ends = _ends(raw, steps[at : at + _BLOCK], at)
        starts = _chain(np.minimum(ends - at, len(ends))) + at
        found.append(starts)
        at = int(ends[starts[-1] - at])
        count += len(starts)
        if count > MAX_INSTRUCTIONS:
            raise FlightRecordError(f"a pickle of more than {MAX_INSTRUCTIONS} instructions")
    return np.concatenate(found)


def _ends(raw: NDArray[np.uint8], steps: NDArray[np.uint8], first: int) -> NDArray[np.int64]:
    """Byte of a block -> where the instruction ends that begins there, if one does.

    The end of everything for those that are the last.
    """
    end = len(raw)
    ends = np.arange(first, first + len(steps))
    varies = np.flatnonzero(steps == _VARIES) + first
    ops = raw[varies]
    ends += steps
    ends[steps == _LAST] = end
    for op, width in _SIZED.items():
        at = varies[ops == op]
        cut = at + width >= end
        ends[at[cut] - first] = end
        at = at[~cut]
        ends[at - first] = at + 1 + width + _numbers(raw, at + 1, width, end)
    return np.minimum(ends, end, out=ends)


def _chain(step: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where one gets from the first byte by these steps, up to their end.

    The jumps are followed by `_STRIDE` at once, and the rest between in columns.
    """
    end = len(step)
    step = np.append(step, end)  # a place of its own that leads to itself
    jump = step
    for _ in range(_STRIDE.bit_length() - 1):
        jump = jump.take(jump)
    anchors, at, follow = [], 0, jump.item
    while at < end:
        anchors.append(at)
        at = follow(at)
    table = np.empty((len(anchors), _STRIDE), np.int64)
    table[:, 0] = anchors
    for column in range(1, _STRIDE):
        table[:, column] = step.take(table[:, column - 1])
    starts = table.reshape(-1)
    return starts[starts < end]


def _are(ops: NDArray[np.uint8], table: bytes) -> NDArray[np.bool_]:
    """For each instruction, whether the table has it."""
    return np.frombuffer(ops.tobytes().translate(table), np.bool_)


def _numbers(
    raw: NDArray[np.uint8], at: NDArray[np.int64], width: int, limit: int
) -> NDArray[np.int64]:
    """Little-endian numbers of `width` bytes; none larger than `limit`."""
    value = np.zeros(len(at), np.int64)
    for place in range(min(width, 4)):
        value |= raw[at + place].astype(np.int64) << (8 * place)
    for place in range(4, width):  # nothing has 4 GiB
        value[raw[at + place] != 0] = limit
    return np.minimum(value, limit)


def _check_instructions(ops: NDArray[np.uint8]) -> None:
    allowed = _are(ops, _ALLOWED)
    if not allowed.all():
        first = int(ops[np.argmin(allowed)])
        raise FlightRecordError(
            f"not a pickle of plain values: instruction {chr(first)!r} ({first:#x})"
        )
    if ops[-1] != _STOP:
        raise FlightRecordError("broken pickle: it ends in the middle")


def _check_lengths(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], ops: NDArray[np.uint8]
) -> None:
    longs = starts[ops == _LONG]
    if (raw[longs + 1] > _LONGEST_INT).any():
        raise FlightRecordError("not a record: an integer of more than 64 bits")
    if starts[-1] != len(raw) - 1:
        raise FlightRecordError("broken pickle: more follows after its end")


def _check_memo(raw: NDArray[np.uint8], starts: NDArray[np.int64], ops: NDArray[np.uint8]) -> None:
    puts = starts[ops == _LONG_PUT]
    if (_numbers(raw, puts + 1, 4, len(ops) + 1) > len(ops)).any():
        raise FlightRecordError("broken pickle: a memo index beyond all values")


def _check_tuples(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], ops: NDArray[np.uint8]
) -> None:
    """Refuse tuples of anything but scalars: no value of a record is one.

    Nothing that is allowed takes values off the stack but to put them into a container, so what
    lies on top is what the last instruction has pushed.
    """
    values = np.flatnonzero(_are(ops, _VALUES))
    made = ops[values]
    tuples = {op: np.flatnonzero(made == op) for op in _TUPLES}
    if not any(len(at) for at in tuples.values()):
        return
    scalar = _are(made, _SCALARS).copy()
    index = _memo_index(raw, starts, ops)
    puts = np.flatnonzero(_are(ops, _PUTS))
    owner = np.searchsorted(values, puts) - 1  # the value that each put is for
    odd = np.zeros(int(index.max(initial=0)) + 1, np.bool_)
    odd[index[puts[(owner < 0) | ~scalar[owner]]]] = True
    gets = _are(made, _GETS)
    scalar[gets] = ~odd[index[values[gets]]]
    for op, at in tuples.items():
        for back in range(1, _TUPLES[op] + 1):
            if (at < back).any() or not scalar[at - back].all():
                raise FlightRecordError("not a record: a tuple that holds a container")


def _memo_index(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], ops: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """Memo index of each put and get, 0 elsewhere."""
    index = np.zeros(len(ops), np.int64)
    short = np.flatnonzero((ops == _PUT) | (ops == _GET))
    index[short] = raw[starts[short] + 1]
    wide = np.flatnonzero((ops == _LONG_PUT) | (ops == _LONG_GET))
    index[wide] = _numbers(raw, starts[wide] + 1, 4, len(ops) + 1)
    implied = ops == _MEMOIZE
    if implied.any():
        index[implied] = (np.cumsum(_are(ops, _PUTS)) - 1)[implied]
    return index
