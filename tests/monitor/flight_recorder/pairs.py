"""Whether two members of one collective agree: the rules of `signature`, asked for pairs.

The product compares all members of a collective at once (`semantics.disagree`). Torch's own checks,
against which the rules are held, compare two at a time, and know sends and receives as well.
"""

from collections.abc import Iterable
from typing import Final

from monitor.records.job import Payload
from monitor.records.signature import (
    POINT_TO_POINT,
    SIZELESS,
    UNDECIDED,
    UNKNOWN_SIZE,
    CallSide,
    comparable,
    counts_of,
    dtype_of,
    numbers,
    peers_of,
    signature_of,
)

_FOLLOWS: Final = frozenset({"all_gather", "reduce_scatter"})
"""What comes out follows from what goes in and the number of members."""

KNOWN: Final = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter",
    *SIZELESS, *UNDECIDED,
})  # fmt: skip


def agree(one: Payload, other: Payload, size: int = UNKNOWN_SIZE) -> bool | None:
    """Whether two members may have called these in the same collective.

    None: undecided. all_to_all may be split as it likes, of an op that nobody here knows the
    sizes mean nothing, and one record may say no sizes at all.
    """
    if one.op in POINT_TO_POINT or other.op in POINT_TO_POINT:
        return _meet(one, other)
    left, right = (signature_of(payload, size) for payload in (one, other))
    if left.op != right.op:
        return False
    left, right = comparable((left, right), size)
    if left != right or not (possible(one, size) and possible(other, size)):
        return False
    if left.counts or left.op in SIZELESS:
        return True
    free = left.op in UNDECIDED or left.op not in KNOWN
    return None if free or _sized(one) or _sized(other) else True


def possible(payload: Payload, size: int = UNKNOWN_SIZE) -> bool:
    """Whether what goes in and what comes out fit each other, as far as the record says both."""
    given, got = (frozenset(filter(None, d)) for d in (payload.dtypes_in, payload.dtypes_out))
    if given and got and given != got and payload.op in KNOWN - SIZELESS - {"gather", "scatter"}:
        return False
    if payload.op == "all_reduce" or (size != UNKNOWN_SIZE and payload.op in _FOLLOWS):
        return not counts_of(payload, size)[1]
    return True


def majority(sides: Iterable[CallSide], size: int) -> CallSide | None:
    """The side that more than half of all `size` members are on; None: cannot tell."""
    return next((side for side in sides if 2 * len(side.ranks) > size), None)


def _sized(payload: Payload) -> bool:
    return bool(payload.sizes_in or payload.sizes_out)


def _meet(one: Payload, other: Payload) -> bool | None:
    """Whether a send and a recv are the two ends of one transfer."""
    if "batch_isend_irecv" in (one.op, other.op):
        return None
    if {one.op, other.op} != {"send", "recv"}:
        return False
    send, recv = (one, other) if one.op == "send" else (other, one)
    ends = peers_of(send.recorded), peers_of(recv.recorded)
    if None not in ends and ends[0] != ends[1]:
        return False
    given, got = numbers(send.sizes_in or send.sizes_out), numbers(recv.sizes_out or recv.sizes_in)
    left, right = dtype_of(send), dtype_of(recv)
    if left is not None and right is not None and left != right:
        return False
    if not (given and got):
        return None
    return given == got
