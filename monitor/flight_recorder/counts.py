"""How many elements a collective moves, and which of these numbers all members share.

A record may be incomplete: the ring cuts off long lists of shapes, NCCL's all_to_all of lists
records the first tensor only, its gather and scatter stand in an undefined tensor where only the
root has a list. A number that cannot be relied on is left out and never compared.
"""

from __future__ import annotations

from math import prod
from typing import Final

from monitor.flight_recorder.job import Payload

UNKNOWN_SIZE: Final = 0
"""For `size`, where the members of a group are not known, or only some of them (inferred)."""

_Counts = tuple[int, ...]


def numbers(sizes: tuple[_Counts, ...]) -> _Counts:
    """Elements of each tensor; a scalar has one."""
    return tuple(prod(size) for size in sizes)


def counts_of(payload: Payload, size: int) -> tuple[_Counts, _Counts]:
    """Element counts that are equal on all members: what goes in, and what comes out.

    The second is empty where it follows from the first and `size`; when it is not and `size` is
    known, the payload contradicts itself.
    """
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    match payload.op:
        case "all_reduce" | "broadcast" | "reduce":
            differs = len(given) == len(got) and given != got
            return given or got, got if differs else ()
        case "all_gather":
            return _gathered(given, got, size)
        case "reduce_scatter":
            return _scattered(given, got, size)
        case "gather" | "scatter":
            received = payload.op == "scatter" and not swapped(payload)
            return (got if received else given), ()
        case _:
            return (), ()


def claims_root(payload: Payload) -> bool:
    """Of gather and scatter: whether this member holds the list that only the root has."""
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    held = got if payload.op == "gather" or swapped(payload) else given
    return len(held) > 1 or sum(held) > 0


def swapped(payload: Payload) -> bool:
    """Of scatter: whether what the member gets stands where what it gives should.

    ProcessGroupNCCL::scatter hands its outputs to the recorder as inputs and the other way
    round, gloo's does not. The root's list has a tensor for each member.
    """
    given, got = numbers(payload.sizes_in), numbers(payload.sizes_out)
    return payload.op == "scatter" and len(given) == 1 and (len(got) != 1 or got == (0,))


def _gathered(given: _Counts, got: _Counts, size: int) -> tuple[_Counts, _Counts]:
    """Each gives the same, and gets that times `size`; uneven: all get the same list."""
    if not given:
        return got, ()
    if len(given) == 1 and len(got) > 1:
        if size not in (UNKNOWN_SIZE, len(got)):
            return ((), ()) if _uneven(got) else (given, ())
        if _uneven(got):
            return got, ()
        got = (sum(got),)
    if len(given) != len(got) or (size and got == tuple(count * size for count in given)):
        return given, ()
    return given, got


def _scattered(given: _Counts, got: _Counts, size: int) -> tuple[_Counts, _Counts]:
    """Each gets its share of what all give equally; uneven: all give the same list."""
    if len(got) == 1 and len(given) > 1:
        if size not in (UNKNOWN_SIZE, len(given)):
            return (), ()
        if _uneven(given):
            return given, ()
        given = (sum(given),)
    if len(given) != len(got) or (size and given == tuple(count * size for count in got)):
        return given, ()
    return given, got


def _uneven(counts: _Counts) -> bool:
    return len(set(counts)) > 1
