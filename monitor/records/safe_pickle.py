"""Pickles that hold containers, strings and numbers, and nothing else.

Theory of operation. A pickle is a program for a stack machine; a hostile one runs code, fills the
memory or never ends. So it is inspected before it runs: `_instruction_starts` finds where each
instruction begins. The pickle is refused if an instruction is not one of the few that build plain
values, if a memo index is far too large (the C unpickler allocates room for it), or if tuples are
nested (hashing one as a dict key takes unbounded time, or all of the C stack). What passes is run
by Python's C unpickler, which is not allowed to import anything.

An instruction's length depends only on its first byte and, for some, on the length field that
follows. So numpy computes it for every byte at once, as if an instruction began there; then the
chain of real instructions is followed from the first.

Torch's C++ pickler writes protocol 2, Python's own 4 or 5; both use only what is listed in
`LENGTH` and `SIZED`. Instructions: CPython `Lib/pickletools.py`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

# -- where instructions begin ------------------------------------------------------------------


class FlightRecordError(ValueError):
    """A record that cannot be read; the message says what is wrong with it."""


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
"""Instruction -> its length in bytes, where that is fixed."""
SIZED: Final = {ord("X"): 4, ord("B"): 4, 0x8C: 1, ord("C"): 1, 0x8A: 1, 0x8D: 8, 0x8E: 8}
"""Instruction -> bytes of the length field before its argument: strings, bytes, long ints."""
_BLOCK: Final = 1 << 16
"""Bytes processed together: numpy's arrays for them fit into the processor's cache."""
_VARIES, _LAST = 255, 0


def _table_of(values: Mapping[int, int]) -> bytes:
    """Instruction -> value, 0 for the others; for `bytes.translate`, the fastest look-up."""
    return bytes(values.get(op, 0) for op in range(256))


_STEPS: Final = _table_of({**LENGTH, **dict.fromkeys(SIZED, _VARIES), STOP: _LAST})
"""Instruction -> distance to the next; 0 where the search ends."""


def _instruction_starts(data: bytes, raw: NDArray[np.uint8], most: int) -> NDArray[np.int64]:
    """Where instructions begin, up to and including the first STOP or unknown one.

    Raises:
        FlightRecordError: there are more than `most`.
    """
    end = len(raw)
    steps = np.frombuffer(data.translate(_STEPS), np.uint8)
    parts, at, count = [], 0, 0
    while at < end:
        block = steps[at : at + _BLOCK]
        jump = np.arange(len(block)) + block
        jump[block == _LAST] = end
        varies = at + np.flatnonzero(block == _VARIES)
        jump[varies - at] = _ends(raw, varies) - at
        starts = _chain(jump)
        parts.append(starts + at)
        at = min(end, at + int(jump[starts[-1]]))
        count += len(starts)
        if count > most:
            raise FlightRecordError(f"a pickle of more than {most} instructions")
    return np.concatenate(parts)


def _ends(raw: NDArray[np.uint8], varies: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where instructions with a length field would end, if they began at these bytes."""
    end = len(raw)
    ops = raw[varies]
    ends = np.full(len(varies), end)
    for op, width in SIZED.items():
        sized = np.flatnonzero((ops == op) & (varies < end - width))
        if not len(sized):
            continue
        at = varies[sized] + 1
        ends[sized] = at + width + _numbers(raw, at, width, end)
    return ends


def _chain(jump: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places reached from a block's first byte by these jumps, up to its end.

    Each round doubles them: a jump of twice as many instructions from each place found so far.
    """
    end = len(jump)
    far = np.append(np.minimum(jump, end), end)  # with a sentinel that leads to itself
    starts = np.zeros(1, np.int64)
    while starts[-1] < end:
        starts = np.concatenate((starts, far.take(starts)))
        far = far.take(far)
    return starts[starts < end]


def _numbers(
    raw: NDArray[np.uint8], at: NDArray[np.int64], width: int, limit: int
) -> NDArray[np.int64]:
    """Little-endian numbers of `width` bytes, capped at `limit`."""
    value = np.zeros(len(at), np.int64)
    for place in range(min(width, 4)):
        value |= raw[at + place].astype(np.int64) << (8 * place)
    for place in range(4, width):  # no pickle has 4 GiB
        value[raw[at + place] != 0] = limit
    return np.minimum(value, limit)


# -- which are harmless ------------------------------------------------------------------------

MAX_BYTES: Final = 128 << 20
"""About 40 times the largest record seen: 20,000 entries with call stacks."""
MAX_INSTRUCTIONS: Final = 16 << 20
MAX_MEMORY: Final = 768 << 20
"""Bytes that its values may take; about twice those of 20,000 entries with call stacks of 30."""
_COSTS: Final = np.zeros(256, np.int64)
"""Instruction -> bytes that its value takes at most, in a list or a small dict."""
for _op, _bytes in {**dict.fromkeys(TUPLES, 80), **dict.fromkeys(SIZED, 100), ord("}"): 250,
                    ord("]"): 110, **dict.fromkeys(b"KMJG", 50), **dict.fromkeys(b"hjN", 16)
                    }.items():  # fmt: skip
    _COSTS[_op] = _bytes

_LONG: Final = 0x8A
_LONGEST_INT: Final = 9
"""64 bits and a sign: integers of thousands of digits take quadratic time to print."""


def _among(ops: Iterable[int]) -> bytes:
    """Instruction -> whether it is in `ops`."""
    return _table_of(dict.fromkeys(ops, 1))


_SCALAR_OPS: Final = (ord("N"), 0x88, 0x89, ord("K"), ord("M"), ord("J"), ord("G"), *SIZED)
_PUT_OPS: Final = (PUT, LONG_PUT, MEMOIZE)
_ALLOWED: Final = _among([*LENGTH, *SIZED])
_PUTS: Final = _among(_PUT_OPS)
_GETS: Final = _among([GET, LONG_GET])
_SCALARS: Final = _among(_SCALAR_OPS)
_TUPLE: Final = _among(TUPLES)
_ARITY: Final = _table_of(TUPLES)
_WIDEST: Final = 3
_MOST_SILENT: Final = 3
"""Instructions that push nothing between two values: one memo put, and a frame may begin."""
_VALUES: Final = _among({*LENGTH, *SIZED} - {*_PUT_OPS, PROTO, FRAME})
"""All but those that leave the stack unchanged."""


def loads(data: bytes) -> Any:
    """The value of a pickle of plain values; nothing is imported or called.

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
    """Imports nothing: a second safeguard, as the inspection refuses all such instructions."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise FlightRecordError(f"a pickle that wants to import {module}.{name} is not opened")


class _Instructions(NamedTuple):
    """A pickle's instructions: where each begins, and its opcode."""

    raw: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ops: NDArray[np.uint8]


def _inspect(data: bytes) -> None:
    """Raise unless all instructions of a pickle are harmless."""
    if len(data) > MAX_BYTES:
        raise FlightRecordError(f"a pickle of {len(data)} bytes; at most {MAX_BYTES} are read")
    if not data:
        raise FlightRecordError("empty")
    raw = np.frombuffer(data, np.uint8)
    starts = _instruction_starts(data, raw, MAX_INSTRUCTIONS)
    ops = raw[starts]
    code = _Instructions(raw, starts, ops)
    _check_instructions(ops)
    _check_lengths(code)
    _check_memo(code)
    _check_tuples(code)


def _are(ops: NDArray[np.uint8], table: bytes) -> NDArray[np.bool_]:
    """For each instruction, whether it is in the table."""
    return np.frombuffer(ops.tobytes().translate(table), np.bool_)


def _check_instructions(ops: NDArray[np.uint8]) -> None:
    allowed = _are(ops, _ALLOWED)
    if not allowed.all():
        first = int(ops[np.argmin(allowed)])
        raise FlightRecordError(
            f"not a pickle of plain values: instruction {chr(first)!r} ({first:#x})"
        )
    if ops[-1] != STOP:
        raise FlightRecordError("broken pickle: it ends in the middle")


def _check_lengths(code: _Instructions) -> None:
    raw, starts, ops = code
    longs = starts[ops == _LONG]
    if (raw[longs + 1] > _LONGEST_INT).any():
        raise FlightRecordError("not a record: an integer of more than 64 bits")
    if starts[-1] != len(raw) - 1:
        raise FlightRecordError("broken pickle: more follows after its end")
    frames = starts[ops == FRAME]
    if (_numbers(raw, frames + 1, 8, len(raw)) == len(raw)).any():
        raise FlightRecordError("broken pickle: a frame longer than all of it")
    if np.bincount(ops, minlength=256) @ _COSTS + 4 * len(raw) > MAX_MEMORY:  # of 4 bytes a letter
        raise FlightRecordError(f"a pickle of more than {MAX_MEMORY >> 20} MiB in memory")


def _check_memo(code: _Instructions) -> None:
    """Refuse a memo index so large that the unpickler would waste memory on it.

    Writers number all of their values, or leave it to the reader (protocol 4). If both were
    allowed, a value's number would be unknown here.
    """
    raw, starts, ops = code
    puts = starts[ops == LONG_PUT]
    if (_numbers(raw, puts + 1, 4, len(ops) + 1) > len(ops)).any():
        raise FlightRecordError("broken pickle: a memo index beyond all values")
    if (ops == MEMOIZE).any() and (len(puts) or (ops == PUT).any()):
        raise FlightRecordError("broken pickle: two ways of numbering values")


def _check_tuples(code: _Instructions) -> None:
    """Refuse tuples of anything but scalars: no record has one.

    Allowed instructions pop values only to put them into a container, so the top of the stack
    is what the last instruction pushed.
    """
    ops = code.ops
    pushed = np.flatnonzero(_are(ops, _TUPLE))
    if not len(pushed):
        return
    arity = np.frombuffer(_ARITY, np.uint8)[ops[pushed]]
    at = pushed
    gets = []
    for back in range(1, _WIDEST + 1):
        at = _before(ops, at[arity >= back])
        arity = arity[arity >= back]
        got = _are(ops[at], _GETS)
        if not (_are(ops[at], _SCALARS) | got).all():
            raise FlightRecordError("not a record: a tuple that holds a container")
        gets.append(at[got])
    wanted = _index(code, np.concatenate(gets))
    if len(wanted) and not _scalars_by_index(code, wanted).all():
        raise FlightRecordError("not a record: a tuple that holds a container")


def _before(ops: NDArray[np.uint8], at: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each instruction the last one before it that pushed a value."""
    at = at - 1
    for _ in range(_MOST_SILENT):
        silent = (at >= 0) & ~_are(ops[at], _VALUES)
        if not silent.any():
            break
        at = at - silent
    if (at < 0).any() or not _are(ops[at], _VALUES).all():
        raise FlightRecordError("broken pickle: a tuple of nothing")
    return at


def _scalars_by_index(code: _Instructions, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each memo index whether only numbers or texts are ever stored under it."""
    ops = code.ops
    puts = np.flatnonzero(_are(ops, _PUTS))
    implied = bool(len(puts)) and ops[puts[0]] == MEMOIZE
    index = np.arange(len(puts)) if implied else _index(code, puts)
    plain = (puts > 0) & _are(ops[puts - 1], _SCALARS)
    scalar = np.zeros(max(index.max(initial=0), wanted.max()) + 1, np.bool_)
    scalar[index[plain]] = True
    scalar[index[~plain]] = False
    return scalar[wanted]


def _index(code: _Instructions, at: NDArray[np.int64]) -> NDArray[np.int64]:
    """Memo index of each of these puts and gets."""
    raw, starts, ops = code
    index = raw[starts[at] + 1].astype(np.int64)
    wide = (ops[at] == LONG_PUT) | (ops[at] == LONG_GET)
    index[wide] = _numbers(raw, starts[at[wide]] + 1, 4, len(ops))
    return index
