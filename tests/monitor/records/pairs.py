"""Whether two members of one collective agree: the rules of `signature`, asked for pairs.

The product compares all members of a collective at once, by their signatures. Torch's own checks,
against which the rules are held, compare two at a time.
"""

from dataclasses import replace
from typing import Any, Final

from lightkeeper.monitor.records.job import Payload
from lightkeeper.monitor.records.signature import (
    SIZELESS,
    UNKNOWN_SIZE,
    Signature,
    counts_of,
    signature_of,
)

_FOLLOWS: Final = frozenset({"all_gather", "reduce_scatter"})
"""What comes out follows from what goes in and the number of members."""
UNDECIDED: Final = frozenset({"all_to_all", "all_reduce_sparse"})
"""Sizes may differ between members of a healthy collective."""

KNOWN: Final = frozenset({
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter",
    *SIZELESS, *UNDECIDED,
})  # fmt: skip


def agree(this: Payload, other: Payload, size: int = UNKNOWN_SIZE) -> bool | None:
    """Whether two members may have called these in the same collective.

    None: undecided. all_to_all may be split as it likes, of an op that nobody here knows the
    sizes mean nothing, and one record may say no sizes at all.
    """
    left, right = (signature_of(payload, size) for payload in (this, other))
    if left.op != right.op:
        return False
    left, right = _comparable(left, right, size)
    if left != right or not (possible(this, size) and possible(other, size)):
        return False
    if left.counts or left.op in SIZELESS:
        return True
    free = left.op in UNDECIDED or left.op not in KNOWN
    return None if free or _sized(this) or _sized(other) else True


def _comparable(this: Signature, other: Signature, size: int) -> tuple[Signature, Signature]:
    """The same, without what one of them does not say."""
    blank: dict[str, Any] = {
        name: None
        for name in ("dtype", "reduce_op", "root")
        if None in (getattr(this, name), getattr(other, name))
    }
    if not (this.counts and other.counts):
        blank |= {"counts": (), "out": ()}
    elif size == UNKNOWN_SIZE and not (this.out and other.out):
        blank["out"] = ()
    return replace(this, **blank), replace(other, **blank)


def possible(payload: Payload, size: int = UNKNOWN_SIZE) -> bool:
    """Whether what goes in and what comes out fit each other, as far as the record says both."""
    given, got = (frozenset(filter(None, d)) for d in (payload.dtypes_in, payload.dtypes_out))
    if given and got and given != got and payload.op in KNOWN - SIZELESS - {"gather", "scatter"}:
        return False
    if payload.op == "all_reduce" or (size != UNKNOWN_SIZE and payload.op in _FOLLOWS):
        return not counts_of(payload, size)[1]
    return True


def _sized(payload: Payload) -> bool:
    return bool(payload.sizes_in or payload.sizes_out)
